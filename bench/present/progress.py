"""The progress display of a run: live on a terminal, one line per launch elsewhere."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from bench.analyse.verdicts import Claim
from bench.present.terminal import live
from bench.records.cells import Block
from bench.records.messages import PhaseEvent
from bench.records.numbers import clock
from bench.records.statuses import FAILURES, STATUSES, VERDICT_STYLES


class Remaining:
    """The remaining time of a run: estimates, scaled by the pace of its launches so far.

    `seconds` is the estimate for all planned launches, and `budget_s` the limit for all measuring.
    With `more`, launches beyond the planned ones may follow until intervals are narrow enough.
    """

    def __init__(
        self, seconds: float, budget_s: float | None = None, *, more: bool = False
    ) -> None:
        self._left = seconds
        """Estimate for the launches that have not begun."""
        self._launch = 0.0
        """Estimate for the current launch; 0 between launches."""
        self._budget_s = budget_s
        self._more = more
        self._started = self._began = time.monotonic()
        self._estimated = self._took = 0.0
        """Seconds of completed launches."""

    def begin(self, seconds: float) -> None:
        """Record the start of a launch with this estimate."""
        self._launch, self._began = seconds, time.monotonic()
        self._left = max(self._left - seconds, 0.0)

    def end(self) -> float:
        """Record the end of the launch, and return its duration in seconds."""
        took = time.monotonic() - self._began
        self._estimated, self._took = self._estimated + self._launch, self._took + took
        self._launch = 0.0
        return took

    def seconds(self, now: float) -> float:
        """Return the seconds left at a time.monotonic time; 0 if the estimate is exceeded."""
        pace = self._took / self._estimated if self._estimated else 1.0
        return pace * self._left + max(pace * self._launch - (now - self._began), 0.0)

    def words(self, now: float) -> str:
        """Return the time left in words, such as `about 7 min left`."""
        if self._budget_s is not None:
            return f"at most {clock(max(self._budget_s - (now - self._started), 0.0))} left"
        left = self.seconds(now)
        if round(left) == 0:
            return "over the estimate" if self._launch else "ending"
        return f"{'at least' if self._more else 'about'} {clock(left)} left"


STYLES = {name: status.style for name, status in STATUSES.items()}
"""Colours of the statuses, in the order in which they are listed."""


class Progress:
    """A display of how far the run has come, its activity, its verdicts and the time left.

    It is the engine's monitor: see bench.measure.engine.Monitor. `estimate` returns the seconds of
    a launch, for its block, arms and number. rich renders it as four lines, none of which is ever
    wrapped.
    """

    def __init__(
        self,
        console: Console,
        launches: int,
        remaining: Remaining,
        estimate: Callable[[Block, Sequence[str], int], float],
    ) -> None:
        self._console = console
        self._estimate = estimate
        self._remaining = remaining
        self._to_do, self._done = launches, 0
        self._started = time.monotonic()
        self._block, self._launch, self._phase = "starting", "", ""
        self._verdicts: dict[Block, Mapping[str, Claim]] = {}
        self._ended: Counter[str] = Counter()
        # Each refresh occupies a core and so disturbs the measurement.
        self._display = Live(self, console=console, transient=True, refresh_per_second=1)

    def __enter__(self) -> Self:
        if live(self._console):
            self._display.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()  # does nothing if it was not started

    def note(self, text: str) -> None:
        """Print a remark above the progress."""
        self._console.print(Text(text, style="yellow"), soft_wrap=True)

    def begin(self, block: Block, launch: int, arms: Sequence[str]) -> None:
        """Show that a launch begins."""
        self._remaining.begin(self._estimate(block, arms, launch))
        self._block, self._launch, self._phase = block.name, f"launch {launch + 1}", ""

    def phase(self, event: PhaseEvent) -> None:
        """Show the phase that the worker has begun."""
        of = f" {event['done']}/{event['of']}" if event["of"] else ""
        self._phase = f": {event['phase']}{of} {event['arm']}"

    def end(
        self, block: Block, launch: int, statuses: Iterable[str], verdicts: Mapping[str, Claim]
    ) -> None:
        """Show that a launch, counted from 0, has ended; verdicts are over all launches so far."""
        seconds, counts = self._remaining.end(), Counter(statuses)
        self._verdicts[block] = verdicts
        self._ended += counts
        self._done += 1
        name = Text(f"{block.name} launch {launch + 1}" if launch else block.name)
        line = Text("  ").append_text(_listed(counts, STYLES))
        if verdicts:
            decided = sum(claim.verdict.decided for claim in verdicts.values())
            line.append(f", {decided} of {len(verdicts)} decided")
        line.append(f"  {clock(seconds)}", style="dim")
        self._console.print(name + line, soft_wrap=not live(self._console))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the progress, the block, its worker's phase, and the verdicts."""
        now = time.monotonic()
        of = max(self._to_do, self._done)  # A budget may add launches that were not planned.
        times = f"{timedelta(seconds=int(now - self._started))}, {self._remaining.words(now)}"
        columns = Column(no_wrap=True), Column(ratio=1), Column(no_wrap=True)
        overall = Table.grid(*columns, expand=True, padding=(0, 2, 0, 0), pad_edge=False)
        bar = ProgressBar(total=of or 1, completed=self._done)
        overall.add_row(f"{self._done} of {of} launches", bar, times)
        yield overall
        lines = [Text(self._block, "bold"), Text(self._launch + self._phase), self._decided()]
        yield Text("\n", no_wrap=True, overflow="ellipsis").join(lines)

    def _decided(self) -> Text:
        words: Counter[str] = Counter(
            claim.verdict.word for claims in self._verdicts.values() for claim in claims.values()
        )
        text = _listed(words, VERDICT_STYLES) if words else Text("nothing is compared yet", "dim")
        failed = _listed(self._ended, {status: STYLES[status] for status in FAILURES})
        return text.append("; ").append_text(failed) if failed else text


def _listed(counts: Mapping[str, int], styles: Mapping[str, str]) -> Text:
    """Return `3 ok, 1 wrong`: nonzero counts, in the order and colours of the styles."""
    parts = [
        Text(f"{counts[word]} {word}", style) for word, style in styles.items() if counts[word]
    ]
    return Text(", ").join(parts)
