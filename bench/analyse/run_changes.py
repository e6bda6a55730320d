"""Comparison of two runs, cell by cell: each change has an interval and a verdict.

Every ratio is B over A: below 1, B is faster.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from bench.analyse import cell_table
from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import Ratio, ends, quotient, ratios, unpaired
from bench.analyse.run_settings import Difference, contents, differences
from bench.analyse.verdicts import ALPHA, Verdict, decide, margin_of
from bench.records.rows import Manifest
from bench.records.store import Damage, Run

NOTABLE = 0.01
"""Relative change of compile time or memory above which it is shown."""

Source = Literal["baseline", "step time"]

Row = Mapping[str, Any]
"""A row of bench.analyse.cell_table.Tables.cells."""


@dataclass(frozen=True)
class Change:
    """A cell that has a time in both runs."""

    a: Row
    b: Row
    is_baseline: bool
    """Whether it is the baseline of both runs."""
    step: Ratio
    """Step time in B over that in A, not paired."""
    against_baseline: Ratio | None
    """Ratio to the baseline in B over that in A. None for the baseline itself, and if the runs have
    no common baseline or one of them did not measure the two side by side."""
    verdict: Verdict
    source: Source
    """The quantity that the verdict is about."""

    @property
    def cell(self) -> str:
        """The cell's name."""
        return str(self.a["cell"])

    @property
    def block(self) -> str:
        """The block's name."""
        return str(self.a["block"])

    @property
    def implementation(self) -> str:
        """The implementation's name."""
        return str(self.a["implementation"])

    @property
    def compile(self) -> float | None:
        """Compile time in B over that in A, where it is notable."""
        return notable(compile_s(self.a), compile_s(self.b))

    @property
    def memory(self) -> float | None:
        """Memory in B over that in A, where it is notable."""
        return notable(self.a["memory_bytes"], self.b["memory_bytes"])


@dataclass(frozen=True)
class Compared:
    """Comparison of run B with run A."""

    a: Manifest
    b: Manifest
    same_run: bool
    """Whether both are the same run."""
    differences: list[Difference]
    """Differences of settings and of files."""
    contents: dict[str, list[Difference]]
    """The files that differ, by the implementation or workload that they belong to."""
    damaged_a: Sequence[Damage]
    damaged_b: Sequence[Damage]
    """Stored data that cannot be read."""
    margin: float
    """Relative difference of step times that is negligible."""
    blocks: list[tuple[Comparison, Comparison]]
    """Blocks that both runs have, in the report's order."""
    changes: list[Change]
    """Block by block, in the same order."""
    ended: list[tuple[Row, Row]]
    """Cells that ended differently, in A and in B."""
    only: dict[tuple[str, str], list[Row]]
    """Cells of one run only, by that run (`A` or `B`) and by what the other run lacks."""
    untimed: int
    """Number of cells that have no time in either run, with the same status in both."""
    table: pd.DataFrame
    """One row per cell of either run, as in `compare.csv`."""


def compare(a: Run, b: Run, margin: float | None = None) -> Compared:
    """Compare two runs; the margin defaults to the larger of the runs' own."""
    found_a, found_b = cell_table.build(a), cell_table.build(b)
    cells_a, cells_b = ({row["cell"]: row for row in found.rows} for found in (found_a, found_b))
    blocks_b = {block.name: block for block in found_b.comparisons}
    blocks = {
        block.name: (block, blocks_b[block.name])
        for block in found_a.comparisons
        if block.name in blocks_b
    }
    if margin is None:
        margin = max(margin_of(run.manifest) for run in (a, b))
    both = [(cell, cells_b[name]) for name, cell in cells_a.items() if name in cells_b]
    timed = [(one, other) for one, other in both if one["status"] == other["status"] == "ok"]
    # Bonferroni's inequality over the table: at most ALPHA of comparisons contain a wrong verdict.
    alpha = ALPHA / max(1, len(timed))
    changes = [_change(*pair, *blocks[pair[0]["block"]], alpha, margin) for pair in timed]
    changed_files = contents(a, b)
    # Many implementations share files.
    files = dict.fromkeys(difference for found in changed_files.values() for difference in found)
    return Compared(
        a=a.manifest,
        b=b.manifest,
        same_run=a.manifest == b.manifest,
        differences=[*differences(a.manifest, b.manifest), *files],
        contents=changed_files,
        damaged_a=a.damaged,
        damaged_b=b.damaged,
        margin=margin,
        blocks=list(blocks.values()),
        changes=changes,
        ended=[(one, other) for one, other in both if one["status"] != other["status"]],
        only=_only("A", cells_a, cells_b, "B") | _only("B", cells_b, cells_a, "A"),
        untimed=sum(one["status"] == other["status"] != "ok" for one, other in both),
        table=_table(cells_a, cells_b, changes),
    )


