"""The verdicts in words: what is fastest, by how much, how sure, and what remains undecided."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.analyse.ratio_intervals import floor_width
from bench.present.columns import Figure
from bench.records import numbers
from bench.records.statuses import STATUSES, VERDICT_STYLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd

    from bench.analyse.cell_table import Tables
    from bench.analyse.comparisons import Comparison
    from bench.analyse.ratio_intervals import Ratio
    from bench.analyse.verdicts import Claim

LONG_S = 86400.0
"""A day: how much longer than that a measurement would take is of no use."""

DETAILED = 2
"""Of many arms that are undecided against the fastest, so many are named with their intervals; the
block's table has the others."""

NAMED = 3
"""Implementations that a sentence names; of more, it says how many."""


@dataclass(frozen=True)
class Summary:
    """The result of one block."""

    comparison: Comparison
    leaders: list[str]
    """The fastest, and all that are the same or undecided; empty if nothing could be ranked."""
    undecided: bool
    """Whether any of the leaders is undecided."""
    text: str
    short: str
    """How the leaders differ from one another or from the next, in a few words."""

    @property
    def subject(self) -> str:
        """The workload and the options of the step."""
        return self.comparison.subject

    @property
    def place(self) -> str:
        """The mesh and the batch."""
        return self.comparison.place

    @property
    def first(self) -> str:
        """The fastest, or the only arm that has a time; empty if there is none."""
        timed = [cell["implementation"] for cell in self.comparison.ranked]
        return next(iter([*self.leaders, *timed]), "")

    @property
    def fastest(self) -> str:
        """The fastest and its equals: `X (the same as Y)`; a dash if nothing has a time."""
        others = self.leaders[1:]
        if not others:
            return self.first or numbers.MISSING
        how = "undecided against" if self.undecided else "the same as"
        return f"{self.first} ({how} {some(others)})"

    @property
    def step_s(self) -> float:
        """The first one's step time; NaN if nothing has a time."""
        cells = self.comparison.ranked
        return next((c["step_s"] for c in cells if c["implementation"] == self.first), math.nan)

    @property
    def step(self) -> Figure:
        """The step time as text."""
        latency = "single steps" if self.comparison.span_steps == (1,) else ""
        return Figure(numbers.si(self.step_s, "s"), latency)

    @property
    def ratio(self) -> Figure:
        """The first one's step time over the baseline's, with the 95 % interval."""
        if self.first and self.first == self.comparison.baseline:
            return Figure("1", "the baseline")
        claim = self.comparison.claims.get(self.first)
        if claim is None:
            return Figure(numbers.MISSING)
        low, high = claim.ratio.low, claim.ratio.high
        interval = "no interval" if low is None else numbers.interval(low, high)
        return Figure(numbers.ratio(claim.ratio.value), interval)

    @property
    def floor(self) -> str:
        """How far two copies of the baseline may differ: a 95 % bound."""
        floor = self.comparison.floor
        if floor is None or floor.low is None:
            return numbers.MISSING
        return numbers.percent(floor_width(floor))


def summaries(content: Tables) -> dict[str, Summary]:
    """The summary of every block, by its name."""
    return {block.name: summary(block) for block in content.comparisons}


def summary(block: Comparison) -> Summary:
    """Rank the block's arms that ran side by side, and say how sure that is."""
    beside = [cell["implementation"] for cell in block.ranked if cell["interleaved"]]
    apart = [cell["implementation"] for cell in block.ranked if not cell["interleaved"]]
    result = _ranking(block, beside)
    if not apart:
        return result
    text = f"{result.text} Not ranked, because measured apart: {listing(apart)}."
    return Summary(block, result.leaders, result.undecided, text, result.short)


