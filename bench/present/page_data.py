"""What a report's page draws its charts and tables from: every figure, once, as JSON.

Columns are lists of equal length, and rows refer to one another by their place in these. Numbers
have seven significant digits, of which a page shows three or four: with fewer, rounding twice would
show another last digit than tables that round once. Samples, which are drawn, have five; cells.csv
has all. bench/present/web/ is the one reader.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.analyse import (
    checkpoint_costs,
    input_cost,
    loss_curves,
    scaling_curves,
    stragglers,
    variant_ratios,
)
from bench.analyse.causes import traced_differences
from bench.present import command_lines, text_tables, trace_tables
from bench.records.arms import implementation_of

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from bench.analyse.cell_table import Tables
    from bench.analyse.comparisons import Comparison
    from bench.present.cause_sentences import Reason
    from bench.records.largest_batches import MaxBatchRow
    from bench.records.rows import Manifest, TraceRow

MOST_ROUNDS = 200
"""Rounds of a block whose samples the page has, evenly over time; samples.csv has all."""

MOST_MOMENTS = 1000
"""Rounds of the run that its timeline has, evenly over time."""

MOST_LOSSES = 40_000
"""Numbers of all loss curves together; losses.csv has every step."""

MOST_STEPS = 200
FEWEST_STEPS = 20
"""Steps that a curve has, evenly spaced, as far as MOST_LOSSES allows."""

_FIGURES = {
    "step": "step_s",
    "step_low": "step_q1_s",
    "step_high": "step_q3_s",
    "latency": "latency_s",
    "latency_low": "latency_q1_s",
    "latency_high": "latency_q3_s",
    "rate": "units_per_s",
    "ratio": "ratio",
    "ratio_low": "ratio_low",
    "ratio_high": "ratio_high",
    "to_decide": "to_decide_s",
    "trace": "trace_s",
    "lower": "lower_s",
    "compile": "compile_s",
    "memory": "memory_bytes",
    "high_water": "high_water_bytes",
    "arguments": "argument_bytes",
    "outputs": "output_bytes",
    "temporaries": "temporary_bytes",
    "reused": "alias_bytes",
    "wire": "wire_bytes",
    "communication": "communication_s",
    "model_flops": "model_flops",
    "traced_flops": "traced_flops",
    "compiled_flops": "compiled_flops",
    "accessed": "accessed_bytes",
    "intensity": "intensity",
    "achieved": "device_flops",
    "roof": "roof",
    "mfu": "mfu",
    "proof": "proof_error",
    "bubble": "bubble",
    "idle": "idle",
    "idle_low": "idle_low",
    "idle_high": "idle_high",
    "joules": "joules_per_step",
    "joules_error": "joules_error",
    "joules_unit": "joules_per_unit",
    "per_joule": "units_per_joule",
    "watts": "watts",
    "energy_ratio": "energy_ratio",
    "energy_ratio_error": "energy_ratio_error",
}
"""Numbers of a cell by their names on the page: columns of cell_table.Tables.cells."""

Columns = dict[str, list[Any]]


def build(found: Tables, manifest: Manifest) -> dict[str, Any]:
    """Everything that the page can show, ready for `encode`.

    Keys: `run`, `implementations` (names; other tables hold places among them), `subjects`,
    `blocks`, `cells`, `curves`, `effects` (of variants and several processes), `inputs` (what input
    costs), `checkpoints`, `largest` (batches), `traced`, `losses`, `timeline`.
    """
    cells = found.cells
    names = sorted(cells["implementation"].unique()) if len(cells) else []
    place = {name: number for number, name in enumerate(names)}
    subjects = list(dict.fromkeys(block.subject for block in found.comparisons))
    of_block = {block.name: number for number, block in enumerate(found.comparisons)}
    of_cell = {name: number for number, name in enumerate(cells["cell"])} if len(cells) else {}
    return {
        "run": {
            "name": manifest["run"],
            "device_kind": manifest["device_kind"],
            "cores": manifest["host"].get("usable_cores"),
            "platform": manifest["platform"],
        },
        "implementations": names,
        "subjects": subjects,
        "blocks": _blocks(found, manifest, subjects, place),
        "cells": _cells(cells, of_block, place),
        "curves": _curves(found, subjects, of_cell),
        "effects": _effects(found, of_cell),
        "inputs": _inputs(found, of_cell),
        "checkpoints": _checkpoints(found, of_cell),
        "largest": _largest(found.largest),
        "traced": _traced(found, of_cell),
        "losses": _losses(loss_curves.find(found), of_block, of_cell),
        "timeline": _timeline(found.timeline),
    }


def encode(value: dict[str, Any]) -> str:
    """JSON that may stand in an HTML script element: no text can end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _short(values: Iterable[float | None], digits: int = 7) -> list[float | None]:
    """So many significant digits; None where there is no number."""
    return [
        None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")
        for value in values
    ]


