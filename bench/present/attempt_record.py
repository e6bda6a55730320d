"""A referee's ledger in words, and as a curve of the record over all attempts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.analyse.outcomes import Ruling, record
from bench.analyse.same_programs import relation
from bench.present import bounds, program_sentences
from bench.present.columns import Column, Table
from bench.present.plots.vega_plot import WIDTH, Plot, compose, spec_of
from bench.present.rendering import write_pages
from bench.records import numbers
from bench.records.attempts import Attempt, Ledger
from bench.records.step_programs import StepProgram


def diagnosis(
    ruling: Ruling, name: str, other: str, programs: Mapping[str, StepProgram]
) -> list[str]:
    """Explain the outcome of one implementation against another by their programs, by cell."""
    if not ruling.cells:  # without times
        return []
    said = program_sentences.describe_relation(name, other, relation(*ruling.cells))
    return [said, *program_sentences.changes(ruling.cells, "incumbent", programs)]


def sentence(attempt: Attempt) -> str:
    """Return an attempt in one line: `keep 12 mine: 4.1 % to 6.0 % faster, ratio 0.951`."""
    text = f"{attempt.get('decision', 'undecided')} {attempt['number']} {attempt['name']}"
    ratio, low, high = attempt.get("ratio"), attempt.get("low"), attempt.get("high")
    if ratio is None or low is None or high is None:
        why = "too few rounds for an interval" if "decision" in attempt else "interrupted"
        return f"{text}: {attempt.get('reason') or why}"
    word = "faster" if high < 1 else "slower" if low > 1 else "of the same time"
    reason = f" ({attempt['reason']})" if attempt.get("reason") else ""
    return f"{text}: {bounds.sure(low, high)} {word}, ratio {numbers.ratio(ratio)}{reason}"


def summary(ledger: Ledger) -> str:
    """Return the record in one line."""
    curve = record(ledger.question, ledger.attempts)
    kept = sum(one.get("decision") == "keep" for one in ledger.attempts)
    return (
        f"Record: {numbers.ratio(curve[-1])} times the first incumbent, "
        f"{ledger.question['name']}, after {numbers.count(len(curve), 'attempt')}, {kept} kept"
    )


def build(ledger: Ledger) -> Path:
    """Write a page and a Markdown file beside the ledger, or raise OSError; return the page."""
    curve = record(ledger.question, ledger.attempts)
    unknown = dict.fromkeys([*(column.key for column in _COLUMNS), "tested"])
    table = Table("Attempts", _COLUMNS, [
        {**unknown, **one, "record": best}
        for one, best in zip(ledger.attempts, curve, strict=True)
    ])  # fmt: skip
    plot = _plot(ledger, curve)
    plot.write(ledger.path.parent)
    return write_pages(
        ledger.path.parent, "referee", file=ledger.path.stem,
        block=ledger.question["block"], headline=f"{summary(ledger)}.", table=table, plot=plot,
    )  # fmt: skip


_COLUMNS = (
    Column("number", "Attempt", format="count"),
    Column("name", "Challenger"),
    Column("decision", "Decision"),
    Column("ratio", "Ratio", "to its incumbent", "ratio"),
    Column("low", "Sure", "at least", "ratio"),
    Column("high", "Sure", "at most", "ratio"),
    Column("level", "Error", "of the verdict", "scientific",
           value=lambda one: one["level"] if one["tested"] is not False else None),
    Column("record", "Record", "over the first", "ratio"),
    Column("seconds", "Duration", "of its command",
           value=lambda one: None if one["seconds"] is None else numbers.clock(one["seconds"])),
    Column("reason", "Reason", long=True),
)  # fmt: skip


def _plot(ledger: Ledger, curve: Sequence[float]) -> Plot:
    rows = [{"number": 0, "record": 1.0, "kept": False}]
    rows += [
        {"number": one["number"], "record": best, "kept": one.get("decision") == "keep"}
        for one, best in zip(ledger.attempts, curve, strict=True)
    ]
    title, block = "The record over all attempts", ledger.question["block"]
    spec = spec_of("record", {"rows": rows, "width": WIDTH - 80})
    return compose(ledger.path.stem, spec, title, block)
