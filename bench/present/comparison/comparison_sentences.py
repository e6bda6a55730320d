"""A comparison of two runs in words: what differs, what changed, and what to be careful about."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from bench.analyse.ratio_intervals import UNPAIRED_SD
from bench.present.caveats import Caveat, damage
from bench.present.sentences import listing
from bench.records import numbers
from bench.records.statuses import VERDICT_STYLES

if TYPE_CHECKING:
    from bench.analyse.run_changes import Change, Compared
    from bench.analyse.run_settings import Kind

SAME_RUN = (
    "A and B are the same run: there is no difference to be found. What is shown is how "
    "narrow the intervals are where there is none."
)
ALIKE = "Machine, versions, environment variables, commit, files and options are the same in both."

_DIFFER: dict[Kind, str] = {
    "machine": "The machines differ",
    "versions": "The versions differ",
    "environment": "The environment variables differ",
    "code": "The code differs",
    "sources": "The files differ",
    "options": "The options differ",
}

APART = (
    "Nothing of the two runs happened side by side. A drift of the host between them is in the "
    "difference of their step times, and neither run can see it: identical programs that ran one "
    f"after the other differed by {numbers.percent(UNPAIRED_SD)} (standard deviation). So these "
    "intervals are much wider than that of a ratio within one run. Where both runs have the same "
    "baseline, its ratios are compared instead: what slows the whole host cancels in them."
)
"""Why a comparison of two runs is less sure than a ratio within one."""


def setting(found: Compared) -> str:
    """What differs between the runs, in a sentence a kind."""
    if found.same_run:
        return SAME_RUN
    if not found.differences:
        return ALIKE
    by_kind: dict[Kind, list[str]] = {}
    for difference in found.differences:
        # Names of packages, variables and files are spelled as they are.
        own = difference.kind in ("versions", "environment", "sources")
        name = difference.name if own else difference.name.lower()
        by_kind.setdefault(difference.kind, []).append(name)
    return " ".join(f"{_DIFFER[kind]}: {listing(names)}." for kind, names in by_kind.items())


def tally(found: Compared) -> str:
    """How many cells are faster, slower, the same and undecided, and which have no counterpart."""
    counts = Counter[str](change.verdict.word for change in found.changes)
    parts = [f"{counts[word]} {word}" for word in VERDICT_STYLES if counts[word]]
    compared = numbers.count(len(found.changes), "cell")
    sentences = [
        f"B against A, {compared}: {', '.join(parts)}."
        if parts
        else "No cell has a time in both runs."
    ]
    if found.ended:
        sentences.append(f"{len(found.ended)} ended differently.")
    only = [f"{len(o)} only in {run}" for run, o in (("A", found.only_a), ("B", found.only_b)) if o]
    if only:
        sentences.append(f"{listing(only)}.")
    if found.untimed:
        sentences.append(f"{found.untimed} without a time in either.")
    return " ".join(sentences)


def basis(found: Compared) -> str:
    """How many verdicts rest on what."""
    counts = Counter[str](change.source for change in found.changes)
    parts = [
        f"{counts[source]} on {words}"
        for source, words in (
            ("baseline", "ratios to the baseline"),
            ("step time", "step times, which are not paired"),
        )
        if counts[source]
    ]
    return f"Verdicts: {listing(parts)}." if parts else ""


def caveats(found: Compared) -> list[Caveat]:
    """What the rows of both runs say against trusting the changes too far."""
    return [
        Caveat(title, text)
        for title, text in (
            ("Damaged files in A", damage(found.damaged_a)),
            ("Damaged files in B", damage(found.damaged_b)),
            ("Other contents", _contents(found)),
            ("More than the code differs", _other_world(found)),
            ("Blind to the baseline", _blind(found)),
            ("No common baseline", _baselines(found)),
            ("Not the same work", _work(found)),
            ("Compile times from a cache", _cached(found)),
            ("Uncommitted changes", _dirty(found)),
        )
        if text
    ]


def _contents(found: Compared) -> str:
    """For which implementations and workloads other files were measured."""
    if not found.contents:
        return ""
    alike = sorted(
        {
            f"implementation {change.implementation}"
            for change in found.changes
            if f"implementation {change.implementation}" not in found.contents
        }
    )
    rest = f" Those of {listing(alike)} are the same." if alike else ""
    return f"The files of {listing(list(found.contents))} are not the same in A and B.{rest}"


def _other_world(found: Compared) -> str:
    kinds = {difference.kind for difference in found.differences}
    named = [
        words
        for kind, words in (
            ("machine", "machine"),
            ("versions", "versions"),
            ("environment", "environment variables"),
        )
        if kind in kinds
    ]
    if not named:
        return ""
    return (
        f"A change may come from the {listing(named)} as well as from the code, also a change "
        "against the baseline: what slows one implementation does not slow all of them alike."
    )


def _blind(found: Compared) -> str:
    if not any(change.source == "baseline" for change in found.changes):
        return ""
    own = {(one.name, one.baseline) for one, _ in found.blocks}
    steps = [c.step.value for c in found.changes if (c.block, c.implementation) in own]
    text = (
        "A change against the baseline does not show what became of the baseline itself, and looks "
        "like a change of every other implementation if the baseline alone changed."
    )
    if not steps:
        return text
    ends = [numbers.ratio(end) for end in (min(steps), max(steps))]
    spread = ends[0] if len(steps) == 1 else f"{ends[0]} to {ends[1]}"
    return f"{text} Its step times in B are {spread} times those in A."


def _baselines(found: Compared) -> str:
    other = [(a, b) for a, b in found.blocks if a.baseline != b.baseline]
    if not other:
        return ""
    pairs = [f"{a.name} ({a.baseline or 'none'} in A, {b.baseline or 'none'} in B)"
             for a, b in other]  # fmt: skip
    return f"Only step times are compared in {listing(pairs)}."


def _work(found: Compared) -> str:
    other = sorted({c.block for c in found.changes if _differ(c.a.model_flops, c.b.model_flops)})
    if not other:
        return ""
    return (
        f"A step of {listing(other)} has another number of model FLOPs in B than in A, so that "
        "their times are of different work."
    )


def _differ(a: float, b: float) -> bool:
    """Whether both are known and not equal."""
    return abs(b - a) > 0


def _cached(found: Compared) -> str:
    mixed = [c for c in found.changes if c.compile is not None and c.a.cached != c.b.cached]
    if not mixed:
        return ""
    return (
        f"In {numbers.count(len(mixed), 'cell')} one run took programs from the compilation cache "
        "and the other did not."
    )


def _dirty(found: Compared) -> str:
    dirty = [name for name, run in (("A", found.a), ("B", found.b)) if run["git"].get("dirty")]
    if not dirty or found.same_run:
        return ""
    return (
        f"The working tree of {listing(dirty)} had changes that the recorded commit does not hold: "
        "the code may differ in more than the commits do."
    )


def source(change: Change) -> str:
    """What a verdict rests on, as a note below it."""
    return "against the baseline" if change.source == "baseline" else "step times"