def notable(a: float, b: float) -> float | None:
    """Return b / a where both are known and it differs from 1 by more than NOTABLE; else None."""
    # An unknown value is NaN, for which every comparison is false.
    return b / a if a > 0 and abs(b / a - 1) > NOTABLE else None


def compile_s(cell: Row) -> float:
    """Return the seconds that the first launch spent on tracing, lowering and compiling."""
    return float(cell["trace_s"] + cell["lower_s"] + cell["compile_s"])


def _change(
    a: Row, b: Row, block_a: Comparison, block_b: Comparison, alpha: float, margin: float
) -> Change:
    arm = a["implementation"]
    step = unpaired(*(block.rounds.log_seconds(arm) for block in (block_b, block_a)))
    if step is None:
        raise ValueError(f"{a['cell']} is ok and has no samples")
    against = None
    if block_a.baseline == block_b.baseline != arm:
        one, other = (
            ratios(c.rounds, {arm: c.baseline}, c.process).get(arm) for c in (block_b, block_a)
        )
        if one is not None and other is not None:
            found = quotient(one, other)
            against = found if found.paired and found.error is not None else None
    return Change(
        a=a,
        b=b,
        is_baseline=block_a.baseline == block_b.baseline == arm,
        step=step,
        against_baseline=against,
        verdict=decide(against or step, alpha, margin),
        source="baseline" if against else "step time",
    )


def _only(
    run: str, own: Mapping[str, Row], others: Mapping[str, Row], other: str
) -> dict[tuple[str, str], list[Row]]:
    """Group cells that the other run lacks by the first of their parts that it lacks altogether."""
    has = {part for cell in others.values() for part in _parts(cell)}
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for name, cell in own.items():
        if name not in others:
            lacks = (f"{other} has no {part}" for part in _parts(cell) if part not in has)
            absence = next(lacks, f"{other} has other cells of the block")
            groups[run, absence].append(cell)
    return groups


def _parts(cell: Row) -> list[str]:
    """Name the parts of a cell: the implementation first, the block last."""
    return [
        f"implementation {cell['implementation']}",
        f"workload {cell['workload']}-{cell['size']}",
        *(f"{part} {cell[part]}" for part in ("options", "mesh", "batch", "block")),
    ]


def _table(
    cells_a: Mapping[str, Row], cells_b: Mapping[str, Row], changes: Sequence[Change]
) -> pd.DataFrame:
    by_name = {change.cell: change for change in changes}
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys([*cells_a, *cells_b]):
        row: dict[str, Any] = {"cell": name}
        for side, cell in (("a", cells_a.get(name, {})), ("b", cells_b.get(name, {}))):
            for key in ("status", "reason", "step_s", "baseline", "ratio", "key"):
                row[f"{key}_{side}"] = cell.get(key)
            row[f"compile_s_{side}"] = compile_s(cell) if cell else None
            row[f"memory_bytes_{side}"] = cell.get("memory_bytes")
        change = by_name.get(name)
        pairs = {"step": change.step, "against_baseline": change.against_baseline} if change else {}
        for key in ("step", "against_baseline"):
            found = ends(pairs.get(key))
            row |= dict(zip((key, f"{key}_low", f"{key}_high"), found, strict=True))
        row |= {
            "verdict": change.verdict.word if change else None,
            "verdict_from": change.source if change else None,
            "verdict_low": change.verdict.low if change else None,
            "verdict_high": change.verdict.high if change else None,
        }
        rows.append(row)
    return pd.DataFrame(rows)
