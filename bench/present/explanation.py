"""Why two cells of a run differ, as a sentence and a table on the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from bench.analyse.causes.attribution import Attribution
from bench.present.cause_sentences import called, only_one_transposes, reason, signed
from bench.records import numbers

if TYPE_CHECKING:
    from rich.console import Console

    from bench.analyse.causes.attribution import Cause

_WORTH_A_ROW = 0.01
"""Causes below this share of the difference, or of a hundredth of the step, share one row."""


@dataclass(frozen=True)
class Explanation:
    """Why two cells of a stored run differ."""

    run: str
    a: str
    b: str
    attribution: Attribution
    timed_ratio: float
    """Latency of A over that of B. A latency, like a traced step, includes waiting for the step."""

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        (block_a, _, name_a), (block_b, _, name_b) = (c.rpartition("/") for c in (self.a, self.b))
        names = (name_a, name_b) if block_a == block_b else (self.a, self.b)
        return reason(*names, self.attribution, self.timed_ratio).sentence


def show(console: Console, explanation: Explanation) -> None:
    """Print the sentence and the table of causes."""
    attribution = explanation.attribution
    gap = attribution.traced_a - attribution.traced_b
    worth = _WORTH_A_ROW * max(abs(gap), _WORTH_A_ROW * attribution.traced_b)
    table = Table(box=box.SIMPLE, caption=Text(_caption(explanation)), caption_justify="left")
    table.add_column("What", overflow="fold")
    table.add_column("Where", overflow="fold")
    for heading in ("A", "B", "A - B", "of it"):
        table.add_column(heading, justify="right", no_wrap=True)
    rest: list[Cause] = []
    for cause in attribution.causes:
        if cause.key.category != "idle" and abs(cause.difference) < worth:
            rest.append(cause)
            continue
        figures = _figures(cause.a.seconds, cause.b.seconds, gap)
        table.add_row(_what(cause), Text(cause.key.source), *figures)
    if rest:
        a, b = sum(cause.a.seconds for cause in rest), sum(cause.b.seconds for cause in rest)
        table.add_row(f"{len(rest)} others", "", *_figures(a, b, gap))
    whole = _figures(attribution.traced_a, attribution.traced_b, gap)
    table.add_row("step, as traced", "", *whole, style="bold")
    console.print(Text(explanation.sentence))
    console.print(table)


def _what(cause: Cause) -> Text:
    text = Text(called(cause.key))
    ops = cause.a.ops or cause.b.ops
    if ops and cause.key.category != "wait":
        text.append(f" {ops[0]}" + (f" and {len(ops) - 1} more" if ops[1:] else ""), style="dim")
    if cause.key.category not in {"collective", "control"}:
        text.append(f" {' '.join(cause.key.sizes)}", style="dim")
    side = only_one_transposes(cause)
    if side:
        text.append(f" (transposes in {side.upper()} only)", style="yellow")
    elif bool(cause.a.ops) != bool(cause.b.ops):
        text.append(f" (in {'A' if cause.a.ops else 'B'} only)")
    return text


def _figures(a: float, b: float, gap: float) -> list[str]:
    """Seconds of both, their difference, and its share of the whole difference."""
    return [
        numbers.si(a, "s") if a else numbers.MISSING,
        numbers.si(b, "s") if b else numbers.MISSING,
        signed(a - b),
        numbers.percent((a - b) / gap) if gap else numbers.MISSING,
    ]


def _caption(explanation: Explanation) -> str:
    found = explanation.attribution
    traced, untraced, timed = (
        f"{numbers.percent(abs(share))} {'more' if share >= 0 else 'less'}"
        for share in (found.gap, found.untraced - 1, explanation.timed_ratio - 1)
    )
    return (
        f"A is {explanation.a}, B is {explanation.b}, both from the run {explanation.run}. The "
        "columns are seconds per step and device while the profiler was recording, when A took "
        f"{traced} time than B. Just before, without a profiler, A took {untraced}; in the timed "
        f"rounds it took {timed}."
    )
