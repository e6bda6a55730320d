"""Outcomes of a gate, which compares every cell with its base, and of a referee's attempts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from bench.analyse import cell_table
from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison, Row
from bench.analyse.verdicts import Claim
from bench.records.attempts import Attempt, Decision, Question
from bench.records.cells import base_of
from bench.records.statuses import VerdictWord
from bench.records.store import Run

REGRESSION, UNDECIDED, BROKEN = 1, 2, 3
"""Exit codes beside 0."""

Word = Literal["broken", "slower", "undecided", "faster", "fixed", "same", "neither"]

WORDS: tuple[Word, ...] = get_args(Word)
"""Outcomes of a comparison, most important first."""

NOT_MEASURED = "not measured"
"""Reason for a case that the run did not reach."""

_NO_STEP = ("wrong", "implausible", "unsupported")
"""Statuses of a base that leave no step to compare with. Other failures are accidents."""

_DECISIONS: dict[VerdictWord, Decision] = {
    "faster": "keep", "same": "discard", "slower": "discard", "undecided": "undecided",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """The outcome for one cell."""

    cell: str
    word: Word
    reason: str = ""
    """Why there is no ratio, or none that counts."""
    head: Mapping[Any, Any] = field(default_factory=dict)
    """The head's row of Tables.cells; empty if one of the two was not measured."""
    base: Mapping[Any, Any] = field(default_factory=dict)
    """That of the base."""
    claim: Claim | None = None
    """The head's time over the base's, and its verdict, whose word is `word`."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a gate."""

    cases: list[Case]
    """Most important cases first, then by name."""
    run: Run
    blocks: list[Comparison]
    ended: str
    """Why the run stopped before everything was measured; empty if it did not."""

    @property
    def gate(self) -> dict[str, Any]:
        """The manifest's record of the gate: see bench.plan.base_revisions.Bases.record."""
        recorded: dict[str, Any] = self.run.manifest["config"]["regress"]
        return recorded

    def of(self, *words: Word) -> list[Case]:
        """Select cases by their words."""
        return [case for case in self.cases if case.word in words]

    @property
    def code(self) -> int:
        """Exit code of a gate that was not cut short."""
        if self.of("broken"):
            return BROKEN
        if self.of("slower"):
            return REGRESSION
        return UNDECIDED if len(self.of("undecided")) > self.gate["allow_undecided"] else 0


def judge(run: Run, tables: Tables, ended: str = "") -> Outcome:
    """Compare every cell that a stored run's manifest names with its base, by the run's tables.

    All verdicts of the run share one error: see bench.analyse.verdicts. `ended` says why the run
    stopped before everything was measured, if it did.
    """
    cells: dict[str, Row] = {row["cell"]: row for row in tables.rows}
    failed = {row["cell"]: row for row in run.last_cell_rows if row["status"] != "ok"}
    # A head that fails in some launches is broken, if its base never fails.
    for name, row in failed.items():
        base = base_of(name)
        if cells[name]["status"] == "ok" and base in cells and base not in failed:
            cells[name] = row
    blocks = {comparison.name: comparison for comparison in tables.comparisons}
    names: list[str] = run.manifest["config"]["regress"]["cells"]
    cases = [_case(n, cells, blocks.get(n.rpartition("/")[0]), len(names)) for n in names]
    cases.sort(key=lambda case: (WORDS.index(case.word), case.cell))
    return Outcome(cases, run, tables.comparisons, ended)


def _case(name: str, cells: Mapping[str, Row], block: Comparison | None, sharing: int) -> Case:
    head, base = cells.get(name), cells.get(base_of(name))
    if head is None or base is None or block is None:
        return Case(name, "undecided", NOT_MEASURED)
    right = head["status"] == "ok"
    if base["status"] == "ok" and not right:
        return Case(name, "broken", _why(head), head, base)
    if base["status"] in _NO_STEP:
        return Case(name, "fixed" if right else "neither", f"base: {_why(base)}", head, base)
    if base["status"] != "ok":
        return Case(name, "undecided", f"the base has no time: {_why(base)}", head, base)
    if bool(head["approximate"]) != bool(base["approximate"]):
        which = "head" if head["approximate"] else "base"
        return Case(name, "undecided", f"only the step of the {which} is approximate", head, base)
    arm = str(head["implementation"])
    claim = block.judged(arm, base_of(arm), sharing)
    reason = "" if claim.ratio.paired else "they ran in processes of their own, one after the other"
    return Case(name, claim.verdict.word, reason, head, base, claim)


