"""The numbers of a comparison of two runs: a change a cell, with its interval and its verdict.

A ratio is B over A: below 1, B is faster. Imports no jax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pandas as pd

from bench.analyse import cell_table
from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import Ratio, quotient, ratios, unpaired
from bench.analyse.run_settings import Difference, contents, differences
from bench.analyse.verdicts import ALPHA, Verdict, decide
from bench.records.rows import Manifest
from bench.records.statuses import MARGIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.records.store import Damage, Run

NOTABLE = 0.01
"""Share from which on another compile time or amount of memory is worth a word."""

Source = Literal["baseline", "step time"]


@dataclass(frozen=True)
class Figures:
    """What one run says of a cell it has a time for; NaN where it says nothing."""

    step_s: float
    to_baseline: float
    """Its step time over the baseline's."""
    compile_s: float
    """Of the first launch: tracing, lowering and compiling."""
    cached: bool
    """Whether the first launch took programs from the compilation cache."""
    memory_bytes: float
    model_flops: float


@dataclass(frozen=True)
class Change:
    """A cell that has a time in both runs."""

    cell: str
    block: str
    implementation: str
    a: Figures
    b: Figures
    step: Ratio
    """Step time in B over that in A, not paired."""
    against_baseline: Ratio | None
    """Ratio to the baseline in B over that in A. None for the baseline itself, and where the runs
    have no common baseline or one of them did not measure the two side by side."""
    verdict: Verdict
    source: Source
    """What the verdict is about."""

    @property
    def compile(self) -> float | None:
        """Compile time in B over that in A, where it is notable."""
        return notable(self.a.compile_s, self.b.compile_s)

    @property
    def memory(self) -> float | None:
        """Memory in B over that in A, where it is notable."""
        return notable(self.a.memory_bytes, self.b.memory_bytes)


@dataclass(frozen=True)
class Ended:
    """A cell that ended differently."""

    block: str
    implementation: str
    status_a: str
    reason_a: str
    status_b: str
    reason_b: str


@dataclass(frozen=True)
class Only:
    """A cell that one run alone has."""

    block: str
    implementation: str
    status: str
    reason: str
    """Why it has no time there; empty if it is ok."""
    absence: str
    """What the other run lacks."""


@dataclass(frozen=True)
class Compared:
    """Run B against run A."""

    a: Manifest
    b: Manifest
    same_run: bool
    """Whether both are one and the same run."""
    differences: list[Difference]
    """Of the setting, and of files."""
    contents: dict[str, list[Difference]]
    """Which files differ, by the implementation or workload that they are of."""
    damaged_a: Sequence[Damage]
    damaged_b: Sequence[Damage]
    """What the runs stored and is not read."""
    margin: float
    """Share of a step time that is too small a difference to matter."""
    blocks: list[tuple[Comparison, Comparison]]
    """Those that both runs have, in the report's order."""
    changes: list[Change]
    """Block by block, in the same order."""
    ended: list[Ended]
    only_a: list[Only]
    only_b: list[Only]
    untimed: int
    """Cells that have no time in either run, for the same kind of reason."""
    table: pd.DataFrame
    """A row a cell of either run, as `compare.csv` holds it."""


def compare(a: Run, b: Run, margin: float | None = None) -> Compared:
    """Compare two runs; the margin is that of the runs, the wider one, unless it is given."""
    found_a, found_b = cell_table.build(a), cell_table.build(b)
    cells_a, cells_b = _by_name(found_a.cells), _by_name(found_b.cells)
    blocks_b = {block.name: block for block in found_b.comparisons}
    blocks = {
        block.name: (block, blocks_b[block.name])
        for block in found_a.comparisons
        if block.name in blocks_b
    }
    if margin is None:
        margin = max(float(run.manifest["config"].get("margin", MARGIN)) for run in (a, b))
    both = [name for name in cells_a if name in cells_b]
    timed = [n for n in both if cells_a[n]["status"] == cells_b[n]["status"] == "ok"]
    # Bonferroni's inequality over the table: at most ALPHA of comparisons contain a wrong verdict.
    alpha = ALPHA / max(1, len(timed))
    changes = [
        _change(cells_a[name], cells_b[name], *blocks[cells_a[name]["block"]], alpha, margin)
        for name in timed
    ]
    other = contents(a, b)
    # Many have the same file of those that they share.
    files = dict.fromkeys(difference for found in other.values() for difference in found)
    return Compared(
        a=a.manifest,
        b=b.manifest,
        same_run=a.manifest == b.manifest,
        differences=[*differences(a.manifest, b.manifest), *files],
        contents=other,
        damaged_a=a.damaged,
        damaged_b=b.damaged,
        margin=margin,
        blocks=list(blocks.values()),
        changes=changes,
        ended=[
            _ended(cells_a[name], cells_b[name])
            for name in both
            if cells_a[name]["status"] != cells_b[name]["status"]
        ],
        only_a=_only(cells_a, cells_b, "B"),
        only_b=_only(cells_b, cells_a, "A"),
        untimed=sum(cells_a[n]["status"] == cells_b[n]["status"] != "ok" for n in both),
        table=_table(cells_a, cells_b, changes),
    )


