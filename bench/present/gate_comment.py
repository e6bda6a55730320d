"""A gate's outcome as a comment on a pull request, and on a terminal.

Names, reasons and the revision are controlled by the author of the change. In Markdown they are
code spans, in which GitHub renders no links, mentions or markup.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column
from rich.text import Text

from bench.analyse.outcomes import NOT_MEASURED, WORDS, Case, Outcome, Word
from bench.analyse.ratio_intervals import floor_width
from bench.analyse.verdicts import ALPHA, margin_of
from bench.present import bounds, program_sentences, sentences
from bench.present.columns import between
from bench.present.run_environment import chips
from bench.present.terminal import table
from bench.records import files, numbers
from bench.records.statuses import CHANGE_STYLES

FILE = "regress.md"

_SHORT = 10
"""Digits of a commit's id that are shown."""

_MOST = 300
"""Characters of a reason that are shown."""

FINDINGS: dict[Word, str] = {
    "broken": "the cell was right at the base and is not right now",
    "slower": "the head takes longer, possibly by more than the margin",
    "undecided": "the measurement shows neither a difference nor its absence",
    "faster": "the head takes less time, possibly by more than the margin",
    "fixed": "the cell is right now and was not right at the base",
    "same": "any difference is smaller than the margin, or head and base run the same program",
    "neither": "the cell was wrong or unsupported at the base, and is not right now either",
}
"""Meaning of each outcome of a comparison."""

QUIET: frozenset[Word] = frozenset({"same", "neither"})
"""Outcomes that need no attention."""

_HEADINGS = ("Cell", "Base, ms", "Head, ms", "Ratio (95 % interval)", "Verdict")


def write(outcome: Outcome, directory: Path) -> Path:
    """Write the summary for a pull request into the run's folder, and return its path."""
    path = directory / FILE
    files.write(path, markdown(outcome))
    return path


def markdown(outcome: Outcome) -> str:
    """Render the summary in GitHub's Markdown: the outcome first, then the cases that matter."""
    matters = [case for case in outcome.cases if case.word not in QUIET]
    others = outcome.of(*QUIET)
    lines = [f"### {headline(outcome, code(outcome.gate['revision']))}", "", tally(outcome.cases)]
    if matters:
        lines += ["", *_table(matters)]
    notes = [f"- {code(case.cell)}: {_note(case)}" for case in matters if case.reason]
    if notes:
        lines += ["", *notes]
    if others:
        lines += ["", f"<details><summary>{tally(others)}</summary>", "", *_table(others)]
        lines += ["", "</details>"]
    if changed := list(_changes(outcome)):
        lines += ["", "What else changed:", "", *changed]
    for paragraph in (*_reading(outcome), *_setting(outcome)):
        lines += ["", paragraph]
    return "\n".join([*lines, "", f"    {_plain(command(outcome))}", ""])


def show(outcome: Outcome, console: Console) -> None:
    """Print the cases that matter, then the outcome and the compared revisions."""
    shown = table("cell", ">base ms", ">head ms", ">ratio (95 %)", Column("verdict", no_wrap=True))
    notes = Text()
    for case in outcome.cases:
        if case.word in QUIET:
            continue
        verdict = Text(case.word, style=CHANGE_STYLES[case.word])
        shown.add_row(Text(_plain(case.cell)), *_figures(case), verdict)
        note = _brief(case.reason) or _sure(case)
        if note:
            notes.append(f"{_plain(case.cell)}\n").append(f"  {note}\n", style="dim")
    console.print()
    if shown.row_count:
        console.print(shown)
        console.print(notes)
    style = "bold red" if outcome.code or outcome.ended else "bold green"
    console.print(Text(headline(outcome, _plain(outcome.gate["revision"])), style=style))
    console.print(Text(tally(outcome.cases)))
    for line in _compared(outcome, _plain):
        console.print(Text(line, style="dim"))


def headline(outcome: Outcome, revision: str) -> str:
    """Summarize the outcome in one line; `revision` is the base's displayed name."""
    of = f"{numbers.count(len(outcome.cases), 'comparison')} with {revision}"
    broken, slower, open_ = (len(outcome.of(w)) for w in ("broken", "slower", "undecided"))
    if outcome.ended:
        missing = sum(case.reason == NOT_MEASURED for case in outcome.cases)
        return f"No outcome, {outcome.ended}: {missing} of {of} not measured"
    if broken:
        return f"Broken: {broken} of {of} no longer right"
    if slower:
        return f"Regression: slower in {slower} of {of}"
    if outcome.code:
        return f"Undecided: {open_} of {of}, and none slower"
    return f"No regression in {of}" + (f", {open_} undecided" if open_ else "")


def tally(cases: Sequence[Case]) -> str:
    """Count the cases of each kind: `1 slower, 12 same`."""
    return sentences.counted((case.word for case in cases), WORDS)


