"""Comparison of two runs: their settings, and their cells, with a verdict on each change.

Every ratio is B over A: below 1, B is faster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import pandas as pd

from bench.analyse import cell_table
from bench.analyse.comparisons import Comparison, Row
from bench.analyse.ratio_intervals import Ratio, between_runs, columns, quotient, ratios
from bench.analyse.verdicts import ALPHA, Verdict, decide, margin_of
from bench.records import numbers
from bench.records.rows import Manifest
from bench.records.store import Run

NOTABLE = 0.01
"""Relative change of compile time or memory above which it is shown."""

Kind = Literal["machine", "versions", "environment", "code", "options"]

OPTIONS = (
    *("baseline", "launches", "rounds", "seconds", "margin", "target_ci", "budget", "inputs"),
    *("ablations", "isolated", "checkpoints", "profile_steps", "train_steps"),
)
"""Resolved options that affect how a cell is measured or judged. Workloads, meshes, batches,
precisions and implementations are part of a cell's name instead."""

UNKNOWN = "unknown"
ABSENT = {"environment": "not set", "options": "not set"}
"""By kind, what is said of a property that a run lacks; UNKNOWN for others."""


@dataclass(frozen=True)
class Difference:
    """One property that differs between two runs."""

    kind: Kind
    name: str
    a: str
    b: str


@dataclass(frozen=True)
class Change:
    """A cell that has a time in both runs."""

    cell: str
    block: str
    implementation: str
    a: Row
    b: Row
    step: Ratio
    """Step time in B over that in A, not paired."""
    against_baseline: Ratio | None
    """Ratio to the baseline in B over that in A. None for the baseline itself, and if the runs have
    no common baseline or one of them did not measure the two side by side."""
    verdict: Verdict
    source: Literal["baseline", "step time"]
    """The quantity that the verdict is about."""

    @property
    def compile(self) -> float | None:
        """Compile time in B over that in A, where it is notable and neither or both are cached."""
        cached = (self.a["cache_hits"] > 0) == (self.b["cache_hits"] > 0)
        return notable(compile_s(self.a), compile_s(self.b)) if cached else None

    @property
    def memory(self) -> float | None:
        """Memory in B over that in A, where it is notable."""
        return notable(self.a["memory_bytes"], self.b["memory_bytes"])


@dataclass(frozen=True)
class RunComparison:
    """Comparison of run B with run A."""

    a: Run
    b: Run
    differences: list[Difference]
    margin: float
    blocks: list[tuple[Comparison, Comparison]]
    """Blocks that both runs have, in the report's order."""
    changes: list[Change]
    """Block by block, in the same order."""
    ended: list[tuple[Row, Row]]
    """Cells that ended differently, in A and in B."""
    only: dict[str, list[Row]]
    """Cells of one run only, by that run: `A` or `B`."""
    table: pd.DataFrame
    """One row per cell of either run, as in `compare.csv`."""