def notable(a: float, b: float) -> float | None:
    """Return b / a, where both are known and it differs from 1 by more than NOTABLE."""
    # An unknown one is NaN, which is above nothing.
    return b / a if a > 0 and abs(b / a - 1) > NOTABLE else None


def _by_name(cells: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return {row["cell"]: row for row in cast("list[dict[str, Any]]", cells.to_dict("records"))}


def _change(
    a: dict[str, Any],
    b: dict[str, Any],
    block_a: Comparison,
    block_b: Comparison,
    alpha: float,
    margin: float,
) -> Change:
    arm = a["implementation"]
    series = [block.rounds.log_seconds(arm) for block in (block_b, block_a)]
    step = unpaired(*series)
    if step is None:
        raise ValueError(f"{a['cell']} is ok and has no samples")
    ratio_a, ratio_b = (_to_baseline(arm, block) for block in (block_a, block_b))
    against = None
    if block_a.baseline == block_b.baseline != arm:
        against = _against_baseline(ratio_a, ratio_b)
    return Change(
        cell=a["cell"],
        block=a["block"],
        implementation=arm,
        a=_figures(a, ratio_a),
        b=_figures(b, ratio_b),
        step=step,
        against_baseline=against,
        verdict=decide(against or step, alpha, margin),
        source="baseline" if against else "step time",
    )


def _to_baseline(arm: str, block: Comparison) -> Ratio | None:
    return ratios(block.rounds, {arm: block.baseline}).get(arm)


def _against_baseline(a: Ratio | None, b: Ratio | None) -> Ratio | None:
    """One run's ratio to the baseline over the other's, if both are paired and have an error."""
    if a is None or b is None:
        return None
    found = quotient(b, a)
    return found if found.paired and found.error is not None else None


def _figures(cell: dict[str, Any], to_baseline: Ratio | None) -> Figures:
    return Figures(
        step_s=cell["step_s"],
        to_baseline=math.nan if to_baseline is None else to_baseline.value,
        compile_s=_compile_s(cell),
        cached=cell["cache_hits"] > 0,
        memory_bytes=cell["memory_bytes"],
        model_flops=cell["model_flops"],
    )


def _compile_s(cell: dict[str, Any]) -> float:
    return float(cell["trace_s"] + cell["lower_s"] + cell["compile_s"])


def _ended(a: dict[str, Any], b: dict[str, Any]) -> Ended:
    return Ended(
        block=a["block"],
        implementation=a["implementation"],
        status_a=a["status"],
        reason_a=a["reason"],
        status_b=b["status"],
        reason_b=b["reason"],
    )


def _only(
    own: dict[str, dict[str, Any]], others: dict[str, dict[str, Any]], other: str
) -> list[Only]:
    """Cells that the run called `other` lacks, and the first thing that it lacks altogether."""
    has = {part for cell in others.values() for part in _parts(cell)}
    found = []
    for name, cell in own.items():
        if name not in others:
            lacks = [f"{other} has no {part}" for part in _parts(cell) if part not in has]
            absence = next(iter(lacks), f"{other} has other cells of the block")
            named = cell["block"], cell["implementation"]
            found.append(Only(*named, cell["status"], cell["reason"], absence))
    return found


def _parts(cell: dict[str, Any]) -> list[str]:
    """What a cell is made of, in words: the implementation first, the block last."""
    return [
        f"implementation {cell['implementation']}",
        f"workload {cell['workload']}-{cell['size']}",
        f"options {cell['options']}",
        f"mesh {cell['mesh']}",
        f"batch {cell['batch']}",
        f"block {cell['block']}",
    ]


def _table(
    cells_a: dict[str, dict[str, Any]], cells_b: dict[str, dict[str, Any]], changes: list[Change]
) -> pd.DataFrame:
    by_name = {change.cell: change for change in changes}
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys([*cells_a, *cells_b]):
        row: dict[str, Any] = {"cell": name}
        for side, cells in (("a", cells_a), ("b", cells_b)):
            cell = cells.get(name, {})
            row |= {f"{key}_{side}": cell.get(key) for key in ("status", "reason", "step_s")}
            row |= {f"{key}_{side}": cell.get(key) for key in ("baseline", "ratio", "key")}
            row[f"compile_s_{side}"] = _compile_s(cell) if cell else None
            row[f"memory_bytes_{side}"] = cell.get("memory_bytes")
        change = by_name.get(name)
        row |= _ends("step", change.step if change else None)
        row |= _ends("against_baseline", change.against_baseline if change else None)
        row |= {
            "verdict": change.verdict.word if change else None,
            "verdict_from": change.source if change else None,
            "verdict_low": change.verdict.low if change else None,
            "verdict_high": change.verdict.high if change else None,
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _ends(name: str, ratio: Ratio | None) -> dict[str, float | None]:
    """A ratio and its 95 % interval, as columns."""
    value, low, high = (None,) * 3 if ratio is None else (ratio.value, ratio.low, ratio.high)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
