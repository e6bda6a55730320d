"""Sentences about a comparison of two runs: their differences, the changes, and caveats."""

from collections import Counter

from bench.analyse.ratio_intervals import UNPAIRED_SD
from bench.analyse.run_changes import Compared, Kind
from bench.present.caveats import Caveat, damage
from bench.present.sentences import counted, ends, listing, some
from bench.records import numbers
from bench.records.statuses import VERDICT_STYLES

SAME_RUN = (
    "A and B are the same run, so there is no difference to find: the intervals show how narrow "
    "they get where there is none."
)
ALIKE = (
    "Both runs have the same machine, versions, environment variables, commit, files and options."
)

_KINDS: dict[Kind, str] = {
    "machine": "machines",
    "versions": "versions",
    "environment": "environment variables",
    "code": "code",
    "sources": "files",
    "options": "options",
}

APART = (
    "The two runs were not measured side by side. If the host drifted between them, their step "
    "times differ by that drift too, and neither run can detect it: identical programs that ran "
    f"one after the other differed by {numbers.percent(UNPAIRED_SD)} (standard deviation). "
    "Intervals of step times are therefore much wider than those of a ratio within one run. Where "
    "both runs have the same baseline, the ratios to it are compared instead, because whatever "
    "slows the whole host cancels out of them."
)
"""Why a comparison of two runs is less certain than a ratio within one."""


def setting(compared: Compared) -> str:
    """Return the differences between the runs, in a sentence for each kind."""
    if compared.same_run:
        return SAME_RUN
    if not compared.differences:
        return ALIKE
    by_kind: dict[Kind, list[str]] = {}
    for each in compared.differences:
        # Names of packages, variables and files keep their spelling.
        verbatim = each.kind in ("versions", "environment", "sources")
        by_kind.setdefault(each.kind, []).append(each.name if verbatim else each.name.lower())
    return " ".join(
        f"The {_KINDS[kind]} differ{'s' if kind == 'code' else ''}: "
        f"{(some if kind == 'sources' else listing)(names)}."  # a package may have hundreds
        for kind, names in by_kind.items()
    )


def tally(compared: Compared) -> str:
    """Count cells by verdict, and those without a counterpart."""
    verdicts = counted((change.verdict.word for change in compared.changes), VERDICT_STYLES)
    cells = numbers.count(len(compared.changes), "cell")
    sentences = [
        f"B against A, {cells}: {verdicts}." if verdicts else "No cell has a time in both runs."
    ]
    if compared.ended:
        sentences.append(f"{numbers.count(len(compared.ended), 'cell')} ended differently.")
    only = Counter[str]()
    for (run, _), cells_of_run in compared.only.items():
        only[run] += len(cells_of_run)
    if only:
        parts = [f"{count} only in {run}" for run, count in only.items()]
        sentences.append(f"{listing(parts)}.")
    if compared.untimed:
        sentences.append(f"{compared.untimed} without a time in either.")
    return " ".join(sentences)


def basis(compared: Compared) -> str:
    """Return the number of verdicts by what they are based on, and the margin."""
    counts = Counter[str](change.source for change in compared.changes)
    parts = [
        f"{counts[source]} on {what}"
        for source, what in (
            ("baseline", "ratios to the baseline"),
            ("step time", "step times, which are not paired"),
        )
        if counts[source]
    ]
    margin = numbers.percent(compared.margin)
    return f"Verdicts: {listing(parts)}; margin {margin}." if parts else ""


def caveats(compared: Compared) -> list[Caveat]:
    """Return reasons in both runs' rows to read the changes with care."""
    said = {
        "Damaged files in A": damage(compared.a.damaged),
        "Damaged files in B": damage(compared.b.damaged),
        **(_of_code(compared) | _of_changes(compared) if compared.changes else {}),
    }
    return [Caveat(title, text) for title, text in said.items() if text]


def _of_code(compared: Compared) -> dict[str, str]:
    said: dict[str, str] = {}
    if compared.contents:
        names = {f"implementation {change.implementation}" for change in compared.changes}
        alike = sorted(names - compared.contents.keys())
        rest = f" Those of {listing(alike)} are the same." if alike else ""
        said["Other contents"] = (
            f"The files of {listing(compared.contents)} are not the same in A and B.{rest}"
        )
    kinds = {difference.kind for difference in compared.differences}
    named = {"machine": "machine", "versions": "versions", "environment": "environment variables"}
    if other := [words for kind, words in named.items() if kind in kinds]:
        said["More than the code differs"] = (
            f"A change may come from the {listing(other)} instead of the code. This holds for "
            "changes against the baseline too, because what slows one implementation need not slow "
            "all of them equally."
        )
    runs = {"A": compared.a, "B": compared.b}
    dirty = [name for name, run in runs.items() if run.manifest["git"].get("dirty")]
    if dirty and not compared.same_run:
        said["Uncommitted changes"] = (
            f"The working tree of {listing(dirty)} had uncommitted changes, so the code may differ "
            "in more than the commits do."
        )
    return said


def _of_changes(compared: Compared) -> dict[str, str]:
    changes, said = compared.changes, dict[str, str]()
    if any(change.source == "baseline" for change in changes):
        baselines = {(one.name, one.baseline) for one, _ in compared.blocks}
        steps = [c.step.value for c in changes if (c.block, c.implementation) in baselines]
        times = f" Its step times in B are {ends(steps)} times those in A." if steps else ""
        said["Cannot detect a change of the baseline"] = (
            "A ratio to the baseline cannot show how the baseline itself changed. If it alone "
            f"changed, every other implementation appears to have changed instead.{times}"
        )
    others = [
        f"{a.name} ({a.baseline or 'none'} in A, {b.baseline or 'none'} in B)"
        for a, b in compared.blocks
        if a.baseline != b.baseline
    ]
    if others:
        said["No common baseline"] = f"Only step times are compared in {listing(others)}."
    # An unknown number is NaN, for which the comparison with 0 is false.
    if blocks := {c.block for c in changes if abs(c.b["model_flops"] - c.a["model_flops"]) > 0}:
        said["Not the same work"] = (
            f"A step of {listing(sorted(blocks))} has another number of model FLOPs in B than in "
            "A, so the step times measure different work."
        )
    compiled = [c for c in changes if c.compile is not None]
    if mixed := sum((c.a["cache_hits"] > 0) != (c.b["cache_hits"] > 0) for c in compiled):
        said["Compile times from a cache"] = (
            f"In {numbers.count(mixed, 'cell')}, one run took programs from the compilation cache "
            "and the other compiled them."
        )
    return said
