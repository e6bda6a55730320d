"""Outcomes of a run's challengers against its incumbent, and the record over all attempts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.analyse import cell_table
from bench.analyse.same_programs import Relation, relation
from bench.analyse.verdicts import Claim, compare
from bench.records.attempts import Attempt, Decision, Question
from bench.records.statuses import VerdictWord
from bench.records.store import Run

_DECISIONS: dict[VerdictWord, Decision] = {
    "faster": "keep", "same": "discard", "slower": "discard", "undecided": "undecided",
}  # fmt: skip


class Fared(NamedTuple):
    """The outcome of one challenger."""

    decision: Decision
    reason: str
    """Why there is no ratio; may be empty."""
    claim: Claim | None = None
    relation: Relation = "unknown"
    """Relation of its program to the incumbent's."""
    cells: tuple[Mapping[Any, Any], ...] = ()
    """Rows of Tables.cells of the challenger and of the incumbent, if both have a time."""

    @property
    def row(self) -> dict[str, Any]:
        """The fields that a ledger stores: see bench.records.attempts.Attempt."""
        if self.claim is None:
            return {"decision": self.decision, "reason": self.reason, "tested": False}
        ratio, verdict = self.claim.ratio, self.claim.verdict
        bounded = math.isfinite(verdict.high)
        return {
            "decision": self.decision,
            "reason": "the same program proved" if self.relation == "same" else "",
            "tested": True,
            "ratio": ratio.value,
            "low": verdict.low if bounded else None,
            "high": verdict.high if bounded else None,
            "rounds": ratio.rounds,
        }


def judge_attempts(
    run: Run, incumbent: str, challengers: Sequence[str], sharing: float
) -> dict[str, Fared]:
    """Decide about each challenger within the error that it may have.

    Args:
      run: a stored run of one block.
      incumbent: name of the arm that the others are compared with.
      challengers: names of the other arms.
      sharing: the number of comparisons that the error of the block's last look is divided among;
        their looks were taken with the same number.
    """
    tables = cell_table.build(run)
    cells = {row["implementation"]: row for row in tables.cells.to_dict("records")}
    failed = {
        row["implementation"]: row for row in run.cells.to_dict("records") if row["status"] != "ok"
    }  # in any launch
    block = tables.comparisons[0]
    opponents = dict.fromkeys(challengers, incumbent)
    alpha = block.alpha / sharing
    claims = compare(block.rounds, opponents, alpha, block.margin, block.process, block.programs)
    own, fared = cells[incumbent], dict[str, Fared]()
    for name in challengers:
        cell = failed.get(name, cells.get(name))
        if cell is None:
            fared[name] = Fared("undecided", "not measured")
        elif cell["status"] != "ok":
            fared[name] = Fared("discard", f"{cell['status']}: {cell['reason']}")
        elif own["status"] != "ok" or name not in claims:
            fared[name] = Fared(
                "undecided", f"the incumbent fails, {own['status']}: {own['reason']}"
            )
        else:
            claim, programs = claims[name], relation(cell, own)
            decision = _DECISIONS[claim.verdict.word]
            fared[name] = Fared(decision, "", claim, programs, (cell, own))
    return fared


def found(attempts: Sequence[Attempt]) -> list[bool]:
    """Return whether each test so far made a finding; attempts without a test are left out."""
    return [one.get("decision") == "keep" for one in attempts if one.get("tested", True)]


def standings(question: Question, attempts: Sequence[Attempt]) -> dict[str, float]:
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
    return [min(standings(question, attempts[:count]).values()) for count in counts]