def command(outcome: Outcome) -> str:
    """Return the command that repeats the gate, with the base's commit if there is just one."""
    name, revision, *rest = outcome.manifest["argv"]
    repositories = outcome.gate["repositories"]
    if len(repositories) == 1:
        revision = repositories[0]["base"]
    return shlex.join(["python", "-m", "bench", name, revision, *rest])


def code(text: str) -> str:
    """Return a code span on one line that no text can close, not even within a table."""
    # A backslash does not escape a bar reliably: it may follow other backslashes.
    text = _plain(text).replace("|", "\N{BROKEN BAR}")
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _plain(text: str) -> str:
    """Put text on one line, without characters that terminals or readers do not display."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _brief(reason: str) -> str:
    """Return the beginning of a reason; the report has all of it."""
    line = _plain(reason)
    return line if len(line) <= _MOST else f"{line[:_MOST]} ..."


def _table(cases: Sequence[Case]) -> Iterator[str]:
    yield f"| {' | '.join(_HEADINGS)} |"
    yield "|:--|--:|--:|--:|:--|"
    for case in cases:
        verdict = case.word if case.word in QUIET else f"**{case.word}**"
        if not case.reason and _sure(case):
            verdict += f": {_sure(case)}"
        yield f"| {' | '.join([code(case.cell), *_figures(case), verdict])} |"


def _figures(case: Case) -> list[str]:
    """Return milliseconds a step of base and head, and their ratio with its interval."""
    times = [
        numbers.MISSING if seconds is None else numbers.significant(1e3 * seconds)
        for seconds in (case.base_s, case.head_s)
    ]
    if case.ratio is None:
        return [*times, numbers.MISSING]
    interval = between(case.ratio.low, case.ratio.high, "ratio")
    return [*times, numbers.ratio(case.ratio.value) + (interval and f" ({interval})")]


def _note(case: Case) -> str:
    return case.reason if case.reason == NOT_MEASURED else code(_brief(case.reason))


def _sure(case: Case) -> str:
    if case.verdict is None:
        return ""
    proved = case.verdict.proved
    return bounds.EQUAL if proved else bounds.sure(case.verdict.low, case.verdict.high)


def _changes(outcome: Outcome) -> Iterator[str]:
    """Describe other effects of new package versions; for a revision, `explain` does that."""
    for case in outcome.cases if "versions" in outcome.gate else ():
        said = program_sentences.changes(case.rows, "base", outcome.programs) if case.rows else ()
        if found := "; ".join(map(code, said)):
            yield f"- {code(case.cell)}: {found}"


def _reading(outcome: Outcome) -> Iterator[str]:
    margin = numbers.percent(margin_of(outcome.manifest))
    apart = "versions" in outcome.gate
    where = ", all in processes of their own" if apart else " in the same processes"
    yield (
        f"Ratio: the head's step time over its base's, measured in turns{where}; "
        f"below 1, the head is faster. Differences under the margin of {margin} do not matter. The "
        f"probability of any wrong verdict above is at most {100 * ALPHA:g} %. Both use the head's "
        "workload, proof and clock."
    )
    floors = {block: floor_width(floor) for block, floor in outcome.floors.items() if floor}
    if floors:
        worst = max(floors, key=lambda block: floors[block])
        rest = "" if len(floors) == 1 else f", the noisiest of {len(floors)} blocks"
        yield (
            "Noise floor: two copies of one program, measured like head and base, may differ by up "
            f"to {numbers.percent(floors[worst])} in {code(worst)}{rest}."
        )
    said = [word for word in WORDS if outcome.of(word)]
    yield " ".join(f"*{word.capitalize()}*: {FINDINGS[word]}." for word in said)


def _compared(outcome: Outcome, name: Callable[[str], str]) -> Iterator[str]:
    """Describe the compared revisions and what only one of them has; `name` displays a name."""
    gate = outcome.gate
    several = len(gate["repositories"]) > 1
    for repository in gate["repositories"]:
        head = name(repository["head"][:_SHORT]) if repository["head"] else "no commit"
        changes = " with uncommitted changes" if repository["dirty"] else ""
        files = f" ({', '.join(map(name, repository['files']))})" if several else ""
        yield f"Head {head}{changes}, base {name(repository['base'][:_SHORT])}{files}."
    for word in ("new", "removed"):
        if gate[word]:
            yield f"Not compared, because {word} in the head: {', '.join(map(name, gate[word]))}."


def _setting(outcome: Outcome) -> Iterator[str]:
    gate, manifest = outcome.gate, outcome.manifest
    yield from _compared(outcome, code)
    if "versions" in gate:
        told = ", ".join(f"{name} {number}" for name, number in gate["versions"].items())
        yield f"The base ran with {code(told)}."
    versions = ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())
    launches = numbers.count(outcome.launches, "launch", "launches")
    device = code(chips(manifest))
    yield f"Measured in {launches} a block on {device} with {code(versions)}. Reproduce:"
