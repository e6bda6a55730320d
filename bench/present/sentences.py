"""The summary in words: what is fastest, by how much, how sure, and what to be careful about."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.analyse import loss_curves, peaks
from bench.analyse.ratio_intervals import PROCESS_SD, floor_width
from bench.analyse.verdicts import decide
from bench.present import loss_sentences
from bench.records import numbers
from bench.records.statuses import STATUSES, VERDICT_STYLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from bench.analyse.cell_table import Tables
    from bench.analyse.comparisons import Comparison
    from bench.analyse.ratio_intervals import Ratio
    from bench.analyse.verdicts import Claim
    from bench.records.rows import Manifest
    from bench.records.store import Damage

LONG_S = 86400.0
"""Beyond a day of measuring, how long exactly is of no use."""

DETAILED = 2
"""So many of the arms that the fastest is not told from are named with their intervals, if there
are more; the others are in the block's table."""

NAMED_WINNERS = 3
"""So many implementations that came out fastest are named in the headline."""

NAMED = 8
"""So many damaged parts of files are named."""

BUSY_SHARE = 0.05
"""Share of the cores' time from which on others on the host are worth a word."""


@dataclass(frozen=True)
class Summary:
    """What one block showed."""

    comparison: Comparison
    leaders: list[str]
    """The fastest, and all that are the same or undecided; empty if nothing could be ranked."""
    undecided: bool
    """Whether any of them is undecided."""
    text: str
    short: str
    """How the leaders are told from one another or from the next, in a few words."""
    floor: str
    """How far apart two copies of the baseline may be there: a bound of 95 %."""


@dataclass(frozen=True)
class Caveat:
    """A reason to read some numbers with care."""

    title: str
    text: str


def summary(comparison: Comparison) -> Summary:
    """Rank the block's arms that ran side by side, and say how sure that is."""
    ranked = comparison.ranked
    beside = [cell["implementation"] for cell in ranked if cell["interleaved"]]
    apart = [cell["implementation"] for cell in ranked if not cell["interleaved"]]
    times = {cell["implementation"]: cell["step_s"] for cell in ranked}
    text, short, leaders, undecided = _rank(comparison, beside, times)
    if apart:
        text += f" Not ranked, because measured apart: {listing(apart)}."
    floor = comparison.floor
    width = numbers.MISSING
    if floor is not None and floor.low is not None:
        width = numbers.percent(floor_width(floor))
    return Summary(comparison, leaders, undecided, text, short, width)


def summaries(content: Tables) -> dict[str, Summary]:
    """Of every block, by its name."""
    return {block.name: summary(block) for block in content.comparisons}


def _rank(
    comparison: Comparison, beside: Sequence[str], times: dict[str, float]
) -> tuple[str, str, list[str], bool]:
    if not beside:
        text = "Nothing here has times that can be compared."
        return text, "", [], False
    first, *others = beside
    time = f"{numbers.si(times[first], 's')} a step"
    if not others:
        return f"{time}; nothing to compare it with.", "nothing to compare it with", [], False
    every = comparison.claims_of(first)
    found = {name: every[name] for name in others}
    said = {word: [n for n in others if found[n].verdict.word == word] for word in VERDICT_STYLES}
    beaten, tied = said["faster"], [*said["same"], *said["undecided"], *said["slower"]]
    named = dict.fromkeys([*beaten[:1], *(n for n in beaten if n == comparison.baseline)])
    within = numbers.percent(comparison.margin)
    sentences = [f"{first} took {time}." if tied else f"{time}."]
    short = []
    if first == comparison.baseline:
        sentences.append("It is the baseline.")
    if said["same"]:
        sentences.append(f"Within {within}, the same as {listing(said['same'])}.")
        short.append(f"the same within {within}")
    if said["undecided"]:
        undecided = {name: found[name] for name in said["undecided"]}
        sentences.append(_all_undecided(undecided, comparison))
        short.append(f"undecided: {_longest(undecided, comparison)}")
    if said["slower"]:
        # Rare: arms that were not in the same launches are ranked by the baseline of each.
        text = f"slower than {listing(said['slower'])}"
        sentences.append(f"Where they ran side by side, {text}.")
        short.append(text)
    if named:
        parts = [less(found[name].ratio, _called(name, comparison)) for name in named]
        sentences.append(f"{listing(parts)}.")
    if beaten and not tied:
        short.append(less(found[beaten[0]].ratio, _called(beaten[0], comparison)))
    return (
        " ".join(sentences),
        "; ".join(short),
        [first, *tied],
        bool(said["undecided"] or said["slower"]),
    )