def compare(a: Run, b: Run, margin: float | None = None) -> RunComparison:
    """Compare two runs; the margin defaults to the larger of the runs' own."""
    found_a, found_b = cell_table.build(a), cell_table.build(b)
    cells_a, cells_b = ({row["cell"]: row for row in found.rows} for found in (found_a, found_b))
    blocks_b = {block.name: block for block in found_b.comparisons}
    blocks = {c.name: (c, blocks_b[c.name]) for c in found_a.comparisons if c.name in blocks_b}
    if margin is None:
        margin = max(margin_of(run.manifest) for run in (a, b))
    both = [(cell, cells_b[name]) for name, cell in cells_a.items() if name in cells_b]
    timed = [(one, other) for one, other in both if one["status"] == other["status"] == "ok"]
    # Bonferroni's inequality over the table: at most ALPHA of comparisons contain a wrong verdict.
    alpha = ALPHA / max(1, len(timed))
    changes = [_change(*pair, *blocks[pair[0]["block"]], alpha, margin) for pair in timed]
    return RunComparison(
        a=a,
        b=b,
        differences=differences(a.manifest, b.manifest),
        margin=margin,
        blocks=list(blocks.values()),
        changes=changes,
        ended=[(one, other) for one, other in both if one["status"] != other["status"]],
        only={
            run: [cell for name, cell in own.items() if name not in others]
            for run, own, others in (("A", cells_a, cells_b), ("B", cells_b, cells_a))
        },
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
    arm, both = a["implementation"], (block_b, block_a)
    step = between_runs(*(block.rounds.log_seconds(arm) for block in both))
    if step is None:
        raise ValueError(f"{a['cell']} is ok and has no samples")
    against = None
    if block_a.baseline == block_b.baseline != arm:
        one, other = (ratios(c.rounds, {arm: c.baseline}, c.process).get(arm) for c in both)
        if one is not None and other is not None:
            found = quotient(one, other)
            against = found if found.paired and found.error is not None else None
    return Change(
        **{part: a[part] for part in ("cell", "block", "implementation")},
        a=a,
        b=b,
        step=step,
        against_baseline=against,
        verdict=decide(against or step, alpha, margin),
        source="baseline" if against else "step time",
    )


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
        row |= {
            **columns("step", change.step if change else None),
            **columns("against_baseline", change.against_baseline if change else None),
            "verdict": change.verdict.word if change else None,
            "verdict_from": change.source if change else None,
            "verdict_low": change.verdict.low if change else None,
            "verdict_high": change.verdict.high if change else None,
        }
        rows.append(row)
    return pd.DataFrame(rows)


def differences(a: Manifest, b: Manifest) -> list[Difference]:
    """Return the differences between two runs, machines first."""
    one, other = _recorded(a), _recorded(b)
    return list(chain.from_iterable(_differing(kind, one[kind], other[kind]) for kind in one))


def _recorded(manifest: Manifest) -> dict[Kind, Mapping[str, Any]]:
    """Return the settings of a run by kind and name; None where unknown."""
    git, host, shares = manifest["git"], manifest["host"], {"margin", "target_ci"}
    changes = " with uncommitted changes" if git.get("dirty") else ""
    memory = manifest["device_memory_bytes"], host.get("memory_bytes")
    # Rounded, because it varies by a few pages from boot to boot.
    device, own = (numbers.bytes_(size) if size else None for size in memory)
    return {
        "machine": {
            **hardware(manifest),
            "Operating system": host.get("os"),
            "Device memory": device,
            "Host memory": own,
        },
        "versions": manifest["versions"],
        "environment": manifest["environment"],
        "code": {"Commit": f"{git.get('commit') or UNKNOWN}{changes}"},
        "options": {
            key.replace("_", " ").capitalize(): numbers.percent(float(value))
            if key in shares
            else _listed(value)
            for key in OPTIONS
            if (value := manifest["config"].get(key)) is not None and (value or key in shares)
        },
    }


def other_files(a: Run, b: Run) -> list[str]:
    """Name the implementations and workloads of both runs whose files differ: `workload mlp`.

    Files that only one run lists do not count: a package may come from a folder of PYTHONPATH.
    Whatever imports another file than before has changed itself.
    """
    files_b = _files(b)
    return [
        name
        for name, own in _files(a).items()
        if any(files_b.get(name, {}).get(file, digest) != digest for file, digest in own.items())
    ]


def _files(run: Run) -> dict[str, dict[str, str]]:
    """Return file hashes by implementation and workload; functions that were raced have none."""
    rows: Sequence[Mapping[str, Any]] = run.last_cell_rows
    return {
        f"{part} {row[part]}": hashes
        for row in rows
        for part, hashes in row.get("sources", {}).items()
    }


def _differing(kind: Kind, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    def text(value: Any) -> str:
        return ABSENT.get(kind, UNKNOWN) if value is None else str(value)

    both = [Difference(kind, key, text(a.get(key)), text(b.get(key))) for key in {**a, **b}]
    return [each for each in both if each.a != each.b]


def hardware(manifest: Manifest) -> dict[str, Any]:
    """Return the properties that identify a run's hardware, by name; None if unknown."""
    host = manifest["host"]
    return {
        "Platform": manifest["platform"],
        "Device": manifest["device_kind"],
        "Devices": manifest["device_count"],
        "Processor": host.get("cpu"),
        "Physical cores": host.get("physical_cores"),
        "Usable cores": host.get("usable_cores"),
    }


def _listed(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, list) else value
