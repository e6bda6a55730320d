"""A run in GitHub's Markdown: a summary that can be pasted elsewhere, then plots, then tables."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from bench.analyse import (
    checkpoint_costs,
    input_cost,
    loss_curves,
    variant_ratios,
)
from bench.analyse.causes import traced_differences
from bench.present import (
    checkpoint_tables,
    command_lines,
    energy_sentences,
    input_tables,
    process_tables,
    sentences,
    text_tables,
    trace_tables,
)
from bench.present.print_plots import sample
from bench.present.rendering import environment
from bench.records import numbers
from bench.records.statuses import STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bench.analyse.cell_table import Tables
    from bench.analyse.comparisons import Comparison
    from bench.present.predicted_curves import Projected
    from bench.present.print_plots import Chart, Figures
    from bench.present.sentences import Caveat
    from bench.present.text_tables import Ending, Table
    from bench.records.largest_batches import MaxBatchRow
    from bench.records.rows import Manifest

BYTES = 450_000
"""Most of tables. GitHub shows no file over 512 KB."""

SECTION = BYTES // 6
"""Most of one section: what is longer could not be read, and would leave others no room."""

LINES = 30
"""Most lines of the summary's table."""

NAMED = 3
"""So many names of a list are given in the summary, and so many reasons for each way to fail."""

REASON = 120
"""Characters of a reason in the summary."""


@dataclass(frozen=True)
class Line:
    """One block in the summary."""

    subject: str
    place: str
    fastest: str
    alone: bool
    """Whether no other is as fast, or may be."""
    time: str
    ratio: str
    """Step time over the baseline's, with its 95 % interval."""


@dataclass(frozen=True)
class Failure:
    """Cells that were wrong, or failed, for one reason."""

    status: str
    reason: str
    cells: str
    """Whose and how many."""


@dataclass(frozen=True)
class Summary:
    """What fits into a comment."""

    run: str
    headline: str
    counts: str
    """Verdicts, what deciding the rest would cost, and how cells ended."""
    lines: list[Line]
    more: str
    """Of which blocks there is no line; empty if all have one."""
    failures: list[Failure]
    unnamed: str
    """How many more reasons there are; empty if all are named."""
    ran_on: str
    caveats: str
    """Their titles; empty if there are none."""


@dataclass(frozen=True)
class Subject:
    """A workload at one size, with one set of options."""

    name: str
    charts: list[Chart]
    undrawn: str
    """What is not drawn; empty if everything is."""
    sections: list[Markup]
    """Tables, in Markdown."""
    untold: str
    """Which tables are left out; empty if none is."""


@dataclass(frozen=True)
class Content:
    """Everything on the page."""

    summary: Summary
    subjects: list[Subject]
    host: Chart | None
    caveats: list[Caveat]
    endings: list[Ending]
    environment: list[tuple[str, str]]
    command: str
    traced: bool
    projected: Projected | None
    """None if the run has no projection."""


def content(
    found: Tables,
    manifest: Manifest,
    drawn: Figures,
    summaries: Mapping[str, sentences.Summary] | None = None,
    projected: Projected | None = None,
) -> Content:
    """Everything the page shows.

    Args:
      found: the run's tables.
      manifest: of the run.
      drawn: its plots.
      summaries: those of `words.summaries`, if they are there.
      projected: its projection, if it has one.
    """
    summaries = summaries or sentences.summaries(found)
    caveats = sentences.caveats(found, manifest)
    endings = text_tables.endings(found.cells)
    blocks: dict[str, list[Comparison]] = {}
    for block in found.comparisons:
        blocks.setdefault(block.subject, []).append(block)
    return Content(
        summary=_summary(found, manifest, summaries, caveats, endings),
        subjects=_subjects(blocks, found, manifest, drawn, summaries),
        host=drawn.host,
        caveats=caveats,
        endings=endings,
        environment=text_tables.environment(manifest, energy_sentences.sentence(found)),
        command=command_lines.of_run(manifest),
        traced=bool(found.traces),
        projected=projected,
    )