def _called(name: str, comparison: Comparison) -> str:
    return f"the baseline {name}" if name == comparison.baseline else name


def less(ratio: Ratio, than: str) -> str:
    """`3.2 % less time than X (2.1 % to 4.0 %)`, with the 95 % interval."""
    text = f"{numbers.percent(1 - ratio.value)} less time than {than}"
    if ratio.low is None or ratio.high is None:
        return f"{text} (no interval)"
    return f"{text} ({numbers.percent(1 - ratio.high)} to {numbers.percent(1 - ratio.low)})"


def _all_undecided(found: Mapping[str, Claim], comparison: Comparison) -> str:
    """Those that the fastest is not told from, the nearest first; of many, only these in detail."""
    each = [f"{name} ({_undecided(claim, comparison)})" for name, claim in found.items()]
    if len(each) <= DETAILED + 1:
        return f"Undecided against {listing(each)}."
    nearest = f"the nearest are {listing(each[:DETAILED])}"
    cost = _longest(found, comparison)
    return f"Undecided against {len(each)} others ({cost}): {nearest}."


def _longest(found: Mapping[str, Claim], comparison: Comparison) -> str:
    return to_decide(max(map(comparison.seconds_to_decide, found.values())))


def _undecided(claim: Claim, comparison: Comparison) -> str:
    ratio = claim.ratio
    if ratio.low is None or ratio.high is None:
        return "no interval"
    ends = " to ".join(
        numbers.signed(end - 1, numbers.percent(end - 1)) for end in (ratio.low, ratio.high)
    )
    return f"{ends}; {to_decide(comparison.seconds_to_decide(claim))}"


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
    """What deciding the undecided comparisons would cost; empty if there is none."""
    undecided = cells[cells["verdict"] == "undecided"] if len(cells) else cells
    if undecided.empty:
        return ""
    paired = undecided[undecided["paired"].astype(bool)]
    known = paired[paired["to_decide_s"] < math.inf]
    sentences = []
    if len(known):
        # One launch more serves every arm of its block: what the slowest needs decides the block.
        total = float(known.groupby("block")["to_decide_s"].max().sum())
        cost = "over a day" if total > LONG_S else f"about {numbers.seconds(max(total, 1.0))}"
        sentences.append(f"Deciding the rest would probably take {cost} of measuring.")
    for count, why in (
        (len(paired) - len(known), "had too few rounds for an interval"),
        (len(undecided) - len(paired), "were measured apart and cannot be decided"),
    ):
        if count:
            sentences.append(f"{count} {why}.")
    return " ".join(sentences)


def headline(summaries: Sequence[Summary]) -> str:
    """The answer in two sentences: which is fastest how often, and by how much."""
    ranked = [s for s in summaries if s.leaders]
    if not ranked:
        return "Nothing could be compared."
    return " ".join(filter(None, (_winners(ranked), _gains(ranked))))


def _winners(ranked: Sequence[Summary]) -> str:
    if len(ranked) == 1:
        return _one_winner(ranked[0])
    blocks = f"{len(ranked)} blocks"
    wins = Counter(s.leaders[0] for s in ranked if len(s.leaders) == 1)
    if wins.total() == len(ranked) and len(wins) == 1:
        return f"{ranked[0].leaders[0]} is fastest in every one of {blocks}."
    most = [f"{name} is fastest in {times}" for name, times in wins.most_common(NAMED_WINNERS)]
    if len(wins) > NAMED_WINNERS:
        rest = wins.total() - sum(times for _, times in wins.most_common(NAMED_WINNERS))
        most.append(f"others in {rest}")
    parts = [listing(most)] if most else []
    for undecided, what in (
        (False, "the fastest are the same within the margin"),
        (True, "the fastest is undecided"),
    ):
        ties = [s.leaders for s in ranked if len(s.leaders) > 1 and s.undecided == undecided]
        if ties:
            among = Counter(name for leaders in ties for name in leaders).most_common(NAMED_WINNERS)
            often = listing([f"{name} ({times})" for name, times in among])
            where = "all" if len(ties) == len(ranked) else str(len(ties))
            parts.append(f"{what} in {where}, most often among {often}")
    return f"Of {blocks}, {'; '.join(parts)}."


