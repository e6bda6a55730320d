"""Peaks are looked up, never guessed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bench.analyse import peaks


def test_known_devices_have_a_peak_and_a_source() -> None:
    found = peaks.peak("NVIDIA H200", "bf16")
    assert found is not None
    assert found.flops == pytest.approx(989.4e12)
    assert found.source.startswith("https://")


@pytest.mark.parametrize("kind", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"])
def test_both_half_precisions_have_the_same_peak(kind: str) -> None:
    half = peaks.peak(kind, "fp16")
    assert half is not None
    assert half == peaks.peak(kind, "bf16")


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("cpu", "fp32"),
        ("TPU v4", "fp16"),
        ("NVIDIA H200 NVL", "bf16"),
        ("TPU v4", "fp32"),
        ("TPU", "bf16"),
    ],
)
def test_the_rest_is_unknown(kind: str, precision: str) -> None:
    assert peaks.peak(kind, precision) is None


def test_utilization_counts_all_devices() -> None:
    published = peaks.peak("NVIDIA H200", "bf16")
    assert published is not None
    share, reason = peaks.utilization("NVIDIA H200", "bf16", 4 * published.flops, 2.0, 4)
    assert (share, reason) == (pytest.approx(0.5), "")


def test_every_entry_has_a_public_source() -> None:
    text = (Path(peaks.__file__).with_name("peaks.toml")).read_text(encoding="utf-8")
    kinds = []
    for entry in tomllib.loads(text)["peak"]:
        assert entry["source"].startswith("https://")
        kinds += entry["device_kinds"]
    assert len(kinds) == len(set(kinds))
