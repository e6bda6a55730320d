"""The data of a report's page, as JSON: every figure in its charts and tables.

Tables are in the form of `columns.Table.for_page`. Further data for charts is stored as columns of
equal length, whose rows refer to one another by index. Numbers have `columns.DIGITS` significant
digits; samples, which are only drawn, have five; samples.csv has all of them.
bench/present/web/data.js is the only reader.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.analyse import block_ratios, loss_curves
from bench.analyse.causes import parts, sides
from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.present import cell_columns, charts, phase_tables, run_tables, trace_tables
from bench.present.cell_columns import Row
from bench.present.columns import Table, shortened
from bench.present.plots.kinds import sample
from bench.present.trace_tables import operation_name
from bench.records import printable
from bench.records.arms import implementation_of
from bench.records.paths import adapt_commands
from bench.records.rows import Manifest
from bench.records.statuses import STATUSES
from bench.records.step_programs import compressed, unpacked

MOST_ROUNDS = 200
"""Limit on a block's rounds whose samples the page has, evenly spaced; samples.csv has all."""

MOST_STEPS = 200
"""Limit on the points of a loss curve, evenly spaced; losses.csv has every step."""

MOST_DRAWN = 6_000_000
"""Limit on the characters of all drawn steps together; the stored rows of traces have every one."""

MOST_PACKED = 1_000_000
"""Limit on the characters of all programs' operations as stored; the rows of cells have all."""

FIGURES = tuple(
    {figure: None for chart in charts.CHARTS.values() for figure in chart.get("figures", ())}
)
"""Figures of a cell that charts need in addition to the columns of its table."""

Columns = dict[str, Any]


def build(found: Tables, manifest: Manifest) -> dict[str, Any]:
    """Return all data of the page, ready for `encode`."""
    return _PageData(found, manifest).all()