def _one_winner(only: Summary) -> str:
    """`X is fastest`, where there is one block."""
    first, *others = only.leaders
    if not others:
        return f"{first} is fastest."
    names = only.leaders[:NAMED_WINNERS]
    if len(only.leaders) > NAMED_WINNERS:
        names.append(f"{len(only.leaders) - NAMED_WINNERS} more")
    if only.undecided:
        return f"{listing(names)} cannot be told apart yet."
    return f"{listing(names)} are the same within the margin."


def _gains(ranked: Sequence[Summary]) -> str:
    """What the fastest saves over the baseline, where that is not itself among them."""
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


def caveats(content: Tables, manifest: Manifest) -> list[Caveat]:
    """What the stored rows themselves say against trusting the numbers too far."""
    trainings = loss_curves.find(content)
    return [
        Caveat(title, text)
        for title, text in (
            ("Damaged files", damage(content.damaged)),
            ("More devices than cores", _oversubscribed(content, manifest)),
            ("Two copies of one program differ", _alarms(content)),
            ("Wide noise floor", _wide_floor(content)),
            ("Not in a steady state", _unsteady(content)),
            ("The order of turns matters", _order(content)),
            ("A busy host", _busy(content, manifest)),
            ("One launch", _one_launch(content)),
            ("Measured apart", _apart(content)),
            ("Too few rounds", _few_rounds(content)),
            ("Launches that failed", _failed_launches(content)),
            ("Not traced", _untraced(content, manifest)),
            ("Loss curves part early", loss_sentences.parted(trainings)),
            ("Unfinished loss curves", loss_sentences.unfinished(trainings, manifest)),
            ("Without a checkpoint", _unsaved(content, manifest)),
            ("Implausible times", _implausible(content)),
            ("Utilization unknown", _no_peak(content, manifest)),
            ("Uncommitted changes", _dirty(manifest)),
        )
        if text
    ]


def damage(found: Sequence[Damage]) -> str:
    """What of a run was set aside; empty if nothing was."""
    if not found:
        return ""
    named = "; ".join(map(str, found[:NAMED]))
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    parts = numbers.count(len(found), "part")
    return f"Nothing here is made of {parts} of the stored files. {named}{more}."


def _oversubscribed(content: Tables, manifest: Manifest) -> str:
    over = sorted({c.block.mesh.size for c in content.comparisons if c.oversubscribed})
    if not over:
        return ""
    cores = numbers.count(int(manifest["host"]["usable_cores"]), "usable core")
    return (
        f"Meshes of {listing([str(d) for d in over])} CPU devices share {cores}. They show what "
        "dispatch and communication cost, not how the step scales."
    )


def _wide_floor(content: Tables) -> str:
    wide = [(floor_width(c.floor), c) for c in content.comparisons if c.floor]
    wide = [(width, c) for width, c in wide if width > c.margin]
    if not wide:
        return ""
    worst, where = max(wide, key=lambda pair: pair[0])
    return (
        f"In {len(wide)} of {numbers.count(len(content.comparisons), 'block')} two copies of the "
        f"same program could differ by more than the margin of {numbers.percent(where.margin)}; "
        f"at most by {numbers.percent(worst)}, in {where.name}."
    )


def _alarms(content: Tables) -> str:
    false = [
        c.name
        for c in content.comparisons
        if c.floor and decide(c.floor, c.alpha, c.margin).word in ("faster", "slower")
    ]
    if not false:
        return ""
    return (
        f"In {listing(false)} the baseline and its own copy come out as different programs. "
        "Differences of that size there are the method's own."
    )


