"""Runs as frames, whose columns are documented with their units, and as tables in a notebook."""

from __future__ import annotations

import io
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.analyse import cell_table
from bench.analyse.cell_figures import MEANINGS
from bench.measure.run_folder import find_run, name_fault
from bench.plan.option_values import BadInput
from bench.records import numbers, store
from bench.records.paths import REPORTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from matplotlib.axes import Axes

    from bench.analyse.comparisons import Comparison

COLUMNS = MEANINGS["cells"] | MEANINGS["samples"]
"""Meaning and unit of the columns of the frames. `bench.records.rows` documents the other columns
of `samples`."""

_VERDICTS = (
    *("block", "implementation", "baseline", "status", "reason", "verdict", "ratio", "ratio_low"),
    *("ratio_high", "verdict_low", "verdict_high", "proved_same"),
    *("tier", "behind_low", "behind_high", "step_s"),
)


def load(run: str | Path) -> Results:
    """Load a stored run by its name in reports/ or by its folder; `last` is the newest.

    Raises:
      ValueError: there is no such run.
      StoreError: its manifest is damaged or of another version.
    """
    try:
        return Results(store.load(find_run(str(run))))
    except BadInput as error:
        raise ValueError(str(error)) from None


class Results:
    """The results of a run; `COLUMNS` documents the columns of the frames.

    Args:
      run: the stored run.
      rows: further arguments of bench.records.store.add_launch, if the run is not stored yet.
    """

    def __init__(self, run: store.Run, rows: tuple[Any, ...] | None = None) -> None:
        self.run = run
        self._rows = rows

    @cached_property
    def tables(self) -> cell_table.Tables:
        """All tables from which a report is made."""
        return cell_table.build(self.run)

    @property
    def cells(self) -> pd.DataFrame:
        """One row per cell."""
        return self.tables.cells

    @property
    def samples(self) -> pd.DataFrame:
        """One row per turn of an arm in a round."""
        return self.run.samples

    @property
    def verdicts(self) -> pd.DataFrame:
        """One row per cell: its verdict against the baseline, and how far it is behind the fastest.

        The fastest of a block come first, and cells without a time last.
        """
        ordered = self.cells.sort_values(["block", "ratio"], kind="stable", ignore_index=True)
        return ordered[list(_VERDICTS)]

    def to_frame(self) -> pd.DataFrame:
        """Return `verdicts`."""
        return self.verdicts

    def report(self, name: str | None = None) -> Path:
        """Store the run in reports/ of this folder, and write its report; returns the page's path.

        A run that is already stored there stays in its folder.

        Raises:
          ValueError: the name is taken, is not a plain folder name, or is not that of the folder
            in which the run is already stored.
        """
        from bench.present.report_files import build  # noqa: PLC0415 (it loads drawing libraries)

        if self._rows is not None:
            if name and (fault := name_fault(name)):
                raise ValueError(f"report: {fault}")
            place = store.create(REPORTS, {**self.run.manifest, "run": name or ""})
            store.add_launch(place, *self._rows)
            self.run, self._rows = store.load(place), None
        elif name and name != self.run.directory.name:
            raise ValueError(f"{name!r}: the run is already stored as {self.run.directory.name!r}")
        return build(self.run)

    def plot(self, kind: str = "ratios", of: str = "", axes: Axes | None = None) -> Axes:
        """Draw a chart on matplotlib axes, and return them.

        Args:
          kind: "ratios" for the step times of a block over its baseline's; "scaling" for step times
            against the number of devices.
          of: name of the block or curve, or a part of it that occurs in no other.
          axes: to draw on; those of a new figure by default.

        Raises:
          ValueError: there is no such chart, or more than one; the message lists them.
        """
        from lockstep.axes_plots import draw  # noqa: PLC0415 (it loads a drawing library)

        return draw(self.tables, kind, of, axes)

    def __repr__(self) -> str:
        from rich.console import Console  # noqa: PLC0415 (see above)

        from bench.present.terminal import table  # noqa: PLC0415

        text = io.StringIO()
        # In a notebook, rich would display the text instead of writing it.
        console = Console(
            file=text, width=100, highlight=False, color_system=None, force_jupyter=False
        )
        for block in self.tables.comparisons:
            console.print(_title(block), markup=False, soft_wrap=True)
            console.print(table(*_HEADINGS, rows=self._lines(block)))
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())

    def _repr_html_(self) -> str:
        from markupsafe import escape  # noqa: PLC0415

        parts = []
        for block in self.tables.comparisons:
            head = "".join(f"<th>{name.removeprefix('>')}</th>" for name in _HEADINGS)
            body = "".join(
                f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>"
                for row in self._lines(block)
            )
            parts.append(f"<p><b>{escape(_title(block))}</b></p><table>{head}{body}</table>")
        return "".join([*parts, *self._plots()])

    def _plots(self) -> list[str]:
        """Return the plots of ratios, as SVG."""
        from bench.present import print_plots  # noqa: PLC0415

        charts = print_plots.draw(self.tables).charts
        return [
            chart.plot.svg[chart.plot.svg.index("<svg") :]
            for chart in charts
            if chart.kind == "ratios"
        ]

    def _lines(self, block: Comparison) -> list[list[str]]:
        rows = self.verdicts[self.verdicts["block"] == block.name].to_dict("records")
        return [_row(row) for row in rows]


_HEADINGS = ("name", ">step", ">ratio", "95 % interval", "verdict")


def _title(block: Comparison) -> str:
    rounds = numbers.count(len(block.rounds.throughput), "round")
    return f"{block.subject}, {block.place}: {rounds}, verdicts sure to 99 %"


def _row(cell: Mapping[Any, Any]) -> list[str]:
    from bench.present.bounds import describe_verdict  # noqa: PLC0415
    from bench.present.columns import between, formatted  # noqa: PLC0415

    if cell["status"] != "ok":
        return [cell["implementation"], "", "", "", f"{cell['status']}: {cell['reason']}"]
    verdict = "baseline"
    if cell["implementation"] != cell["baseline"]:
        low, high = cell["verdict_low"], cell["verdict_high"]
        ends = between(low, high, "ratio")
        apart = bool(ends) and not low <= 1 <= high and not cell["proved_same"]
        verdict = (
            f"{cell['verdict']}: {f'{ends} times as long' if apart else describe_verdict(cell)}"
        )
    return [
        cell["implementation"],
        formatted(cell["step_s"], "s"),
        formatted(cell["ratio"], "ratio"),
        between(cell["ratio_low"], cell["ratio_high"], "ratio"),
        verdict,
    ]