def _blocks(
    found: Tables, manifest: Manifest, subjects: Sequence[str], place: Mapping[str, int]
) -> Columns:
    number = {name: index for index, name in enumerate(subjects)}
    columns: Columns = {}
    for block in found.comparisons:
        ceilings = block.ceilings
        floor = block.floor
        rounds = _shown(len(block.rounds.attempt))
        row = {
            "name": block.name,
            "subject": number[block.subject],
            "mesh": str(block.block.mesh),
            "batch": block.block.batch,
            "devices": block.block.mesh.size,
            "processes": block.block.options.processes,
            "oversubscribed": block.oversubscribed,
            "baseline": place.get(block.baseline, -1),
            "margin": block.margin,
            "floor": None if floor is None else _short([floor.value, floor.low, floor.high]),
            "matmul": ceilings and ceilings["matmul_flops"],
            "bandwidth": ceilings and ceilings["memory_bytes"],
            "command": command_lines.of_block(block, manifest),
            "facts": text_tables.facts(block, manifest) if block.ranked else [],
            "order": [[by, effect.size, effect.sure] for by, effect in block.order.items()],
            "launch": _launches(block, rounds),
            "samples": {
                str(place[arm]) if arm in place else "twin": _samples(block, arm, rounds)
                for arm in block.rounds.arms
                if implementation_of(arm) == arm
            },
            "slow": _slow(block, place),
        }
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def _shown(count: int, most: int = MOST_ROUNDS) -> list[int]:
    """At most so many places of those that there are, evenly."""
    places = np.linspace(0, max(count - 1, 0), min(count, most)).astype(int)
    return sorted({int(place) for place in places})


def _launches(block: Comparison, rounds: Sequence[int]) -> list[int]:
    """For each round, which launch or worker it is of."""
    return [int(block.rounds.attempt[place]) for place in rounds]


def _samples(block: Comparison, arm: str, rounds: Sequence[int]) -> list[float | None]:
    """Microseconds a step in each of these rounds."""
    return _short((1e6 * block.rounds.seconds(arm, "throughput")[list(rounds)]).tolist(), 5)


def _slow(block: Comparison, place: Mapping[str, int]) -> list[list[Any]]:
    """Of several processes: implementation, slowest rank, how often it is, how far apart."""
    spreads = {place[a]: stragglers.spread(t) for a, t in block.process_times.items() if a in place}
    return [[arm, one.slowest, one.often, one.excess] for arm, one in spreads.items()]


