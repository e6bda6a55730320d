"""Columns of a cell: stored figures, its times, and its rank among the others."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.analyse import peaks
from bench.analyse.comparisons import Comparison, Row
from bench.analyse.ratio_intervals import columns
from bench.analyse.sample_rounds import Spread
from bench.records.row_parts import OWN, SGD
from bench.records.rows import Manifest
from bench.records.statuses import decisive

MEANINGS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text("utf-8")
)
"""Meanings and units, by column: of all columns of `cells`, and of some of `samples`."""

_IDENTITY = (
    *("cell", "block", "workload", "size", "mesh", "devices", "processes", "batch", "precision"),
    *("options", "implementation", "key", "status", "reason", "unit"),
)

_STORED = (
    *("units_per_step", "trace_s", "lower_s", "compile_s", "cache_hits", "argument_bytes"),
    *("output_bytes", "temporary_bytes", "alias_bytes", "traced_flops", "host_calls"),
    *("accessed_bytes", "model_flops", "bubble"),
)
"""Figures of bench.records.rows.CellRow or its _PARTS. They are the decisive launch's, usually the
first: later ones use the compilation cache."""

_KNOWN = (
    *("inputs", "ablations", "foreign", "isolation", "profile", "proved_in", "compiled_in"),
    *("communication", "fingerprint", "dispatch"),
)
"""Other items of these, None where they are absent."""

_PARTS = ("compile", "memory", "program", "cost")
"""Parts of a CellRow, whose keys all differ."""

_TIMES = ("step_s", "step_q1_s", "step_q3_s", "latency_s", "latency_q1_s", "latency_q3_s")


def stored_columns(rows: Sequence[Mapping[str, Any]], manifest: Manifest) -> dict[str, Any]:
    """Return a cell's columns that follow from its rows, one row per launch; others are NaN.

    Most are of the launch that `decisive` chooses; `failed_launches` counts failures if it is ok.
    """
    first = rows[decisive([row["status"] for row in rows])]
    failed = sum(row["status"] != "ok" for row in rows) if first["status"] == "ok" else 0
    marks = [float(mark) for row in rows if (mark := row.get("high_water_bytes")) is not None]
    proof, sent = first.get("proof") or [], first.get("communication")
    errors = [
        float(check[f"{part}_error"] and check[f"{part}_error"] / check[f"{part}_tolerance"])
        for check in proof
        for part in ("loss", "update", "state")
        if check.get(f"{part}_error") is not None
    ]
    known = dict(first)
    for part in _PARTS:
        known |= first.get(part) or {}
    cores = manifest["host"].get("usable_cores") or 0

    def figure(name: str) -> float:
        return math.nan if known.get(name) is None else float(known[name])

    def worst(name: str) -> float:
        return max((check.get(name) or 0 for check in proof), default=0)

    return {
        **dict.fromkeys(MEANINGS["cells"], math.nan),
        **{name: first.get(name, math.nan) for name in _IDENTITY},
        "interleaved": first.get("interleaved") is not False,
        "oversubscribed": bool(cores)
        and manifest["platform"] == "cpu"
        and first["devices"] > int(cores),
        "launches": len(rows),
        "failed_launches": failed,
        **{name: figure(name) for name in _STORED},
        "memory_bytes": figure("total_bytes"),
        "compiled_flops": figure("flops"),
        "high_water_bytes": max(marks, default=math.nan),
        "wire_bytes": math.nan if sent is None else float(sum(row["wire_bytes"] for row in sent)),
        "proof_error": max(errors, default=math.nan),
        **{f"proof_{name}": worst(name) for name in ("batch", "parts")},
        "proved_exactly": any(check["name"] in (SGD, OWN) for check in proof),
        "settings": ", ".join(first.get("jax_config") or ()),
        "kernels": ", ".join(first.get("kernels") or ()),
        "approximate": first.get("approximate") or "",
        **{name: known.get(name) for name in _KNOWN},
        "rounds": 0,
        "baseline": "",
        "paired": True,
        "verdict": None,
        "proved_same": False,
    }


def time_columns(
    cell: Row, throughput: Spread | None, latency: Spread | None, device_kind: str
) -> dict[str, Any]:
    """Return times and rates of an `ok` cell, or the status and reason that refuse them."""
    if cell["status"] != "ok":
        return {}
    if throughput is None or latency is None:
        return {"status": "crashed", "reason": "no samples were stored"}
    step = throughput.median
    mfu, reason = peaks.utilization(
        device_kind, cell["precision"], cell["model_flops"], step, cell["devices"]
    )
    if reason:
        return {"status": "implausible", "reason": reason}
    return {
        "rounds": throughput.rounds,
        **dict(zip(_TIMES, (*throughput[:3], *latency[:3]), strict=True)),
        "units_per_s": cell["units_per_step"] / step,
        "achieved_flops": cell["model_flops"] / step,
        "mfu": mfu,
    }


def side_by_side(cell: Row, comparison: Comparison, level: Spread | None) -> dict[str, Any]:
    """Return times and rates as if the arm had shared all rounds of the baseline.

    An arm leaves the rounds once it is decided. Medians over different rounds would also compare
    the host at different times, so the arm's times are scaled to its ratio times the baseline's
    median, `level`. Empty for a cell without a paired ratio.
    """
    claim = comparison.claims.get(cell["implementation"])
    if level is None or claim is None or not claim.ratio.paired:
        return {}
    factor = level.median * claim.ratio.value / cell["step_s"]
    return {name: cell[name] * factor for name in _TIMES} | {
        name: cell[name] / factor for name in ("units_per_s", "achieved_flops", "mfu")
    }


def compared_columns(cell: Row, comparison: Comparison) -> dict[str, Any]:
    """Return a cell's ratio to the baseline, its verdict, and how far it is behind the fastest."""
    name, baseline, standings = cell["implementation"], comparison.baseline, comparison.standings
    found: dict[str, Any] = {"baseline": baseline}
    if name in standings.behind:
        low, high = standings.behind[name]
        found |= {"tier": standings.tier(name), "behind_low": low, "behind_high": high}
    if name == baseline and name in comparison.arms:
        return found | {"ratio": 1.0, "ratio_low": 1.0, "ratio_high": 1.0}
    claim = comparison.claims.get(name)
    if claim is None:
        return found | {"paired": False}
    return found | {
        **columns("ratio", claim.ratio),
        "paired": claim.ratio.paired,
        "verdict": claim.verdict.word,
        "verdict_low": claim.verdict.low,
        "verdict_high": claim.verdict.high,
        "proved_same": claim.verdict.proved,
    }
