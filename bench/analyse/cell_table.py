"""Tables of a run's stored rows: one row for each cell, and one comparison for each block."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import pandas as pd

from bench.analyse import cell_figures, energy_per_step, peaks, scaling_curves, turn_details
from bench.analyse.block_ratios import idle_shares
from bench.analyse.comparisons import Comparison, compare_arms
from bench.analyse.process_spread import by_devices, with_twin
from bench.analyse.sample_rounds import Rounds, spreads
from bench.analyse.scaling_curves import Scaling
from bench.analyse.turn_details import Throttling
from bench.analyse.verdicts import margin_of
from bench.records import derived_files, largest_batches
from bench.records.arms import ABLATIONS, INPUT_WAYS, TWIN, arm_beside
from bench.records.grouping import grouped
from bench.records.largest_batches import MaxBatchRow
from bench.records.rows import Checkpoint, EnergyMeter, LossRow
from bench.records.store import Run
from bench.records.trace_rows import TraceRow

BLOCK_ORDER = ["workload", "size", "options", "devices", "mesh", "batch"]


@dataclass(frozen=True)
class Tables:
    """All tables from which a report is made."""

    cells: pd.DataFrame
    """One row for each cell; cell_figures.toml explains its columns. NaN or None where a figure is
    unknown; times only if status is `ok`."""
    rows: list[dict[str, Any]]
    """The rows of `cells`."""
    comparisons: list[Comparison]
    traces: dict[str, TraceRow]
    checkpoints: dict[str, Checkpoint]
    layouts: dict[str, str]
    """Traces, checkpoints and layouts are by cell: see bench.records.rows.CellRow."""
    programs: dict[str, str]
    """Operations of its programs, by cell: see bench.records.step_programs."""
    damaged: Sequence[str] = ()
    losses: Sequence[LossRow] = ()
    """Loss curves, of implementations and references: see bench.analyse.loss_curves."""
    meters: Mapping[str, list[EnergyMeter]] = field(default_factory=dict)
    """By block, the energy meter of each attempt, or why there was none; absent in early runs."""
    throttling: Throttling | None = None
    """Throttled turns; None where there are none."""
    largest: Sequence[MaxBatchRow] = ()
    """The largest batches that fit, where they were searched for."""

    @cached_property
    def curves(self) -> list[Scaling]:
        """All scaling curves."""
        return scaling_curves.find(self.cells)


def build(run: Run) -> Tables:
    """Compute the tables of a run."""
    launches = grouped((row["cell"], row) for row in run.last_cell_rows)
    cells = [cell_figures.stored_columns(rows, run.manifest) for rows in launches.values()]
    cells_of = grouped((cell["block"], cell) for cell in cells)
    in_order = sorted(run.block_rows, key=itemgetter(*BLOCK_ORDER))
    blocks = grouped((row["block"], row) for row in in_order)
    ceilings = peaks.ceilings(run.block_rows)
    samples = timed_samples(run)
    of_block = dict.fromkeys(blocks, samples.iloc[:0]) | dict(iter(samples.groupby("block")))
    energy = energy_per_step.measure(samples, run.block_rows)
    device_kind, margin = run.manifest["device_kind"], margin_of(run.manifest)
    arranged = {name: Rounds.of(of_block[name]) for name in blocks}
    apart = {
        name: with_twin((c["implementation"] for c in own if c["foreign"]), rows[0]["baseline"])
        for name, rows in blocks.items()
        for own in [cells_of[name]]
    }
    timed = ((rows[0]["devices"], arranged[name], apart[name]) for name, rows in blocks.items())
    process = by_devices(timed, run.manifest["config"].get("process_spread"))
    comparisons = []
    for name, attempts in blocks.items():
        own, machine, rounds = cells_of[name], ceilings.get(name), arranged[name]
        throughput, latency = (spreads(rounds, figure) for figure in ("throughput", "latency"))
        for cell in own:
            arm = cell["implementation"]
            spread = throughput.get(arm), latency.get(arm)
            cell.update(cell_figures.time_columns(cell, *spread, device_kind))
        comparison = compare_arms(
            attempts, own, of_block[name],
            rounds=rounds, margin=margin, ceilings=machine,
            process=replace(process[attempts[0]["devices"]], apart=frozenset(apart[name])),
        )  # fmt: skip
        level = throughput.get(comparison.baseline)
        for cell in own:
            cell.update(cell_figures.compared_columns(cell, comparison))
            cell.update(cell_figures.side_by_side(cell, comparison, level))
            cell.update(peaks.roofline(cell, machine))
            cell.update(energy_per_step.figures(energy, cell, comparison.baseline))
        comparison.ranked.extend(sorted((c for c in own if c["status"] == "ok"), key=_rank))
        comparisons.append(comparison)
    idle = idle_shares(comparisons)
    for cell in cells:
        cell.update(idle.get((cell["block"], cell["implementation"]), {}))
    cells.sort(key=itemgetter(*BLOCK_ORDER, "implementation"))
    return Tables(
        cells=pd.DataFrame(cells, columns=[*cell_figures.MEANINGS["cells"]]),  # also without rows
        rows=cells,
        comparisons=comparisons,
        traces={row["cell"]: row for row in run.traces},
        layouts={row["cell"]: row["layout"] for row in run.cell_rows if "layout" in row},
        programs={r["cell"]: r["program"]["operations"] for r in run.cell_rows if "program" in r},
        checkpoints={
            row["cell"]: row["checkpoint"] for row in run.last_cell_rows if "checkpoint" in row
        },
        damaged=[*run.damaged, *derived_files.damage(run.directory)],
        losses=run.losses,
        throttling=turn_details.throttling(samples),
        meters={
            name: [row["energy"] for row in attempts if "energy" in row]
            for name, attempts in blocks.items()
        },
        largest=largest_batches.read(run.directory),
    )


def _rank(cell: Mapping[str, Any]) -> tuple[bool, float, float, str]:
    ratio = math.inf if math.isnan(cell["ratio"]) else cell["ratio"]
    return bool(cell["approximate"]), ratio, cell["step_s"], cell["implementation"]


def timed_samples(run: Run) -> pd.DataFrame:
    """Select the samples of `ok` cells in their last attempts, and of the arms beside them."""
    key = itemgetter("block", "launch", "attempt")
    right = {row["cell"] for row in run.decisive() if row["status"] == "ok"}
    timed = [r for r in run.last_cell_rows if r["status"] == "ok" and r["cell"] in right]
    ok = {(*key(row), row["implementation"]) for row in timed}
    twins = {(*key(r), TWIN) for r in run.block_rows if (*key(r), r["baseline"]) in ok}
    ways = (*INPUT_WAYS, *ABLATIONS)
    beside = {(*place, arm_beside(name, way)) for *place, name in ok for way in ways}
    columns = ["block", "launch", "attempt", "arm"]
    arms = pd.DataFrame([*ok, *twins, *beside], columns=columns)
    arms = arms.astype({"launch": run.samples["launch"].dtype})  # also if there are none
    return run.samples.merge(arms, on=columns, how="inner")