def _cells(cells: pd.DataFrame, of_block: Mapping[str, int], place: Mapping[str, int]) -> Columns:
    if cells.empty:
        return {}
    reasons: dict[str, int] = {}
    columns: Columns = {
        "block": [of_block[name] for name in cells["block"]],
        "implementation": [place[name] for name in cells["implementation"]],
        "status": cells["status"].tolist(),
        "reason": [reasons.setdefault(text, len(reasons)) for text in cells["reason"]],
        "verdict": [text if isinstance(text, str) else None for text in cells["verdict"]],
        "paired": cells["paired"].tolist(),
        "apart": (~cells["interleaved"].astype(bool)).tolist(),
        "unit": [text if isinstance(text, str) else "" for text in cells["unit"]],
        "cached": (cells["cache_hits"] > 0).tolist(),
        "rounds": cells["rounds"].tolist(),
        "launches": cells["launches"].tolist(),
        "failed_launches": cells["failed_launches"].tolist(),
        "collectives": [text_tables.collectives(rows) for rows in cells["communication"]],
    }
    for name, column in _FIGURES.items():
        columns[name] = _short(cells[column].astype(float).tolist())
    columns["reasons"] = list(reasons)
    return columns


def _curves(
    found: Tables, subjects: Sequence[str], of_cell: Mapping[str, int]
) -> list[dict[str, Any]]:
    return [
        {
            "title": curve.title,
            "kind": curve.kind,
            "subject": subjects.index(curve.subject),
            "slug": curve.slug,
            "cell": [of_cell[name] for name in curve.points["cell"]],
            **{
                short: _short(curve.points[column].tolist())
                for short, column in (
                    ("efficiency", "efficiency"),
                    ("efficiency_low", "efficiency_q1"),
                    ("efficiency_high", "efficiency_q3"),
                )
            },
        }
        for curve in scaling_curves.find(found.cells)
        if curve.subject in subjects
    ]


def _effects(found: Tables, of_cell: Mapping[str, int]) -> Columns:
    """Each cell of a variant, or of several processes, against itself without."""
    effects = variant_ratios.find(found.comparisons)
    return {
        "cell": [of_cell[f"{effect.block.name}/{effect.implementation}"] for effect in effects],
        "ratio": _short(effect.ratio.value for effect in effects),
        "low": _short(effect.ratio.low for effect in effects),
        "high": _short(effect.ratio.high for effect in effects),
        "verdict": [effect.verdict.word for effect in effects],
    }


def _inputs(found: Tables, of_cell: Mapping[str, int]) -> Columns:
    """Each cell with its input taken in one way, against itself on a resident batch."""
    rows = input_cost.frame(input_cost.find(found.comparisons))
    if rows.empty:
        return {}
    figures = {
        "step": "step_s",
        "ratio": "ratio",
        "low": "ratio_low",
        "high": "ratio_high",
        "wait": "wait_s",
        "starved": "starved_s",
        "latency_wait": "latency_wait_s",
    }
    return {
        "cell": [of_cell[name] for name in rows["cell"]],
        **{name: rows[name].tolist() for name in ("way", "reason")},
        # Without samples there is none, which pandas makes NaN among others.
        "verdict": [text if isinstance(text, str) else None for text in rows["verdict"]],
        **{name: _short(rows[column].tolist()) for name, column in figures.items()},
    }


def _largest(rows: Sequence[MaxBatchRow]) -> Columns:
    """The largest batch of each implementation, mesh and set of options."""
    if not rows:
        return {}
    names = ("implementation", "mesh", "batch", "next_batch", "limit_is", "status", "reason")
    sizes = {"limit": "limit_bytes", "predicted": "predicted_bytes", "next": "next_bytes",
             "peak": "peak_bytes"}  # fmt: skip
    columns: list[dict[str, Any]] = [dict(row) for row in rows]
    return {
        "subject": [f"{row['workload']}, {row['options']}" for row in rows],
        **{name: [row[name] for row in columns] for name in names},
        **{name: _short(row[column] for row in columns) for name, column in sizes.items()},
        "refuted": [", ".join(map(str, row["refuted"])) for row in rows],
    }


