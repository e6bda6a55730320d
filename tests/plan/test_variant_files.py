"""Files of variants: those that are shipped, a user's own, and what is wrong with one."""

from __future__ import annotations

import pytest

from bench.plan.options import Options
from bench.plan.variant_files import SHIPPED, chosen, read_variants, with_variant_files
from bench.records.variants import Variant


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_a_shipped_file_sets_its_platforms_flags_alone(platform):
    variants = [Variant.parse(text) for text in read_variants(f"@{platform}")]
    assert set().union(*(variant.platforms for variant in variants)) == {platform}
    found, faults = chosen(variants, platform, gate=False)
    assert ([one.name for one in found], faults) == ([one.name for one in variants], [])
    # A TPU belongs to one process, so that nothing can race there.
    assert {one.raced for one in found} == {platform != "tpu"}
    others = {"cpu", "gpu", "tpu"} - {platform}
    for other in others:
        _, (fault,) = chosen(variants, other, gate=False)
        assert "\n" not in fault
        assert f"flags of {platform} do nothing on {other}; use those of {other}" in fault
        assert all(one.name in fault for one in variants if one.platforms)
    assert set(SHIPPED) == others | {platform}


def test_a_file_of_ones_own_stands_for_its_variants(tmp_path):
    path = tmp_path / "own=1.toml"
    path.write_text('fast = "XLA_FLAGS=--a --b"\nring = "NCCL_ALGO=Ring"\n')
    faults: list[str] = []
    options = with_variant_files(Options(variant=("x=Y=1", f"@{path}", "@one=Z=2")), faults)
    expected = ("x=Y=1", "@fast=XLA_FLAGS=--a --b", "@ring=NCCL_ALGO=Ring", "@one=Z=2")
    assert (options.variant, faults) == (expected, [])
    assert with_variant_files(options, faults) == options, "a resumed run has them already"


def test_a_file_without_a_name_is_a_fault_that_shows_it():
    faults: list[str] = []
    with_variant_files(Options(variant=("@",)), faults)
    assert faults == ["--variant: there is no file ''; shipped ones are @cpu, @gpu, @tpu"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "there is no file {path}; shipped ones are @cpu, @gpu, @tpu"),
        ("", "{path}: it names no variant; write lines such as NAME ="),
        ("a = 1", "{path}: 'a' is not text; write lines such as NAME ="),
        ('a.b = "X=1"', "{path}: 'a' is not text"),
        ("a = ", "{path}: Invalid value (at end of document)"),
    ],
)
def test_a_wrong_file_is_a_fault_that_names_it(content, fault, tmp_path):
    path = tmp_path / "own.toml"
    if content is not None:
        path.write_text(content)
    faults: list[str] = []
    assert with_variant_files(Options(variant=(f"@{path}",)), faults).variant == ()
    assert len(faults) == 1
    assert faults[0].startswith(f"--variant: {fault.format(path=path)}")