def render(page: Content) -> str:
    """The whole page; plots are links into plots/."""
    text = environment(markdown=True).get_template("report.md.j2").render(page=page)
    return re.sub(r"\n{3,}", "\n\n", text)


def render_summary(summary: Summary) -> str:
    """Its first part alone, for a comment on a pull request or an issue."""
    text = environment(markdown=True).get_template("summary.md.j2").render(s=summary)
    return re.sub(r"\n{3,}", "\n\n", text)


def _summary(
    found: Tables,
    manifest: Manifest,
    summaries: Mapping[str, sentences.Summary],
    caveats: Sequence[Caveat],
    endings: Sequence[Ending],
) -> Summary:
    timed = [block for block in found.comparisons if block.ranked]
    shown = sample(timed, LINES)
    failed = [one for one in endings if one.status != STATUSES["unsupported"].label]
    named = [
        one
        for status in dict.fromkeys(one.status for one in failed)
        for one in [each for each in failed if each.status == status][:NAMED]
    ]
    counts = [sentences.decisions(found.cells), sentences.tally(found.cells)]
    return Summary(
        run=manifest["run"],
        headline=sentences.headline(list(summaries.values())),
        counts=" ".join(filter(None, counts)),
        lines=[_line(block, summaries[block.name]) for block in shown],
        more=_of(len(shown), len(timed), "block"),
        failures=[_failure(one) for one in named],
        unnamed=_of(len(named), len(failed), "reason"),
        ran_on=_ran_on(manifest),
        caveats=", ".join(caveat.title.lower() for caveat in caveats),
    )


def _of(shown: int, there: int, what: str) -> str:
    return "" if shown == there else f"Of {there} {what}s, {shown} are shown."


def _line(block: Comparison, summary: sentences.Summary) -> Line:
    # One arm alone leads nobody, but it has a time.
    leaders = summary.leaders or [block.ranked[0]["implementation"]]
    cell = next(cell for cell in block.ranked if cell["implementation"] == leaders[0])
    fastest = leaders[0]
    if len(leaders) > 1:
        how = "undecided against" if summary.undecided else "the same as"
        fastest += f" ({how} {_some(leaders[1:])})"
    return Line(
        subject=block.subject,
        place=block.place,
        fastest=fastest,
        alone=len(leaders) == 1,
        time=numbers.si(cell["step_s"], "s"),
        ratio=_ratio(cell, block),
    )


def _ratio(cell: Mapping[Any, Any], block: Comparison) -> str:
    if cell["implementation"] == block.baseline:
        return "is the baseline"
    claim = block.claims.get(cell["implementation"])
    if claim is None:
        return numbers.MISSING
    interval = numbers.interval(claim.ratio.low, claim.ratio.high)
    return f"{numbers.ratio(claim.ratio.value)} ({interval})"


def _some(names: Sequence[str]) -> str:
    if len(names) <= NAMED:
        return sentences.listing(names)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def _failure(ending: Ending) -> Failure:
    reason = " ".join(ending.reason.split())
    if len(reason) > REASON:
        reason = f"{reason[: REASON - 1]}\N{HORIZONTAL ELLIPSIS}"
    whose = _some(ending.implementations.split(", "))
    return Failure(ending.status, reason, f"{whose}, {numbers.count(len(ending.cells), 'cell')}")


def _ran_on(manifest: Manifest) -> str:
    """One line: devices, host, versions, commit, time."""
    known = dict(text_tables.environment(manifest))
    parts = [known[key] for key in ("Device", "Processor") if key in known]
    parts += [f"{key.lower()} {known[key]}" for key in ("Cores", "Commit") if key in known]
    return "; ".join([*parts, known["Versions"], known["Started"]])