def _checkpoints(found: Tables, of_cell: Mapping[str, int]) -> Columns:
    """Each cell's saves and restores."""
    rows = checkpoint_costs.frame(checkpoint_costs.find(found.comparisons, found.checkpoints))
    if rows.empty:
        return {}
    figures = {
        "total": "total_s",
        "total_low": "total_least_s",
        "total_high": "total_most_s",
        "blocking": "blocking_s",
        "blocking_low": "blocking_least_s",
        "blocking_high": "blocking_most_s",
        "rate": "bytes_a_second",
        "state": "state_bytes",
        "stored": "stored_bytes",
        "before": "step_before_s",
        "during": "step_during_s",
        "held": "device_bytes",
        "seen": "seen_bytes",
    }
    return {
        "cell": [of_cell[name] for name in rows["cell"]],
        **{name: rows[name].tolist() for name in ("what", "reason", "file_system")},
        **{name: _short(rows[column].tolist()) for name, column in figures.items()},
    }


def _traced(found: Tables, of_cell: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """What traces showed, by a cell's place: parts of its step, and why it differs."""
    told: dict[str, dict[str, Any]] = {}
    for name, trace in found.traces.items():
        if name in of_cell:
            told[str(of_cell[name])] = _trace(trace)
    for block in found.comparisons:
        differences = traced_differences.differences(block, found.traces)
        for name, reason in trace_tables.reasons(differences).items():
            _explain(told[str(of_cell[f"{block.name}/{name}"])], reason)
        for one in differences:
            cell = told[str(of_cell[one.cell["cell"]])]
            cell["causes"] = trace_tables.cause_list(
                one.cell["implementation"], one.baseline, one.attribution
            )
            cell["whole"] = one.attribution.whole
        if block.ranked:
            for name, reason in trace_tables.against_fastest(block, found.traces).items():
                told[str(of_cell[f"{block.name}/{name}"])]["why_fastest"] = reason.sentence
    return told


def _explain(cell: dict[str, Any], reason: Reason) -> None:
    cell["why"] = reason.sentence
    if reason.main:
        cell["main"], cell["main_s"] = reason.main, reason.seconds


def _trace(trace: TraceRow) -> dict[str, Any]:
    return {"parts": traced_differences.parts(trace), "viewer": trace_tables.trace_viewer(trace)}


def _losses(
    trainings: Sequence[loss_curves.Training],
    of_block: Mapping[str, int],
    of_cell: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Loss curves of blocks, thinned; the differences are the largest so far, of every step."""
    curves = sum(1 + len(one.yardsticks) + len(one.curves) for one in trainings)
    most = max(FEWEST_STEPS, min(MOST_STEPS, MOST_LOSSES // max(1, 2 * curves)))
    return [
        {
            "block": of_block[one.block.name],
            "steps": [place + 1 for place in _shown(one.steps, most)],
            "of": one.steps,
            "tolerance": one.reference.tolerance,
            "curves": [
                _loss_curve(each, of_cell.get(f"{one.block.name}/{each.arm}"), one.steps, most)
                for each in (one.reference, *one.yardsticks, *one.curves)
            ],
        }
        for one in trainings
    ]


def _loss_curve(one: loss_curves.Curve, cell: int | None, steps: int, most: int) -> dict[str, Any]:
    def shown(values: NDArray[np.float64]) -> list[float | None]:
        return _short([values[p] if p < len(values) else None for p in _shown(steps, most)])

    return {
        "cell": cell,
        "name": one.arm,
        "yardstick": one.arm in loss_curves.YARDSTICKS,
        "loss": shown(one.losses),
        "apart": shown(one.so_far),
        "largest": _short([one.largest])[0],
        "early": _short([one.early])[0],
        "beyond": one.beyond,
        "reason": one.reason,
    }


def _timeline(rounds: pd.DataFrame) -> Columns:
    if rounds.empty:
        return {}
    shown = rounds
    if len(rounds) > MOST_MOMENTS:
        groups = np.arange(len(rounds)) * MOST_MOMENTS // len(rounds)
        shown = rounds.groupby(groups).median(numeric_only=True)
    columns = ("minutes", "relative", "foreign", "steal", "mhz")
    return {name: _short(shown[name].astype(float).tolist()) for name in columns}
