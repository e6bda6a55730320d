"""The outcome of a gate: every cell compared with the same cell at an earlier revision."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from bench.analyse import cell_table
from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import Ratio
from bench.analyse.verdicts import Verdict, compare
from bench.records.cells import base_of
from bench.records.rows import Manifest
from bench.records.step_programs import StepProgram
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


@dataclass(frozen=True)
class Case:
    """The outcome for one cell."""

    cell: str
    word: Word
    reason: str = ""
    """Why there is no ratio, or none that counts."""
    base_s: float | None = None
    """Seconds a step."""
    head_s: float | None = None
    ratio: Ratio | None = None
    """Head's time over the base's."""
    verdict: Verdict | None = None
    """The verdict behind `word`, if it is a verdict's."""
    rows: tuple[Mapping[Any, Any], ...] = ()
    """Rows of Tables.cells for the head and the base, where there is a verdict."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a gate."""

    cases: list[Case]
    """Most important cases first, then by name."""
    manifest: Manifest
    launches: int
    """The maximum over blocks."""
    floors: dict[str, Ratio | None]
    """By block, the ratio of two copies of one program, measured like head and base."""
    ended: str = ""
    """Why the run stopped before everything was measured; empty if it did not."""
    programs: Mapping[str, StepProgram] = field(default_factory=dict)
    """By cell."""

    @property
    def gate(self) -> dict[str, Any]:
        """The manifest's record of the gate: see bench.plan.base_revisions.Bases.record."""
        recorded: dict[str, Any] = self.manifest["config"]["regress"]
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


def judge(run: Run, ended: str = "") -> Outcome:
    """Compare every cell that a stored run's manifest names with its base.

    The error of a verdict is a share of the error of the last look at its block, so that all
    verdicts of the run share one error: see bench.analyse.verdicts. `ended` says why the run
    stopped before everything was measured, if it did.
    """
    tables = cell_table.build(run)
    cells: dict[str, Mapping[Any, Any]] = {r["cell"]: r for r in tables.cells.to_dict("records")}
    failed = {row["cell"]: row for row in run.cells.to_dict("records") if row["status"] != "ok"}
    # A head that fails in some launches is broken, if its base never fails.
    for name, row in failed.items():
        base = base_of(name)
        if cells[name]["status"] == "ok" and base in cells and base not in failed:
            cells[name] = row
    blocks = {comparison.name: comparison for comparison in tables.comparisons}
    names: list[str] = run.manifest["config"]["regress"]["cells"]
    cases = [
        _case(name, cells, blocks.get(name.rpartition("/")[0]), 1 / len(names)) for name in names
    ]
    return Outcome(
        cases=sorted(cases, key=lambda case: (WORDS.index(case.word), case.cell)),
        manifest=run.manifest,
        launches=max((c.launches for c in tables.comparisons), default=0),
        floors={c.name: c.floor for c in tables.comparisons if c.ranked},
        ended=ended,
        programs={row["cell"]: row["program"] for row in run.cell_rows if "program" in row},
    )


def _case(
    name: str, cells: Mapping[str, Mapping[Any, Any]], block: Comparison | None, share: float
) -> Case:
    head, base = cells.get(name), cells.get(base_of(name))
    if head is None or base is None or block is None:
        return Case(name, "undecided", NOT_MEASURED)
    right = head["status"] == "ok"
    if base["status"] == "ok" and not right:
        return Case(name, "broken", _why(head), base_s=base["step_s"])
    if base["status"] in _NO_STEP:
        word: Word = "fixed" if right else "neither"
        return Case(name, word, f"base: {_why(base)}", head_s=head["step_s"] if right else None)
    if base["status"] != "ok":
        return Case(name, "undecided", f"the base has no time: {_why(base)}")
    arm = str(head["implementation"])
    opponents, alpha = {arm: base_of(arm)}, share * block.alpha
    figures = block.margin, block.process, block.programs
    claim = compare(block.rounds, opponents, alpha, *figures)[arm]
    apart = "they did not fit into memory together, and were measured one after the other"
    return Case(
        cell=name,
        word=claim.verdict.word,
        reason="" if claim.ratio.paired else apart,
        base_s=base["step_s"],
        head_s=head["step_s"],
        ratio=claim.ratio,
        verdict=claim.verdict,
        rows=(head, base),
    )


def _why(cell: Mapping[Any, Any]) -> str:
    return f"{cell['status']}: {cell['reason']}"