def _why(cell: Mapping[Any, Any]) -> str:
    return f"{cell['status']}: {cell['reason']}"


class Ruling(NamedTuple):
    """The outcome of one challenger."""

    decision: Decision
    reason: str
    """Why there is no ratio; may be empty."""
    claim: Claim | None = None
    cells: tuple[Mapping[Any, Any], ...] = ()
    """Rows of Tables.cells of the challenger and of the incumbent, if both have a time."""

    @property
    def row(self) -> dict[str, Any]:
        """The fields that a ledger stores: see bench.records.attempts.Attempt."""
        row: dict[str, Any] = {"decision": self.decision, "reason": self.reason, "tested": False}
        row |= dict.fromkeys(("ratio", "low", "high", "rounds"))
        if self.claim is None:
            return row
        ratio, verdict = self.claim.ratio, self.claim.verdict
        if verdict.proved:
            row["reason"] = "proved to be the same program"
        if math.isfinite(verdict.high):
            row |= {"low": verdict.low, "high": verdict.high}
        return row | {"tested": not verdict.proved, "ratio": ratio.value, "rounds": ratio.rounds}


def judge_attempts(
    run: Run, incumbent: str, challengers: Sequence[str], sharing: float
) -> dict[str, Ruling]:
    """Decide about each challenger in a run of one block.

    `sharing` is the number of comparisons among which the error of the block's looks is divided, as
    it was when the looks were taken.
    """
    tables = cell_table.build(run)
    cells = {row["implementation"]: row for row in tables.rows}
    # Those that failed in any launch.
    failed = {row["implementation"]: row for row in run.last_cell_rows if row["status"] != "ok"}
    block = tables.comparisons[0]
    own, rulings = cells[incumbent], dict[str, Ruling]()
    for name in challengers:
        cell = failed.get(name, cells.get(name))
        if cell is None:
            rulings[name] = Ruling("undecided", NOT_MEASURED)
        elif cell["status"] != "ok":
            rulings[name] = Ruling("discard", _why(cell))
        elif cell["approximate"] and not own["approximate"]:
            rulings[name] = Ruling("discard", f"its step is approximate: {cell['approximate']}")
        elif own["status"] != "ok":
            rulings[name] = Ruling("undecided", f"the incumbent fails, {_why(own)}")
        else:
            claim = block.judged(name, incumbent, sharing)
            rulings[name] = Ruling(_DECISIONS[claim.verdict.word], "", claim, (cell, own))
    return rulings


def made_findings(attempts: Sequence[Attempt]) -> list[bool]:
    """Return whether each test so far made a finding; attempts without a test are left out."""
    return [one.get("decision") == "keep" for one in attempts if one.get("tested", True)]


def relative_times(question: Question, attempts: Sequence[Attempt]) -> dict[str, float]:
    """Return each incumbent's step time relative to the first incumbent's, by content hash.

    The values are products of estimated ratios, each against the incumbent of its attempt.
    """
    known = {question["incumbent"]: 1.0}
    for one in attempts:
        ratio, before = one.get("ratio"), known.get(one["incumbent"])
        if one.get("decision") == "keep" and ratio is not None and before is not None:
            known[one["challenger"]] = ratio * before
    return known


def record(question: Question, attempts: Sequence[Attempt]) -> list[float]:
    """Return the shortest step time after each attempt, relative to the first incumbent's."""
    counts = range(1, len(attempts) + 1)
    return [min(relative_times(question, attempts[:count]).values()) for count in counts]