class _Room:
    """What tables may still take of BYTES."""

    def __init__(self) -> None:
        self.left = BYTES

    def take(self, text: str, most: int) -> bool:
        size = len(text.encode())
        if size > min(self.left, most):
            return False
        self.left -= size
        return True


def _subjects(
    blocks: Mapping[str, list[Comparison]],
    found: Tables,
    manifest: Manifest,
    drawn: Figures,
    summaries: Mapping[str, sentences.Summary],
) -> list[Subject]:
    """What is said of whole subjects comes before single blocks, which share the room left."""
    room = _Room()
    changed = variant_ratios.find(found.comparisons)
    trained = loss_curves.find(found)
    general = {
        name: _general(
            own,
            [e for e in changed if e.block.subject == name],
            [one for one in trained if one.block.subject == name],
            [row for row in found.largest if f"{row['workload']}, {row['options']}" == name],
            drawn.subjects[name],
            summaries,
        )
        for name, own in blocks.items()
    }
    kept = {
        name: [text for text in given if room.take(text, SECTION)]
        for name, given in general.items()
    }
    made = []
    for number, (name, own) in enumerate(blocks.items()):
        share = room.left // (len(blocks) - number)
        end = room.left - share
        timed = [block for block in own if block.ranked]
        told = 0
        for block in timed:
            text = Markup("").join(map(_section, _of_block(block, found, manifest)))
            if not room.take(text, room.left - end):
                break
            kept[name].append(text)
            told += 1
        untold = _untold(len(timed) - told, len(general[name]) - (len(kept[name]) - told))
        undrawn = drawn.left_out.get(name, "")
        made.append(Subject(name, drawn.subjects[name], undrawn, kept[name], untold))
    return made


def _untold(blocks: int, others: int) -> str:
    parts = [
        numbers.count(count, what)
        for count, what in ((others, "table of all blocks"), (blocks, "block"))
        if count
    ]
    if not parts:
        return ""
    return f"Left to cells.csv, as this page would become too long: {sentences.listing(parts)}."


def _general(
    blocks: Sequence[Comparison],
    changed: list[variant_ratios.Effect],
    trained: list[loss_curves.Training],
    largest: list[MaxBatchRow],
    charts: Iterable[Chart],
    summaries: Mapping[str, sentences.Summary],
) -> list[Markup]:
    """What is said of a whole subject."""
    of_limits: defaultdict[float, list[MaxBatchRow]] = defaultdict(list)
    for row in largest:
        of_limits[row["limit_bytes"]].append(row)
    found = [
        *(chart.table for chart in charts),
        text_tables.variant(changed) if changed else None,
        text_tables.loss_differences(trained) if trained else None,
        *(text_tables.largest_batches(own) for own in of_limits.values()),
        text_tables.energy(blocks),
        text_tables.communication([block for block in blocks if block.ranked]),
    ]
    verdicts = _macros().verdicts([summaries[block.name] for block in blocks])
    tables = [_section(table) for table in found if table is not None]
    return [Markup(verdicts), *tables]  # noqa: S704 (is escaped)


def _of_block(block: Comparison, found: Tables, manifest: Manifest) -> Iterator[Table]:
    """Tables of one block."""
    reasons = trace_tables.reasons(traced_differences.differences(block, found.traces))
    said = [*reasons.values(), *trace_tables.against_fastest(block, found.traces).values()]
    breakdown = trace_tables.breakdown(block, found.traces, said)
    yield text_tables.comparison(block, manifest, reasons if breakdown else None)
    processes = process_tables.table(block, found.traces)
    given = input_tables.table(input_cost.find([block]))
    saved = checkpoint_tables.table(checkpoint_costs.find([block], found.checkpoints), block.place)
    yield from (table for table in (processes, given, saved, breakdown) if table is not None)


def _section(table: Table) -> Markup:
    return Markup(_macros().section(table))  # noqa: S704 (is escaped)


@cache
def _macros() -> Any:
    return environment(markdown=True).get_template("macros.md.j2").module
