from __future__ import annotations

import pytest

from bench.records.mesh import MeshShape


@pytest.mark.parametrize("text", ["data=1", "data=4,model=2", "pipe=2,data=3,fsdp=1"])
def test_written_form_is_read_back(text: str) -> None:
    assert str(MeshShape.parse(text)) == text


def test_spaces_around_axes_are_allowed() -> None:
    assert str(MeshShape.parse(" data=4, model=2")) == "data=4,model=2"


def test_sizes() -> None:
    mesh = MeshShape.parse("data=4,model=3,fsdp=2")
    assert mesh.size == 24
    assert mesh.batch_shards == 8
    assert mesh.axis("model") == 3
    assert mesh.axis("pipe") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown axis ''"),
        ("dta=2", "unknown axis 'dta'"),
        ("data=2,", "unknown axis ''"),
        ("data=2,data=2", "named twice"),
        ("data", "positive integer size, not ''"),
        ("data=0", "not '0'"),
        ("data=-1", "not '-1'"),
        ("data=²", "not '²'"),
    ],
)
def test_faults_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MeshShape.parse(text)
