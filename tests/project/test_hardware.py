"""Sheets of hardware: what they hold, and what is said of those that are wrong or missing."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.analyse import peaks
from bench.project.hardware import (
    NAMES,
    SHEETS,
    Figure,
    hardware,
    read,
)

ASKED = {
    "a100-sxm-80gb", "b200", "gb200-nvl72", "h100-pcie", "h100-sxm", "h200", "tpu-v4", "tpu-v5e",
    "tpu-v5p", "tpu-v6e",
}  # fmt: skip


def figures(part: object, path: str = "") -> Iterator[tuple[str, Figure]]:
    """All figures of a sheet, with their paths."""
    for name, value in part:
        where = f"{path}.{name}".strip(".")
        if isinstance(value, Figure):
            yield where, value
        elif hasattr(value, "model_fields_set"):
            yield from figures(value, where)


def changed(tmp_path: Path, old: str, new: str) -> Path:
    """The sheet of the H100 with a part replaced."""
    text = (SHEETS / "h100-sxm.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def test_there_is_a_sheet_for_each_chip() -> None:
    assert set(NAMES) >= ASKED


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_public_source(name: str) -> None:
    found = dict(figures(hardware(name)))
    assert {"memory.bytes", "memory.bandwidth", "achievable"} <= found.keys()
    for figure in found.values():
        assert figure.source.startswith("https://")
        assert figure.says


@pytest.mark.parametrize("name", NAMES)
def test_every_latency_is_marked_as_assumed(name: str) -> None:
    found = {path: figure for path, figure in figures(hardware(name)) if path.endswith("_s")}
    assert all(figure.assumed for figure in found.values()), found


@pytest.mark.parametrize("name", NAMES)
def test_peaks_are_of_peaks_toml_and_nowhere_else(name: str) -> None:
    sheet = hardware(name)
    published = peaks.peak(sheet.device_kind, "bf16")
    assert published is not None
    assert published.flops > 100e12
    assert "flops" not in (SHEETS / f"{name}.toml").read_text(encoding="utf-8").lower()


@pytest.mark.parametrize("name", NAMES)
def test_slices_fill_their_torus_in_order(name: str) -> None:
    torus = hardware(name).torus
    if torus is None:
        return
    shapes = torus.shapes.value
    sizes = [math.prod(shape) for shape in shapes]
    assert sizes == sorted(set(sizes))
    assert len({len(shape) for shape in shapes}) == 1


def test_slices_wrap_as_the_scaling_book_says() -> None:
    # Part 2, "TPU Networking": 2x2x4 has none, 4x4x8 all; a v5e 8x16 on the longer axis only.
    v5p, v5e = hardware("tpu-v5p").torus, hardware("tpu-v5e").torus
    assert v5p is not None
    assert v5e is not None
    assert v5p.wraps.value.of((2, 2, 4)) == (False, False, False)
    assert v5p.wraps.value.of((4, 4, 8)) == (True, True, True)
    assert v5e.wraps.value.of((8, 16)) == (False, True)
    assert v5e.wraps.value.of((4, 4)) == (False, False)


def test_an_unknown_name_is_an_error_with_the_closest_and_all_known() -> None:
    with pytest.raises(ValueError, match="unknown hardware 'h100-smx'") as caught:
        hardware("h100-smx")
    assert "did you mean h100-sxm" in str(caught.value)
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize("name", ["", "../h200", "H200"])
def test_a_name_is_never_a_near_match_or_a_path(name: str) -> None:
    with pytest.raises(ValueError, match="unknown hardware"):
        hardware(name)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("value = 450e9", "value = -450e9", "domain.bandwidth.value: Input should be greater"),
        ('source = "https://', 'source = "http://', "memory.bytes.source"),
        ("[domain.chips]", "[domain.chip]", "domain.chip: Extra inputs"),
        ("device_kind", "device", "device_kind: Field required"),
        ("[achievable]", "[reached]", "achievable: Field required"),
        ("[memory.bytes]", "[memory.bytes", "mine.toml: "),
    ],
)
def test_a_wrong_sheet_is_an_error_with_its_fields(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    with pytest.raises(ValueError, match=r"^mine\.toml: ") as caught:
        read(changed(tmp_path, old, new))
    assert said in str(caught.value)


def test_a_sheet_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xdc")
    with pytest.raises(ValueError, match=r"^mine\.toml: 'utf-8' codec can't decode"):
        read(tmp_path / "mine.toml")


def test_links_are_of_one_kind(tmp_path: Path) -> None:
    torus = (SHEETS / "tpu-v4.toml").read_text(encoding="utf-8")
    torus = torus[torus.index("[torus.shapes]") : torus.index("[network.bandwidth]")]
    path = changed(tmp_path, "[overhead_s]", f"{torus}\n[overhead_s]")
    assert {"domain", "torus"} <= tomllib.loads(path.read_text(encoding="utf-8")).keys()
    with pytest.raises(ValueError, match="in a domain or in a torus, not in both"):
        read(path)


def test_a_network_links_something(tmp_path: Path) -> None:
    text = (SHEETS / "h100-pcie.toml").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    figure = 'value = 1\nsource = "https://a"\nsays = "1"\n'
    network = f"[network.bandwidth]\n{figure}[network.latency_s]\n{figure}"
    path.write_text(text + network, encoding="utf-8")
    with pytest.raises(ValueError, match="a network needs a domain or a torus"):
        read(path)