def encode(value: dict[str, Any]) -> str:
    """Return JSON that is safe in an HTML script element: no text can close it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub(r"[<>&\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text)


class _PageData:
    """The data of one page, whose parts refer to one another by numbers."""

    def __init__(self, found: Tables, manifest: Manifest) -> None:
        self.found, self.manifest = found, manifest
        self.cells = cell_columns.rows(found, manifest)
        self.names = sorted({cell["implementation"] for cell in self.cells.values()})
        self.arms = {name: number for number, name in enumerate(self.names)}
        self.subjects = list(dict.fromkeys(block.subject for block in found.comparisons))
        self.of_block = {block.name: number for number, block in enumerate(found.comparisons)}
        self.of_cell = {name: number for number, name in enumerate(self.cells)}
        self.trainings = loss_curves.find(found)

    def all(self) -> dict[str, Any]:
        """Return every part, by the names that data.js uses."""
        found, cells = self.found, list(self.cells.values())
        named = f"{self.manifest['run']}-cells"
        every = Table("All cells", cell_columns.COLUMNS, cells, name=named, cell=itemgetter("cell"))
        tables = (
            run_tables.losses(self.trainings),
            run_tables.variants(block_ratios.option_effects(found.comparisons), self.manifest),
            run_tables.processes(found.comparisons),
            *phase_tables.tables(found, found.comparisons),
            run_tables.largest(found.largest),
        )
        return {
            "statuses": {name: status.label for name, status in STATUSES.items()},
            "implementations": self.names,
            "approximate": sorted(
                {self.arms[cell["implementation"]] for cell in cells if cell["approximate"]}
            ),
            **charts.for_page(self.names),
            "subjects": self.subjects,
            "blocks": self._blocks(),
            "cells": every.for_page(self.of_cell) | {"figures": self._figures(cells)},
            "tables": [table.for_page(self.of_cell) for table in tables if table],
            "curves": self._curves(),
            **self._traced(),
            "serving": adapt_commands("nox -s tensorboard"),
            "programs": self._programs(),
            "losses": self._losses(),
        }

    def _figures(self, cells: Sequence[Row]) -> Columns:
        return {
            "block": [self.of_block[cell["block"]] for cell in cells],
            "arm": [self.arms[cell["implementation"]] for cell in cells],
            "paired": [cell["paired"] for cell in cells],
            "unit": shortened(cell["unit"] or "" for cell in cells),
            "layout": shortened(self.found.layouts.get(name) for name in self.cells),
            "reason": shortened(printable.shortened(cell["reason"]) for cell in cells),
            **{name: shortened(cell[name] for cell in cells) for name in FIGURES},
        }

    def _blocks(self) -> Columns:
        rows = []
        for block in self.found.comparisons:
            ceilings = block.ceilings
            rounds = sample(range(len(block.rounds.attempt)), MOST_ROUNDS)
            rows.append({
                "name": block.name,
                "subject": self.subjects.index(block.subject),
                "mesh": str(block.block.mesh),
                "batch": block.block.batch,
                "devices": block.block.mesh.size,
                "oversubscribed": block.oversubscribed,
                "baseline": self.arms.get(block.baseline, -1),
                "margin": block.margin,
                "floor": block.floor_width,
                "matmul": ceilings and ceilings["matmul_flops"],
                "bandwidth": ceilings and ceilings["memory_bytes"],
                "facts": [*run_tables.facts(block, self.manifest)],
                "ratios": _ratios(block, self.arms),
                "leaders": [self.arms[arm] for arm in block.standings.leaders],
                "spread": shortened([block.standings.largest_ratio])[0],
                "launch": [int(block.rounds.attempt[place]) for place in rounds],
                "samples": {
                    str(self.arms.get(arm, "twin")): shortened(micros[rounds].tolist(), 5)
                    for arm in block.rounds.arms
                    if implementation_of(arm) == arm
                    for micros in [1e6 * block.rounds.seconds(arm)]
                },
            })  # fmt: skip
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}

    def _curves(self) -> list[dict[str, Any]]:
        return [
            {
                "title": curve.title,
                "subject": self.subjects.index(curve.subject),
                "slug": curve.slug,
                "cell": [self.of_cell[name] for name in curve.points["cell"]],
                "ideal": curve.ideal.tolist(),
                "over": curve.oversubscribed_from,
                **{
                    name: shortened(curve.points[name].tolist())
                    for name in ("efficiency", "efficiency_q1", "efficiency_q3")
                },
            }
            for curve in self.found.curves
            if curve.subject in self.subjects
        ]

    def _programs(self) -> str:
        """Return the operations of cells' programs, compressed; empty if none are stored.

        `operations` has source, opcode, result and bytes of each distinct one; `cells` has, by cell
        number, the indices of its operations, each followed by its runs.
        """
        stored = {name: text for name, text in self.found.programs.items() if name in self.of_cell}
        places: dict[tuple[str, str, str, int], int] = {}
        cells = {}
        for name, text in _fitting(self.found, stored, MOST_PACKED).items():
            own = cells[self.of_cell[name]] = list[int]()
            for one in unpacked(text):
                kind = (one.source, one.opcode, one.result, one.bytes)
                own += [places.setdefault(kind, len(places)), one.runs]
        return compressed({"operations": list(places), "cells": cells}) if cells else ""

    def _traced(self) -> dict[str, Any]:
        """Return how traced steps spend their time, so that the page need only subtract.

        `causes` has `what` and `source` of each cause, as columns. `traced` has by cell number:
        `causes`, the numbers of the step's causes; `ns`, the nanoseconds of each as in
        `causes.sides`, operations of all sizes together; and `transposing`, the causes whose
        operations change an array's layout.
        """
        causes: dict[tuple[str, str], int] = {}
        steps, traced = drawn_steps(self.found), {}
        for name, trace in self.found.traces.items():
            seconds: defaultdict[int, float] = defaultdict(float)
            transposing: set[int] = set()
            for key, side in sides(trace).items():
                cause = causes.setdefault((operation_name(key), key.source), len(causes))
                seconds[cause] += side.seconds
                transposing |= {cause} if side.transposes else set()
            traced[str(self.of_cell[name])] = {
                "parts": parts(trace),
                "causes": list(seconds),
                "transposing": sorted(transposing),
                "ns": [round(1e9 * each, 1) for each in seconds.values()],
                "viewer": trace_tables.trace_viewer(trace),
                "drawn": steps.get(name),
                "why": self.cells[name]["cause"].sentence,
            }
        columns = {"what": [what for what, _ in causes], "source": [source for _, source in causes]}
        left = len(self.found.traces) - len(steps)
        return {"causes": columns, "traced": traced, "steps_left_out": left}

    def _losses(self) -> list[dict[str, Any]]:
        """Return thinned loss curves of blocks; differences are maxima over all steps so far."""
        return [
            {
                "block": self.of_block[training.block.name],
                "steps": [step + 1 for step in steps],
                "of": training.steps,
                "tolerance": training.reference.tolerance,
                "curves": [
                    {
                        "cell": self.of_cell.get(f"{training.block.name}/{curve.arm}"),
                        "name": curve.arm,
                        "loss": _at(curve.losses, steps),
                        "apart": _at(np.maximum.accumulate(curve.differences), steps),
                    }
                    for curve in training.every
                ],
            }
            for training in self.trainings
            for steps in [sample(range(training.steps), MOST_STEPS)]
        ]


def _ratios(block: Comparison, arms: Mapping[str, int]) -> dict[str, list[float | None]]:
    """Return the ratios of `explain` for arms that shared rounds, by the arms' numbers: `3/5`.

    Each is the first's time over the second's, with the ends of the interval that holds for all
    pairs of the block simultaneously, or None where there is no interval.
    """
    pairs, logs = block.all_pairs()
    figures = shortened(np.exp(np.where(np.isfinite(logs), logs, np.nan)).ravel().tolist())
    return {
        f"{arms[arm]}/{arms[other]}": figures[3 * place : 3 * place + 3]
        for place, (arm, other) in enumerate(pairs)
        if figures[3 * place] is not None
    }


def drawn_steps(found: Tables, most: int = MOST_DRAWN) -> dict[str, str]:
    """Return the compressed steps that the page draws, by cell: those for which `most` has room."""
    stored = {name: trace["drawn"] for name, trace in found.traces.items()}
    return _fitting(found, stored, most)


def _fitting(found: Tables, stored: Mapping[str, str], most: int) -> dict[str, str]:
    """Return the texts of cells that fit into `most` characters together.

    Of every block, the fastest implementation, the baseline and the slowest come first; the others
    follow from the fastest to the slowest. A text that has no room is left out.
    """
    orders = []
    for block in found.comparisons:
        own = [cell["cell"] for cell in block.ranked if cell["cell"] in stored]
        first = [*own[:1], f"{block.name}/{block.baseline}", *own[-1:]]
        orders.append([name for name in dict.fromkeys([*first, *own]) if name in stored])
    chosen = {}
    for name in dict.fromkeys([*filter(None, chain(*zip_longest(*orders))), *stored]):
        if len(stored[name]) <= most:
            chosen[name] = stored[name]
            most -= len(stored[name])
    return chosen


def _at(values: NDArray[np.float64], places: Sequence[int]) -> list[float | None]:
    return shortened(values[place] if place < len(values) else None for place in places)