def _ranking(block: Comparison, beside: Sequence[str]) -> Summary:
    if not beside:
        return Summary(block, [], undecided=False, text="No times can be compared here.", short="")
    first, *others = beside
    step = next(cell["step_s"] for cell in block.ranked if cell["implementation"] == first)
    time = f"{numbers.si(step, 's')} per step"
    if not others:
        alone = "nothing to compare it with"
        return Summary(block, [], undecided=False, text=f"{time}; {alone}.", short=alone)
    every = block.claims_of(first)
    claims = {name: every[name] for name in others}
    of_word = {
        word: [name for name in others if claims[name].verdict.word == word]
        for word in VERDICT_STYLES
    }
    beaten = of_word["faster"]
    tied = [*of_word["same"], *of_word["undecided"], *of_word["slower"]]
    said = [f"{first} took {time}." if tied else f"{time}."]
    short = []
    if first == block.baseline:
        said.append("It is the baseline.")
    if of_word["same"]:
        within = numbers.percent(block.margin)
        said.append(f"Within {within}, the same as {listing(of_word['same'])}.")
        short.append(f"the same within {within}")
    if of_word["undecided"]:
        undecided = {name: claims[name] for name in of_word["undecided"]}
        said.append(_all_undecided(undecided, block))
        short.append(f"undecided: {_longest(undecided, block)}")
    if of_word["slower"]:
        # Rare: arms that were not in the same launches are ranked by the baseline of each.
        text = f"slower than {listing(of_word['slower'])}"
        said.append(f"Where they ran side by side, {text}.")
        short.append(text)
    if beaten:
        named = dict.fromkeys([beaten[0], *(name for name in beaten if name == block.baseline)])
        gains = [less(claims[name].ratio, _called(name, block)) for name in named]
        said.append(f"{listing(gains)}.")
        if not tied:
            short.append(gains[0])
    return Summary(
        block,
        [first, *tied],
        undecided=bool(of_word["undecided"] or of_word["slower"]),
        text=" ".join(said),
        short="; ".join(short),
    )


def _called(name: str, block: Comparison) -> str:
    return f"the baseline {name}" if name == block.baseline else name


def less(ratio: Ratio, than: str) -> str:
    """`3.2 % less time than X (2.1 % to 4.0 %)`, with the 95 % interval."""
    text = f"{numbers.percent(1 - ratio.value)} less time than {than}"
    if ratio.low is None or ratio.high is None:
        return f"{text} (no interval)"
    return f"{text} ({numbers.percent(1 - ratio.high)} to {numbers.percent(1 - ratio.low)})"


def _all_undecided(claims: Mapping[str, Claim], block: Comparison) -> str:
    each = [f"{name} ({_undecided(claim, block)})" for name, claim in claims.items()]
    if len(each) <= DETAILED + 1:
        return f"Undecided against {listing(each)}."
    nearest = f"the nearest are {listing(each[:DETAILED])}"
    return f"Undecided against {len(each)} others ({_longest(claims, block)}): {nearest}."


def _longest(claims: Mapping[str, Claim], block: Comparison) -> str:
    return to_decide(max(map(block.seconds_to_decide, claims.values())))


def _undecided(claim: Claim, block: Comparison) -> str:
    ratio = claim.ratio
    if ratio.low is None or ratio.high is None:
        return "no interval"
    ends = " to ".join(
        numbers.signed(end - 1, numbers.percent(end - 1)) for end in (ratio.low, ratio.high)
    )
    return f"{ends}; {to_decide(block.seconds_to_decide(claim))}"


def to_decide(seconds: float) -> str:
    """How much more measuring would probably decide: `about 45 s more would decide`."""
    if math.isinf(seconds):
        return "too few rounds for an interval"
    if seconds > LONG_S:
        return "over a day more would be needed to decide"
    return f"about {numbers.seconds(max(seconds, 1.0))} more would decide"


def decisions(cells: pd.DataFrame) -> str:
    """How many comparisons with the baseline are decided, and what the rest would cost."""
    compared = cells[cells["verdict"].notna()] if len(cells) else cells
    if compared.empty:
        return ""
    counts = Counter(compared["verdict"])
    parts = [f"{counts[word]} {word}" for word in VERDICT_STYLES if counts[word]]
    return " ".join(filter(None, (f"Against the baselines: {', '.join(parts)}.", price(cells))))


def price(cells: pd.DataFrame) -> str:
    """What deciding the undecided comparisons would cost; empty if there are none."""
    undecided = cells[cells["verdict"] == "undecided"] if len(cells) else cells
    return " ".join(_prices(undecided)) if len(undecided) else ""


