"""The summary in words: what is fastest, by how much, how sure, and what to be careful about."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import peaks, statistics
from bench.report import numbers, tables
from bench.report.tables import IMPLAUSIBLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from bench.report.tables import Comparison, Tables
    from bench.rows import Manifest
    from bench.statistics import Ratio

WIDE_FLOOR = 0.02
"""A noise floor wider than the default margin of a verdict is worth a caveat."""

STATUS_WORDS = {
    "ok": "ok",
    "wrong": "wrong",
    "unsupported": "unsupported",
    "oom": "out of memory",
    "timeout": "timed out",
    "crashed": "crashed",
    IMPLAUSIBLE: "implausible",
}


@dataclass(frozen=True)
class Verdict:
    """What one block showed."""

    comparison: Comparison
    leaders: list[str]
    """The fastest, or all that could not be told from it; empty if nothing could be ranked."""
    text: str


@dataclass(frozen=True)
class Caveat:
    """A reason to read some numbers with care."""

    title: str
    text: str


def verdict(comparison: Comparison, cells: pd.DataFrame) -> Verdict:
    """Rank the block's arms that ran side by side, and say how sure that is."""
    ranked = tables.ranked(cells, comparison.name)
    beside = list(ranked.loc[ranked["interleaved"], "implementation"])
    apart = list(ranked.loc[~ranked["interleaved"], "implementation"])
    text, leaders = _rank(comparison, beside, dict(zip(ranked["implementation"], ranked["step_s"],
                                                       strict=True)))  # fmt: skip
    if apart:
        text += f" Not ranked, because measured apart: {listing(apart)}."
    return Verdict(comparison, leaders, text)


def _rank(
    comparison: Comparison, beside: Sequence[str], times: dict[str, float]
) -> tuple[str, list[str]]:
    if not beside:
        return "Nothing here has times that can be compared.", []
    first, *others = beside
    time = f"{numbers.si(times[first], 's')} a step"
    if not others:
        return f"{time}; nothing to compare it with.", []
    found = {name: _against(comparison, first, name) for name in others}
    tied = [name for name, r in found.items() if not statistics.resolved(r, comparison.floor)]
    beaten = [name for name in others if name not in tied]
    named = dict.fromkeys([*beaten[:1], *(n for n in beaten if n == comparison.baseline)])
    sentences = [f"{first} took {time}." if tied else f"{time}."]
    if first == comparison.baseline:
        sentences.append("It is the baseline.")
    if tied:
        each = [f"{name} ({_unresolved(found[name])})" for name in tied]
        sentences.append(f"Not resolved from {listing(each)}.")
    if named:
        parts = [less(found[name], _called(name, comparison)) for name in named]
        sentences.append(f"{listing(parts)}.")
    return " ".join(sentences), [first, *tied]


def _against(comparison: Comparison, first: str, other: str) -> Ratio:
    ratio = statistics.ratio(comparison.samples, first, other)
    if ratio is None:
        raise ValueError(f"{comparison.name}: {first} or {other} is ok and has no samples")
    return ratio


def _called(name: str, comparison: Comparison) -> str:
    return f"the baseline {name}" if name == comparison.baseline else name


def less(ratio: Ratio, than: str) -> str:
    """`3.2 % less time than X (2.1 % to 4.0 %)`, with the 95 % interval."""
    text = f"{numbers.percent(1 - ratio.value)} less time than {than}"
    if ratio.low is None or ratio.high is None:
        return f"{text} (no interval)"
    return f"{text} ({numbers.percent(1 - ratio.high)} to {numbers.percent(1 - ratio.low)})"