def _unsteady(content: Tables) -> str:
    moving = [
        (abs(effect.size), name, c)
        for c in content.comparisons
        for name, effect in c.drifts.items()
        if effect.sure and abs(effect.size) > c.margin
    ]
    if not moving:
        return ""
    size, name, where = max(moving, key=lambda found: found[0])
    return (
        f"{numbers.count(len(moving), 'ratio')} had a trend within the launches of more than the "
        f"margin; the largest {numbers.percent(size)}, of {name} in {where.name}. The ratio is "
        "then an average over a change."
    )


def _order(content: Tables) -> str:
    found = [
        (effect.size, by, c)
        for c in content.comparisons
        for by, effect in c.order.items()
        if effect.sure and effect.size > c.margin
    ]
    if not found:
        return ""
    size, by, where = max(found, key=lambda one: one[0])
    return (
        f"In {numbers.count(len({c.name for _, _, c in found}), 'block')} a turn's time depends on "
        f"its place in the round or on what ran before it by more than the margin; most by its "
        f"{by} in {where.name}, {numbers.percent(size)}. Every arm has every place and "
        "predecessor about equally often, so that this is mostly noise."
    )


def _one_launch(content: Tables) -> str:
    one = [c for c in content.comparisons if c.claims and c.launches == 1]
    if not one:
        return ""
    return (
        f"{numbers.count(len(one), 'block')} had one launch each. How much another process "
        f"would differ is assumed, {numbers.percent(PROCESS_SD)} (standard deviation); "
        "more launches (--launches 3) show it."
    )


def _busy(content: Tables, manifest: Manifest) -> str:
    cores, load = manifest["host"].get("usable_cores"), manifest["host"].get("load")
    if cores is None or load is None:
        return ""
    loaded = [c.name for c in content.comparisons if c.load > cores]
    parts = []
    for share, what in (("steal", "other guests of its host"), ("foreign", "other processes")):
        worst = max(
            ((getattr(c.conditions, share), c.name) for c in content.comparisons if c.conditions),
            default=(0.0, ""),
        )
        if worst[0] > BUSY_SHARE:
            parts.append(
                f"While {worst[1]} was timed, {what} had {numbers.percent(worst[0])} of the "
                "cores' time."
            )
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
    refused = 0 if content.cells.empty else int((content.cells["status"] == "implausible").sum())
    if not refused:
        return ""
    return f"{numbers.count(refused, 'cell')} would exceed the device's peak and shows no time."


def _no_peak(content: Tables, manifest: Manifest) -> str:
    kind = manifest["device_kind"]
    missing = [
        p
        for p in sorted({c.block.options.precision for c in content.comparisons})
        if not peaks.peak(kind, p)
    ]
    if not missing:
        return ""
    return f"There is no published peak for {kind} in {listing(missing)}, so no MFU is given."


def _untraced(content: Tables, manifest: Manifest) -> str:
    """Where traces were asked for, and failed."""
    if not manifest["config"].get("profile_steps") or content.cells.empty:
        return ""
    right = content.cells.loc[content.cells["status"] == "ok", "cell"]
    missing = [name for name in right if name not in content.traces]
    if not missing:
        return ""
    return (
        f"Tracing failed for {numbers.count(len(missing), 'cell')}, {missing[0]} for instance, "
        "which nothing is explained of. Times are not touched by it."
    )


def _unsaved(content: Tables, manifest: Manifest) -> str:
    """Where checkpoints were asked for, and there are no figures of them."""
    if not manifest["config"].get("checkpoints") or content.cells.empty:
        return ""
    right = content.cells.loc[content.cells["status"] == "ok", "cell"]
    reasons, unknown = (
        {name: c["reason"] for name, c in content.checkpoints.items()},
        "none is told",
    )
    missing = [name for name in right if reasons.get(name, unknown)]
    if not missing:
        return ""
    first = missing[0]
    return (
        f"{numbers.count(len(missing), 'cell')} without figures of checkpoints, for instance "
        f"{first}: {reasons.get(first, unknown)}. Times are not touched by it."
    )


def _dirty(manifest: Manifest) -> str:
    if not manifest["git"].get("dirty"):
        return ""
    return "The working tree had changes that the recorded commit does not hold."


def listing(words: Sequence[str] | pd.Series[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *head, last = list(words)
    return f"{', '.join(head)} and {last}" if head else last
