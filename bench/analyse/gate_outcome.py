"""From a gate's stored rows to its outcome."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from bench.analyse import cell_table
from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import Ratio
from bench.analyse.verdicts import compare
from bench.records.cells import base_of
from bench.records.rows import Manifest
from bench.records.store import Run

REGRESSION, UNDECIDED, BROKEN = 1, 2, 3
"""Exit codes beside 0."""

Word = Literal["broken", "slower", "undecided", "faster", "fixed", "same", "neither"]

WORDS: tuple[Word, ...] = get_args(Word)
"""Outcomes of a comparison, those that matter most first."""

NOT_MEASURED = "not measured"
"""Reason of a case that the run did not come to."""

_NO_STEP = ("wrong", "implausible", "unsupported")
"""Statuses that say of a base that there is nothing to be compared with. Others are accidents."""


@dataclass(frozen=True)
class Case:
    """What came of one cell."""

    cell: str
    word: Word
    reason: str = ""
    """Why there is no ratio, or none that counts."""
    base_s: float | None = None
    """Seconds a step."""
    head_s: float | None = None
    ratio: Ratio | None = None
    """Head's time over the base's."""
    to_decide_s: float = 0.0
    """Measuring time of the block that would probably decide it, if it is undecided."""


@dataclass(frozen=True)
class Outcome:
    """What came of a gate."""

    cases: list[Case]
    """Those that matter most first, otherwise by name."""
    manifest: Manifest
    launches: int
    """Most that a block had."""
    floors: dict[str, Ratio | None]
    """By block, two copies of one program against each other, as head and base are."""
    ended: str = ""
    """Why not everything was measured; empty if everything was."""

    @property
    def gate(self) -> dict[str, Any]:
        """What the manifest says of it: see bench.plan.base_revisions.Bases.record."""
        recorded: dict[str, Any] = self.manifest["config"]["regress"]
        return recorded

    def of(self, *words: Word) -> list[Case]:
        """Cases with one of these words."""
        return [case for case in self.cases if case.word in words]

    @property
    def code(self) -> int:
        """Exit code of a gate that was not cut short."""
        if self.of("broken"):
            return BROKEN
        if self.of("slower"):
            return REGRESSION
        return UNDECIDED if len(self.of("undecided")) > self.gate["allow_undecided"] else 0


def judge(run: Run, ended: str = "") -> Outcome:
    """Compare every cell that was to be compared with its base.

    The error of a verdict is a share of what the last look at its block may spend, so that all
    verdicts of the run are held to one error together: see bench.analyse.verdicts.

    Args:
      run: as stored; its manifest names the cells.
      ended: why not everything was measured, if so.
    """
    found = cell_table.build(run)
    cells = {row["cell"]: row for row in found.cells.to_dict("records")}
    failed = run.cells[run.cells["status"] != "ok"]
    # A head that fails in some launches is broken, if its base does in none.
    cells |= {
        row["cell"]: row
        for row in failed.to_dict("records")
        if cells[row["cell"]]["status"] == "ok"
        and base_of(row["cell"]) in cells
        and base_of(row["cell"]) not in set(failed["cell"])
    }
    blocks = {comparison.name: comparison for comparison in found.comparisons}
    names: list[str] = run.manifest["config"]["regress"]["cells"]
    words = WORDS
    cases = [
        _case(name, cells, blocks.get(name.rpartition("/")[0]), 1 / len(names)) for name in names
    ]
    return Outcome(
        cases=sorted(cases, key=lambda case: (words.index(case.word), case.cell)),
        manifest=run.manifest,
        launches=max((c.launches for c in found.comparisons), default=0),
        floors={c.name: c.floor for c in found.comparisons if c.ranked},
        ended=ended,
    )


def _case(
    name: str,
    cells: Mapping[str, Mapping[Hashable, Any]],
    block: Comparison | None,
    share: float,
) -> Case:
    head, base = cells.get(name), cells.get(base_of(name))
    if head is None or base is None or block is None:
        return Case(name, "undecided", NOT_MEASURED)
    if base["status"] == "ok" and head["status"] != "ok":
        return Case(name, "broken", _why(head), base["step_s"])
    if base["status"] in _NO_STEP:
        right = head["status"] == "ok"
        word: Word = "fixed" if right else "neither"
        return Case(name, word, f"base: {_why(base)}", None, head["step_s"] if right else None)
    if base["status"] != "ok":
        return Case(name, "undecided", f"there is no time of the base: {_why(base)}")
    return _compared(name, head, base, block, share)


def _compared(
    name: str,
    head: Mapping[Hashable, Any],
    base: Mapping[Hashable, Any],
    block: Comparison,
    share: float,
) -> Case:
    arm = str(head["implementation"])
    opponents = {arm: base_of(arm)}
    claim = compare(block.rounds, opponents, share * block.alpha, block.margin)[arm]
    word: Word = claim.verdict.word
    apart = "they did not fit into memory together, and were measured one after the other"
    return Case(
        cell=name,
        word=word,
        reason="" if claim.ratio.paired else apart,
        base_s=base["step_s"],
        head_s=head["step_s"],
        ratio=claim.ratio,
        to_decide_s=block.seconds_to_decide(claim),
    )


def _why(cell: Mapping[Hashable, Any]) -> str:
    return f"{cell['status']}: {cell['reason']}"
