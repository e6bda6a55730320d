"""The answer in sentences: the leaders with a bound, and how far the others are surely behind."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Self

from bench.analyse.causes import pair_of
from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.present import bounds
from bench.present.cell_columns import Row, is_other_framework
from bench.present.columns import between
from bench.present.trace_tables import reason
from bench.records import numbers
from bench.records.grouping import grouped
from bench.records.statuses import STATUSES, VERDICT_STYLES
from bench.records.trace_rows import TraceRow

NAMED = 3
"""Implementations that a sentence names; any further ones are only counted."""

AVOIDED = 1.1
"""An implementation is one to avoid if its time is surely at least this many times the fastest's.
So are others within this factor of the worst."""

WIDE = 1.25
"""A larger bound means that too little was measured, unless the margin is larger still."""


@dataclass(frozen=True, eq=False)
class Summary:
    """The simultaneous statements about one block, in words."""

    comparison: Comparison
    traces: Mapping[str, TraceRow] = field(default_factory=dict)
    """Traces by cell, for the causes."""

    def among(self, own: Sequence[Self]) -> str:
        """Return the mesh, without axes of length 1 beside others; add the batch if they differ."""
        block = self.comparison.block
        differ = len({each.comparison.block.batch for each in own}) > 1
        mesh = re.sub(r"\b\w+=1,|,\w+=1\b", "", str(block.mesh))
        return f"{mesh} (batch {block.batch})" if differ else mesh

    @property
    def compared(self) -> bool:
        """Whether any arms shared rounds with one another."""
        return len(self.comparison.standings.behind) > 1

    @property
    def first(self) -> str:
        """The leader with the smallest bound, or an arm that has a time; may be empty."""
        timed = sorted(self.comparison.ranked, key=lambda cell: not cell["interleaved"])
        arms = [*self.comparison.standings.leaders, *(cell["implementation"] for cell in timed)]
        return next(iter(arms), "")

    @property
    def wide(self) -> float:
        """The bound above which too little was measured."""
        return max(WIDE, 1 + self.comparison.margin)

    def _spread(self) -> str:
        """Say how far apart the leaders may be."""
        standings = self.comparison.standings
        bound = standings.largest_ratio
        if math.isinf(bound):
            return "too few rounds to tell them apart"
        if bound > self.wide:
            return f"differences below {bounds.percentage(bound)} could not be resolved"
        alike = "they run the same program" if len(standings.leaders) > 1 else ""
        return f"{bounds.within(bound)} of one another" if bound > 1 else alike

    @property
    def step(self) -> str:
        """The smallest step time of the leaders, or that of `first`."""
        leaders = {*self.comparison.standings.leaders, self.first}
        times = [c["step_s"] for c in self.comparison.ranked if c["implementation"] in leaders]
        return numbers.si(min(times, default=None), "s")

    def _utilization(self) -> str:
        """Say how much of an accelerator `first` uses; empty where no peak is published."""
        cell = next(c for c in self.comparison.ranked if c["implementation"] == self.first)
        if math.isnan(cell["mfu"]):
            return ""
        rate = f"{numbers.si(cell['units_per_s'], '')}\N{NO-BREAK SPACE}{cell['unit']}/s"
        return f" {self.first}: {rate}, MFU {numbers.percent(cell['mfu'])}."

    def cause(self, slower: str, faster: str) -> str:
        """Return the main cause of a difference, as far as traces show one; else an empty text."""
        cells = {cell["implementation"]: cell for cell in self.comparison.ranked}
        pair = pair_of(cells[slower], cells[faster], self.traces)
        return reason(pair).main if pair and pair.timed > 1 else ""

    def text(self) -> str:
        """Return everything that is sure, and the ratios of approximate steps."""
        return f"{self.exact()} {approximate([self])}".strip()

    def exact(self) -> str:
        """Return everything that is sure about steps that are not approximate; may be empty."""
        block = self.comparison
        if not block.ranked:
            how = ", ".join(one.label for word, one in STATUSES.items() if word in block.failed)
            return f"Nothing has a time{how and ': ' + how}."
        apart = [cell["implementation"] for cell in block.ranked if not cell["interleaved"]]
        apart = [name for name in apart if name != self.first]
        rest = f" Not ranked, because they shared no rounds: {listing(apart)}." if apart else ""
        rest += self._utilization()
        if not self.compared:
            alone = f"There is nothing to compare {self.first} with."
            return f"{'' if approximate([self]) else alone}{rest}".strip()
        leaders, how = some(block.standings.leaders), self._spread()
        lead = f"{leaders} lead: {how}" if how else f"{leaders} is fastest"
        return f"{'; '.join([lead, *tiers(block)])}.{rest}"


def tiers(block: Comparison) -> Iterator[str]:
    """Yield how far each tier is behind the leaders."""
    ends, verb = block.standings.behind, " take"
    fastest = " the fastest" if len(block.standings.leaders) > 1 else ""
    for tier in block.standings.tiers:
        known = [arm for arm in tier if ends[arm][0] > 1]
        if rest := [arm for arm in tier if arm not in known]:
            # Leaders may be far apart, and the arm is surely behind one of them.
            far = max(ends[arm][1] for arm in rest)
            how = f"at most {bounds.percentage(far)}" if far < math.inf else "an unknown amount"
            yield f"{some(rest)} {'is' if len(rest) == 1 else 'are'} behind, by {how}"
        if known:
            one = "s" if len(known) == 1 else ""
            span = min(ends[arm][0] for arm in known), max(ends[arm][1] for arm in known)
            yield f"{some(known)}{verb and verb + one} {bounds.longer(*span, fastest)}"
            verb = fastest = ""


def summaries(content: Tables) -> list[Summary]:
    """Return the summary of every block."""
    return [Summary(block, content.traces) for block in content.comparisons]


def by_subject(every: Iterable[Summary]) -> list[tuple[str, list[Summary]]]:
    """Return summaries by subject: a workload with its options."""
    return [*grouped((each.comparison.subject, each) for each in every).items()]


def advice(own: Sequence[Summary]) -> list[str]:
    """Return the answer for one subject, as one sentence for each group of blocks that share it.

    Only the block with the slowest implementation says what to avoid: the tables show the rest. A
    block whose devices share cores does so only if there is no other.
    """
    compared = left = [summary for summary in own if summary.compared]
    if len(compared) <= 1:
        exact = dict.fromkeys(each.exact() for each in compared or own)
        return [*filter(None, [*exact, *_other_frameworks(own), approximate(own)])]
    telling = [each for each in compared if not each.comparison.oversubscribed] or compared
    worst = max(telling, key=lambda each: max(each.comparison.standings.behind.values()))
    said = []
    while left:
        cells = (cell for each in left for cell in each.comparison.ranked)
        times = grouped((cell["implementation"], cell["step_s"]) for cell in cells)
        standings = [each.comparison.standings for each in left]
        reach = grouped((name, one.behind[name][1]) for one in standings for name in one.leaders)
        best = min(reach, key=lambda n: (-len(reach[n]), max(reach[n]), math.prod(times[n])))
        where = [each for each in left if best in each.comparison.standings.leaders]
        left = [each for each in left if each not in where]
        places = _places([each.among(own) for each in where])
        places = "" if len(where) == len(compared) else f" with {places}"
        at = f" with {worst.among(own)}" * (len(where) > 1)
        avoid = _avoid(best, worst, at) if worst in where else ""
        said.append(f"{_use(best, where, own, places)}{avoid}.")
    return [*filter(None, [*said, *_other_frameworks(own), approximate(own)])]


def _other_frameworks(own: Sequence[Summary]) -> Iterator[str]:
    """Say where no step in JAX is among the leaders, and how far the nearest one is behind."""
    for each in own:
        standings = each.comparison.standings
        ranked = each.comparison.ranked
        other = {cell["implementation"] for cell in ranked if is_other_framework(cell["foreign"])}
        jax_arms = sorted(standings.behind.keys() - other, key=lambda arm: standings.behind[arm])
        if jax_arms and other.issuperset(standings.leaders):
            longer = bounds.longer(*standings.behind[jax_arms[0]], " the fastest")
            nearest = f"no step in JAX leads: the nearest, {jax_arms[0]}, takes {longer}"
            yield f"With {each.among(own)}, {nearest}."


def _places(places: Sequence[str]) -> str:
    """Return `data=1, 2 and 4`: meshes of one axis share its name."""
    axes = {place.partition("=")[0] for place in places}
    sizes = [place.partition("=")[2] for place in places]
    if len(axes) == 1 and all(map(str.isdecimal, sizes)):
        return f"{axes.pop()}={some(sizes)}"
    return some(places)


def approximate(own: Sequence[Summary]) -> str:
    """Return the ratios of approximate steps to their baselines, smallest first; may be empty."""
    cells = (cell for each in own for cell in each.comparison.ranked if cell["approximate"])
    figures = itemgetter("ratio", "verdict_low", "verdict_high")
    found = grouped(
        (cell["implementation"], figures(cell))
        for cell in cells
        if cell["implementation"] != cell["baseline"] and not math.isnan(cell["ratio"])
    )
    if not found:
        return ""
    baselines = listing(sorted({each.comparison.baseline for each in own} - {""}))
    times = [
        f"{name} {ends(ratios)}" + (f" ({within})" if within else "")
        for name, known in sorted(found.items(), key=lambda item: min(item[1]))
        for ratios, lows, highs in [zip(*known, strict=True)]
        for within in [between(min(lows), max(highs), "ratio")]
    ]
    said = "Approximate steps are ranked separately. Times relative to"
    return f"{said} {baselines}: {listing(times)}."


def _use(name: str, where: Sequence[Summary], own: Sequence[Summary], places: str) -> str:
    """Say what to use in blocks that it leads; `places` names them, where others lead elsewhere."""
    widest = max(where, key=lambda each: each.comparison.standings.behind[name][1])
    bound = widest.comparison.standings.behind[name][1]
    there = f" with {widest.among(own)}" * (len(where) > 1)
    if math.isinf(bound):
        best = "the best estimate" + " on average" * bool(there)
        return f"{name} has {best}{places}, but there are too few rounds for a bound"
    if bound == 1:
        alone = all(len(each.comparison.standings.leaders) == 1 for each in where)
        tied = "nothing is faster, but others run the same program"
        return f"Use {name}{places}: {'it is fastest' if alone else tied}"
    if bound > widest.wide:
        return (
            f"{name} is among the leaders{places}, but the data do not decide: another may be "
            f"{bounds.faster(bound)}{there}, and more rounds or launches would narrow this"
        )
    return f"Use {name}{places}; nothing else is more than {bounds.faster(bound)}"


def _avoid(best: str, place: Summary, at: str) -> str:
    """Name the implementations farthest behind in a block; empty if none is far."""
    least = {name: low for name, (low, _) in place.comparison.standings.behind.items()}
    worst = max(least.values()) / AVOIDED
    far = {name: low for name, low in least.items() if low >= max(AVOIDED, worst)}
    if not far:
        return ""
    common, *others = {place.cause(name, best) for name in far}
    why = f", mainly because of {common}" if common and not others else ""
    return f"; avoid {some([*far])}: at least {bounds.behind(min(far.values()))}{at}{why}"


def answers(every: Sequence[Summary]) -> dict[str, list[str]]:
    """Return the answers of `advice` by subject."""
    return {subject: advice(own) for subject, own in by_subject(every)}


def headline(every: Sequence[Summary]) -> str:
    """Return the answer for each workload, in one paragraph."""
    known = {subject: " ".join(texts) for subject, texts in answers(every).items() if texts}
    several = (f"{subject}: {text}" for subject, text in known.items())
    return " ".join(several if len(known) > 1 else known.values()) or "Nothing could be compared."


def decisions(cells: Sequence[Row]) -> str:
    """Return `Against the baselines: 2 faster, 3 undecided (within 4.2 %).`; may be empty."""
    figures = itemgetter("verdict", "verdict_low", "verdict_high")
    said = verdicts(figures(cell) for cell in cells if not cell["approximate"])
    return f"Against the baselines: {said}." if said else ""


def verdicts(found: Iterable[tuple[str, float, float]]) -> str:
    """Count verdicts, given with their intervals: `2 faster, 3 undecided (within 4.2 %)`.

    The bound is the largest of the undecided ones, if all have one.
    """
    every = list(found)
    said = counted((word for word, *_ in every), VERDICT_STYLES)
    open_ = (bounds.bound_of(low, high) for word, low, high in every if word == "undecided")
    most = max(open_, default=math.inf)
    return f"{said} ({bounds.within(most)})" if most < math.inf else said


def tally(cells: Sequence[Row]) -> str:
    """Count cells by status: `84 cells: 60 ok, 2 wrong, ...`."""
    labels = [status.label for status in STATUSES.values()]
    ended = counted((STATUSES[cell["status"]].label for cell in cells), labels)
    return f"{numbers.count(len(cells), 'cell')}: {ended}." if cells else "No cell has ended yet."


def counted(words: Iterable[str], order: Iterable[str]) -> str:
    """Return `3 ok, 1 wrong`: how often each word occurs, in this order."""
    counts = Counter(words)
    return ", ".join(f"{counts[word]} {word}" for word in order if counts[word])


def ends(ratios: Collection[float]) -> str:
    """Return the smallest and the largest ratio as text: once if they read the same."""
    return " to ".join(dict.fromkeys(map(numbers.ratio, (min(ratios), max(ratios)))))


def named(implementation: str, approximate: bool) -> str:
    """Return the name of an implementation, marked if its step is approximate."""
    return f"{implementation} (approximate)" if approximate else implementation


def listing(words: Iterable[str]) -> str:
    """Join words: `a`, `a and b`, `a, b and c`."""
    *head, last = list(words)
    return f"{', '.join(head)} and {last}" if head else last


def some(names: Sequence[str]) -> str:
    """Join the first names of many: `a, b, c and 5 more`."""
    if len(names) <= NAMED:
        return listing(names)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
