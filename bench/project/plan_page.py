"""A plan as a page, a Markdown file and a table on the terminal."""

from dataclasses import replace
from pathlib import Path

from markupsafe import Markup, escape
from rich.console import Console
from rich.text import Text

from bench.present import terminal
from bench.present.columns import Column, Figure, Table
from bench.present.rendering import write_pages
from bench.project import prediction_sentences as sentences
from bench.project.mesh_ranking import Plan
from bench.project.prediction_tables import BOUND, INTERVAL, MFU, STEP
from bench.project.step_model import Prediction
from bench.records import frames, numbers

SHOWN = 12
"""Rows on the terminal, for those that fit and for those that do not."""

MESH = Column("mesh", "Mesh", value=lambda one: str(one.program.mesh))
IMPLEMENTATION = Column(
    "implementation", "Implementation", value=lambda one: one.program.cell.implementation
)
MEMORY = Column("memory_bytes", "Memory", "per chip", "bytes", lambda one: one.program.memory_bytes)


def _struck(column: Column) -> Column:
    """Return the column with the values of rows that do not fit struck out."""

    def figure(one: Prediction) -> Figure:
        plain = column.figure(one)
        if one.fits is not False:
            return plain
        return Figure(Markup("<s>{}</s>").format(escape(plain.main)), "does not fit")

    return replace(column, value=figure)


def remarks(plan: Plan) -> list[str]:
    """Return what readers must know about the predicted times and memory."""
    small = sentences.remarks(plan.ranked)
    return [f"A chip has {numbers.bytes_(plan.hardware.memory.bytes.value)} of memory.", *small,
            sentences.MEMORY]  # fmt: skip


def build(plan: Plan, folder: Path) -> Path:
    """Write plan.html, .md, .csv and .parquet into a folder, and return the page.

    Raises:
      OSError: nothing can be written there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    frames.write(plan.frame(), folder, "plan")
    columns = (MESH, _struck(IMPLEMENTATION), STEP, INTERVAL, MFU, BOUND, MEMORY)
    table = Table("Mesh shapes by predicted step time", columns, plan.ranked, remarks=remarks(plan))
    rests = sentences.hardware(plan.hardware)
    return write_pages(folder, "plan", plan=plan, table=table, rests=rests)


def show(console: Console, plan: Plan) -> None:
    """Print the fastest meshes that fit, then those that do not."""
    fitting = [one for one in plan.ranked if one.fits is not False]
    others = plan.ranked[len(fitting) :]
    columns = (MESH, IMPLEMENTATION, STEP, INTERVAL, MFU, MEMORY)
    table = terminal.table("mesh", "implementation", ">step", ">95 %", ">MFU", ">memory", gap=1)
    for one in (*fitting[:SHOWN], *others[:SHOWN]):
        fits = one.fits is not False
        texts = [column.figure(one).main for column in columns]
        texts[3] = texts[3] if fits else "does not fit"
        table.add_row(*map(terminal.plain, texts), style="" if fits else "strike dim")
    console.print(Text(f"predicted: {plan.title}", style="bold"))
    console.print(table)
    notes = [
        f"{len(rest) - SHOWN} {name}, see the page"
        for name, rest in (("more that fit", fitting), ("more that do not fit", others))
        if len(rest) > SHOWN
    ]
    notes += [f"{len(cells)} left out: {reason}" for reason, cells in plan.refused.items()]
    notes += remarks(plan)
    if unsupported := sum(map(len, plan.unsupported.values())):
        notes.append(f"{unsupported} are not supported by their implementations; the page says why")
    for note in notes:
        console.print(terminal.plain(note), style="dim")
