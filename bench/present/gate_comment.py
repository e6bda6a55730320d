"""A gate's outcome as a comment on a pull request, and on a terminal.

Names, reasons and the revision are controlled by the author of the change. In Markdown they are
code spans, in which GitHub renders no links, mentions or markup.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from bench.analyse.outcomes import NOT_MEASURED, WORDS, Case, Outcome, Word
from bench.analyse.verdicts import ALPHA, margin_of
from bench.present import bounds, command_lines, program_sentences, sentences, terminal
from bench.present.columns import Column, Figure, Table, ratio_figure
from bench.present.markdown import macros
from bench.present.run_environment import chips
from bench.records import numbers, printable

FILE = "regress.md"
LONGEST = 65_536
"""Characters of a comment that GitHub accepts."""

_SHORT = 10
"""Digits of a commit's id that are shown."""

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


def markdown(outcome: Outcome, most: int = 1000) -> str:
    """Render the summary in GitHub's Markdown; its lists have `most` cases, fewer if it is long."""
    matters = [case for case in outcome.cases if case.word not in QUIET]
    rest = outcome.of(*QUIET)
    parts = [f"### {headline(outcome, code(outcome.gate['revision']))}", tally(outcome.cases)]
    if matters:
        parts.append(_listed(matters, most))
    if rest:
        parts += [f"<details><summary>{tally(rest)}</summary>", _listed(rest, most), "</details>"]
    if changed := [*_changes(outcome)][:most]:
        parts += ["What else changed:", "\n".join(changed)]
    parts += [*_reading(outcome), *_setting(outcome), f"    {_plain(command(outcome))}"]
    text = "\n\n".join(parts) + "\n"
    return text if len(text) <= LONGEST or not most else markdown(outcome, most // 2)


def show(outcome: Outcome, console: Console) -> None:
    """Print the cases that matter, then the outcome and the compared revisions."""
    if matters := [case for case in outcome.cases if case.word not in QUIET]:
        terminal.show(console, _table(matters, _plain), changes=True)
    style = "bold red" if outcome.code or outcome.ended else "bold green"
    console.print(Text(headline(outcome, _plain(outcome.gate["revision"])), style=style))
    console.print(terminal.plain(tally(outcome.cases)))
    for line in _compared(outcome, _plain):
        console.print(terminal.plain(line, "dim"))


def headline(outcome: Outcome, revision: str) -> str:
    """Summarize the outcome in one line; `revision` is the base's displayed name."""
    of = f"{numbers.count(len(outcome.cases), 'comparison')} with {revision}"
    broken, slower, open_ = (len(outcome.of(w)) for w in ("broken", "slower", "undecided"))
    if outcome.ended:
        missing = sum(case.reason == NOT_MEASURED for case in outcome.cases)
        return f"No outcome, {outcome.ended}: {missing or 'part'} of {of} not measured"
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
    """Return the command that repeats the gate; with one repository, it names the base's commit."""
    name, revision, *rest = outcome.run.manifest["argv"]
    repositories = outcome.gate["repositories"]
    base = repositories[0]["base"] if len(repositories) == 1 else revision
    return command_lines.of_words((name, base, *rest))


def code(text: str) -> Markup:
    """Return a code span on one line that no text can close, not even within a table."""
    # A backslash does not escape a bar reliably: it may follow other backslashes.
    text = _plain(text).replace("|", "\N{BROKEN BAR}")
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    room = " " if "`" in text else ""
    return Markup(f"{fence}{room}{text}{room}{fence}")  # noqa: S704 (is inert in a code span)


def _plain(text: str) -> str:
    """Put text on one line, without characters that terminals or readers do not display."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _table(cases: Sequence[Case], name: Callable[[str], str]) -> Table:
    """Return a table of cases with their reasons as remarks; `name` displays the author's text."""
    columns = (
        Column("cell", "Cell", value=lambda case: Figure(name(case.cell))),
        Column("base", "Base", format="s", value=lambda case: case.base.get("step_s")),
        Column("head", "Head", format="s", value=lambda case: case.head.get("step_s")),
        Column("ratio", "Ratio", "95 % interval", "ratio",
               lambda case: ratio_figure(case.claim and case.claim.ratio)),
        Column("word", "Verdict", detail=_sure),
    )  # fmt: skip
    reasons = ((case.cell, printable.shortened(case.reason)) for case in cases if case.reason)
    remarks = [": ".join(map(name, remark)) for remark in reasons]
    return Table("Head against base", columns, cases, remarks=remarks)


def _listed(cases: Sequence[Case], most: int) -> str:
    shown = _table(cases[:most], code)
    left = [f"and {len(cases) - most} more, which the report lists"] if len(cases) > most else []
    return "\n".join([macros().table(shown), *(f"- {text}" for text in (*shown.remarks, *left))])


def _sure(case: Case) -> str:
    if case.claim is None:
        return ""
    verdict = case.claim.verdict
    return bounds.EQUAL if verdict.proved else bounds.sure(verdict.low, verdict.high)


def _changes(outcome: Outcome) -> Iterator[str]:
    """Describe other effects of new package versions; for a revision, `explain` does that."""
    for case in outcome.cases if "versions" in outcome.gate else ():
        both = case.head, case.base
        said = program_sentences.changes(both, "base", outcome.run.programs) if case.claim else ()
        if found := "; ".join(map(code, said)):
            yield f"- {code(case.cell)}: {found}"


def _reading(outcome: Outcome) -> Iterator[str]:
    margin = numbers.percent(margin_of(outcome.run.manifest))
    apart = "versions" in outcome.gate
    where = ", all in processes of their own" if apart else " in the same processes"
    yield (
        f"Ratio: the head's step time over its base's, measured in turns{where}; "
        f"below 1, the head is faster. Differences under the margin of {margin} do not matter. By "
        f"design, the probability of any wrong verdict is at most {100 * ALPHA:g} %. Both use the "
        "head's workload, proof and clock."
    )
    if floors := {b.name: b.floor_width for b in outcome.blocks if b.ranked and b.floor_width}:
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
    gate, manifest = outcome.gate, outcome.run.manifest
    yield from _compared(outcome, code)
    if "versions" in gate:
        packages = ", ".join(f"{name} {number}" for name, number in gate["versions"].items())
        yield f"The base ran with {code(packages)}."
    versions = ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())
    most = max((block.launches for block in outcome.blocks), default=0)
    launches = numbers.count(most, "launch", "launches")
    device = code(chips(manifest))
    yield f"Measured in {launches} per block on {device} with {code(versions)}. Reproduce:"
