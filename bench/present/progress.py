"""The progress display of a run: live on a terminal, one line per launch elsewhere."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bench.analyse.verdicts import Claim
from bench.present.remaining_time import Remaining
from bench.present.terminal import live
from bench.records.cells import Block
from bench.records.messages import PhaseEvent
from bench.records.numbers import clock
from bench.records.statuses import FAILURES, STATUSES, VERDICT_STYLES

STYLES = {name: status.style for name, status in STATUSES.items()}
"""Colours of the statuses, in the order in which they are listed."""

REFRESHES_PER_S = 1
"""Low, because each refresh occupies a core and so disturbs the measurement."""

_BAR_COLUMNS = 60
"""A narrower terminal has no room for a bar."""

_NAME_COLUMNS = 12
"""The minimum width of a block's name on a short line."""


class Progress:
    """Shows how far the run is, its current activity, its verdicts, and the time left.

    rich renders it as four lines, none of which is ever wrapped.
    """

    def __init__(self, console: Console, launches: int, remaining: Remaining) -> None:
        self._console = console
        self._live = live(console)
        self._remaining = remaining
        self._to_do, self._done = launches, 0
        self._started = self._began = time.monotonic()
        self._block, self._launch, self._phase = "starting", "", ""
        self._verdicts: dict[Block, Mapping[str, Claim]] = {}
        self._ended: Counter[str] = Counter()
        self._display = Live(
            self, console=console, transient=True, refresh_per_second=REFRESHES_PER_S
        )

    def __enter__(self) -> Self:
        if self._live:
            self._display.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()  # does nothing if it was not started

    def begin(self, block: Block, launch: int, stages: Mapping[str, float]) -> None:
        """Show that a launch begins, with estimated seconds of its parts."""
        self._began = time.monotonic()
        self._remaining.begin(stages)
        self._block, self._launch, self._phase = block.name, f"launch {launch + 1}", ""

    def phase(self, event: PhaseEvent) -> None:
        """Show the phase that the worker has begun."""
        self._remaining.phase(event)
        of = f" {event['done']}/{event['of']}" if event["of"] else ""
        self._phase = f": {event['phase']}{of} {event['arm']}"

    def end(
        self, block: Block, launch: int, statuses: Iterable[str], verdicts: Mapping[str, Claim]
    ) -> None:
        """Show that a launch, counted from 0, has ended; verdicts are over all launches so far."""
        seconds = time.monotonic() - self._began
        counts = Counter(statuses)
        self._remaining.end(seconds)
        self._verdicts[block] = verdicts
        self._ended += counts
        self._done += 1
        name = Text(f"{block.name} launch {launch + 1}" if launch else block.name)
        line = Text("  ").append_text(_listed(counts, STYLES))
        if verdicts:
            decided = sum(claim.verdict.decided for claim in verdicts.values())
            line.append(f", {decided} of {len(verdicts)} decided")
        line.append(f"  {clock(seconds)}", style="dim")
        if self._live:
            name.truncate(
                max(self._console.width - line.cell_len, _NAME_COLUMNS), overflow="ellipsis"
            )
            self._console.print(name + line, no_wrap=True, overflow="ellipsis")
        else:
            self._console.print(name + line, soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the progress, the block, its worker's phase, and the verdicts."""
        now = time.monotonic()
        of = max(self._to_do, self._done)  # A budget may add launches that were not planned.
        times = f"{timedelta(seconds=int(now - self._started))}, {self._remaining.words(now)}"
        if options.max_width < _BAR_COLUMNS:
            yield _line(Text(f"{self._done}/{of}  {times}"))
        else:
            overall = Table.grid(expand=True, padding=(0, 2, 0, 0), pad_edge=False)
            overall.add_column(no_wrap=True)
            overall.add_column(ratio=1)
            overall.add_column(no_wrap=True)
            bar = ProgressBar(total=of or 1, completed=self._done)
            overall.add_row(f"{self._done} of {of} launches", bar, times)
            yield overall
        yield _line(Text(self._block, style="bold"))
        yield _line(Text(self._launch + self._phase))
        yield _line(self._decided())

    def _decided(self) -> Text:
        words: Counter[str] = Counter(
            claim.verdict.word for claims in self._verdicts.values() for claim in claims.values()
        )
        text = _listed(words, VERDICT_STYLES) if words else Text("nothing is compared yet", "dim")
        failed = _listed(self._ended, {status: STYLES[status] for status in FAILURES})
        return text.append("; ").append_text(failed) if failed else text


def _line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _listed(counts: Mapping[str, int], styles: Mapping[str, str]) -> Text:
    """Return `3 ok, 1 wrong`: nonzero counts, in the order and colours of the styles."""
    parts = [
        Text(f"{counts[word]} {word}", style) for word, style in styles.items() if counts[word]
    ]
    return Text(", ").join(parts)
