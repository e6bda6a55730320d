"""The last words on the terminal: what was fastest in each block, and what failed. No jax."""

from __future__ import annotations

from collections import Counter

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench import statistics, store
from bench.cells import STATUSES
from bench.progress import STYLES
from bench.rows import TWIN

FAILED = ("wrong", "oom", "timeout", "crashed")


def print_summary(console: Console, run: store.Run) -> None:
    """Print the table, the failures and the counts."""
    for part in (_table(run), _failures(run), _counts(run)):
        if part is not None:
            console.print(part)


def _table(run: store.Run) -> RenderableType | None:
    baseline = run.manifest["config"]["baseline"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("block", overflow="fold")
    table.add_column("fastest", style="bold", overflow="fold")
    table.add_column("ms/step", justify="right", no_wrap=True)
    table.add_column(f"vs {baseline}", justify="right", no_wrap=True)
    for block in dict.fromkeys(run.blocks["block"]):
        samples = run.samples[run.samples["block"] == block]
        arms = [arm for arm in dict.fromkeys(samples["arm"]) if arm != TWIN]
        spreads = {arm: statistics.spread(samples, arm, "throughput_ns") for arm in arms}
        medians = {arm: spread.median for arm, spread in spreads.items() if spread is not None}
        if not medians:
            table.add_row(block, "-", "-", "-")
            continue
        fastest = min(medians, key=lambda arm: medians[arm])
        table.add_row(
            block, fastest, f"{medians[fastest] * 1e3:.3g}", _speed(samples, baseline, fastest)
        )
    return table if table.row_count else None


def _speed(samples: pd.DataFrame, baseline: str, fastest: str) -> str:
    """Steps of the fastest for each step of the baseline, with the interval where there is one."""
    if fastest == baseline:
        return "1 (itself)"
    ratio = statistics.ratio(samples, baseline, fastest)
    if ratio is None:
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}x"
    return f"{ratio.value:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"


def _failures(run: store.Run) -> RenderableType | None:
    lines = []
    for row in run.cells.to_dict("records"):
        if row["status"] in FAILED:
            line = Text()
            line.append(row["status"], style=STYLES[row["status"]])
            line.append(f"  {row['cell']}\n")
            line.append("\n".join(f"  {part}" for part in row["reason"].splitlines()), style="dim")
            lines.append(line)
    return Group("", *lines) if lines else None


def _counts(run: store.Run) -> RenderableType:
    counts = Counter(run.cells["status"])
    parts = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
    return Text(f"\n{len(run.cells)} cells: {', '.join(parts) or 'none'}")