def _prices(undecided: pd.DataFrame) -> Iterator[str]:
    paired = undecided[undecided["paired"].astype(bool)]
    known = paired[paired["to_decide_s"] < math.inf]
    if len(known):
        # One launch more serves every arm of its block: the slowest to decide sets the cost.
        total = float(known.groupby("block")["to_decide_s"].max().sum())
        cost = "over a day" if total > LONG_S else f"about {numbers.seconds(max(total, 1.0))}"
        yield f"Deciding the rest would probably take {cost} of measuring."
    if len(paired) > len(known):
        yield f"{len(paired) - len(known)} had too few rounds for an interval."
    if len(undecided) > len(paired):
        yield f"{len(undecided) - len(paired)} were measured apart and cannot be decided."


def headline(every: Sequence[Summary]) -> str:
    """The answer in two sentences: which is fastest how often, and by how much."""
    ranked = [summary for summary in every if summary.leaders]
    if not ranked:
        return "Nothing could be compared."
    return " ".join(filter(None, (_winners(ranked), _gains(ranked))))


def _winners(ranked: Sequence[Summary]) -> str:
    if len(ranked) == 1:
        return _winner(ranked[0])
    blocks = f"{len(ranked)} blocks"
    wins = Counter(s.leaders[0] for s in ranked if len(s.leaders) == 1)
    if wins.total() == len(ranked) and len(wins) == 1:
        return f"{ranked[0].leaders[0]} is fastest in all of {blocks}."
    most = wins.most_common(NAMED)
    named = [
        f"{name} {'' if place else 'is fastest '}in {times}"
        for place, (name, times) in enumerate(most)
    ]
    rest = wins.total() - sum(times for _, times in most)
    if rest:
        named.append(f"others in {rest}")
    parts = [listing(named)] if named else []
    for undecided, what in (
        (False, "the fastest are the same within the margin"),
        (True, "the fastest is undecided"),
    ):
        ties = [s.leaders for s in ranked if len(s.leaders) > 1 and s.undecided == undecided]
        if ties:
            among = Counter(name for leaders in ties for name in leaders).most_common(NAMED)
            often = listing([f"{name} ({times})" for name, times in among])
            where = "all" if len(ties) == len(ranked) else str(len(ties))
            parts.append(f"{what} in {where}, most often among {often}")
    return f"Of {blocks}, {'; '.join(parts)}."


def _winner(only: Summary) -> str:
    if len(only.leaders) == 1:
        return f"{only.leaders[0]} is fastest."
    names = only.leaders[:NAMED]
    if len(only.leaders) > NAMED:
        names.append(f"{len(only.leaders) - NAMED} more")
    if only.undecided:
        return f"{listing(names)} cannot be told apart yet."
    return f"{listing(names)} are the same within the margin."


def _gains(ranked: Sequence[Summary]) -> str:
    """How much time the fastest saves, in blocks where it is not the baseline or its equal."""
    gains = [
        1 - claim.ratio.value
        for s in ranked
        if s.comparison.baseline not in s.leaders
        and (claim := s.comparison.claims.get(s.leaders[0])) is not None
    ]
    if not gains:
        return ""
    baselines = sorted({s.comparison.baseline for s in ranked})
    of = f"the baseline {baselines[0]}" if len(baselines) == 1 else "their baselines"
    low, high = numbers.percent(min(gains)), numbers.percent(max(gains))
    size = low if low == high else f"{low} to {high}"
    where = "" if len(gains) == len(ranked) else f", in {len(gains)} of {len(ranked)},"
    return f"Against {of}{where} the fastest takes {size} less time."


def tally(cells: pd.DataFrame) -> str:
    """How the cells ended: `84 cells: 60 ok, 2 wrong, ...`."""
    if cells.empty:
        return "No cell has ended yet."
    ended = Counter(cells["status"])
    parts = [f"{ended[name]} {status.label}" for name, status in STATUSES.items() if ended[name]]
    return f"{numbers.count(len(cells), 'cell')}: {', '.join(parts)}."


def listing(words: Sequence[str] | pd.Series[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *head, last = list(words)
    return f"{', '.join(head)} and {last}" if head else last


def some(names: Sequence[str]) -> str:
    """The first names of many: `a, b, c and 5 more`."""
    if len(names) <= NAMED:
        return listing(names)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