def _unresolved(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return "no interval"
    ends = " to ".join(_signed(end - 1) for end in (ratio.low, ratio.high))
    return f"{ends}, within the noise floor" if ratio.excludes_one() else ends


def _signed(share: float) -> str:
    return f"{'+' if share > 0 else ''}{numbers.percent(share)}"


def headline(verdicts: Sequence[Verdict]) -> str:
    """How often each implementation came out first."""
    ranked = [v for v in verdicts if v.leaders]
    if not ranked:
        return "Nothing could be compared."
    blocks = numbers.count(len(ranked), "comparison")
    wins = Counter(v.leaders[0] for v in ranked if len(v.leaders) == 1)
    sentences = []
    if len(ranked) == 1 and wins:
        return f"{ranked[0].leaders[0]} is fastest."
    if wins.total() == len(ranked) and len(wins) == 1:
        return f"{ranked[0].leaders[0]} is fastest in every one of {blocks}."
    if wins:
        parts = [f"{name} is fastest in {times}" for name, times in wins.most_common()]
        sentences.append(f"Of {blocks}, {listing(parts)}.")
    ties = [v.leaders for v in ranked if len(v.leaders) > 1]
    if ties:
        among = Counter(name for leaders in ties for name in leaders).most_common(3)
        most = listing([f"{name} ({times})" for name, times in among])
        where = f"In {len(ties)}" if wins else f"In {len(ties)} of {blocks}"
        sentences.append(f"{where} the fastest cannot be told apart, most often {most}.")
    return " ".join(sentences)


def tally(cells: pd.DataFrame) -> str:
    """How the cells ended: `84 cells: 60 ok, 2 wrong, ...`."""
    if cells.empty:
        return "No cell has ended yet."
    ended = Counter(cells["status"])
    parts = [f"{ended[status]} {word}" for status, word in STATUS_WORDS.items() if ended[status]]
    return f"{numbers.count(len(cells), 'cell')}: {', '.join(parts)}."


def caveats(content: Tables, manifest: Manifest) -> list[Caveat]:
    """What the stored rows themselves say against trusting the numbers too far."""
    return [
        Caveat(title, text)
        for title, text in (
            ("More devices than cores", _oversubscribed(content, manifest)),
            ("Wide noise floor", _wide_floor(content)),
            ("A busy host", _busy(content, manifest)),
            ("Measured apart", _apart(content)),
            ("Too few rounds", _few_rounds(content)),
            ("Launches that failed", _failed_launches(content)),
            ("Implausible times", _implausible(content)),
            ("Utilization unknown", _no_peak(content, manifest)),
            ("Uncommitted changes", _dirty(manifest)),
        )
        if text
    ]


def _oversubscribed(content: Tables, manifest: Manifest) -> str:
    over = sorted({c.devices for c in content.comparisons
                   if tables.oversubscribed(manifest, c.devices)})  # fmt: skip
    if not over:
        return ""
    cores = numbers.count(int(manifest["host"]["usable_cores"]), "usable core")
    return (
        f"Meshes of {listing([str(d) for d in over])} CPU devices share {cores}. They show what "
        "dispatch and communication cost, not how the step scales."
    )


def _wide_floor(content: Tables) -> str:
    wide = [(statistics.floor_width(c.floor), c) for c in content.comparisons if c.floor]
    wide = [(width, c) for width, c in wide if width > WIDE_FLOOR]
    if not wide:
        return ""
    worst, where = max(wide, key=lambda pair: pair[0])
    return (
        f"In {len(wide)} of {numbers.count(len(content.comparisons), 'block')} two copies of the "
        f"same program could differ by more than {numbers.percent(WIDE_FLOOR)}; at most by "
        f"{numbers.percent(worst)}, in {where.name}. Smaller differences there are not resolved."
    )


def _busy(content: Tables, manifest: Manifest) -> str:
    cores, load = manifest["host"].get("usable_cores"), manifest["host"].get("load")
    if cores is None or load is None:
        return ""
    loaded = [c.name for c in content.comparisons if (c.attempts["load_before"] > cores).any()]
    parts = []
    if load > cores / 4:
        parts.append(f"When the run began the load was {load:.2g} on {cores} usable cores.")
    if loaded:
        parts.append(
            f"The load was above the number of cores when {numbers.count(len(loaded), 'block')} "
            "began; part of it may be the block before."
        )
    return " ".join(parts)


def _apart(content: Tables) -> str:
    ok = content.cells[content.cells["status"] == "ok"] if len(content.cells) else content.cells
    apart = 0 if ok.empty else int((~ok["interleaved"]).sum())
    if not apart:
        return ""
    return (
        f"{numbers.count(apart, 'cell')} did not fit beside the others and ran in a process "
        "alone. The ratio has no interval: the host may have changed in between."
    )


def _few_rounds(content: Tables) -> str:
    short = [c for c in content.comparisons if c.floor and c.floor.low is None]
    if not short:
        return ""
    blocks = numbers.count(len(short), "block")
    return f"{blocks} had under 6 rounds, too few for a 95{numbers.NARROW}% interval."


def _failed_launches(content: Tables) -> str:
    if content.cells.empty:
        return ""
    failed = content.cells[content.cells["failed_launches"] > 0]
    if failed.empty:
        return ""
    return f"In some launches these cells failed, in others they ran: {listing(failed['cell'])}."


def _implausible(content: Tables) -> str:
    refused = 0 if content.cells.empty else int((content.cells["status"] == IMPLAUSIBLE).sum())
    if not refused:
        return ""
    return f"{numbers.count(refused, 'cell')} would exceed the device's peak and shows no time."


def _no_peak(content: Tables, manifest: Manifest) -> str:
    kind = manifest["device_kind"]
    missing = [
        p for p in sorted({c.precision for c in content.comparisons}) if not peaks.peak(kind, p)
    ]
    if not missing:
        return ""
    return f"There is no published peak for {kind} in {listing(missing)}, so no MFU is given."


def _dirty(manifest: Manifest) -> str:
    if not manifest["git"].get("dirty"):
        return ""
    return "The working tree had changes that the recorded commit does not hold."


def listing(words: Sequence[str] | pd.Series[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *head, last = list(words)
    return f"{', '.join(head)} and {last}" if head else last
