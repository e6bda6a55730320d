"""Tables of a run: blocks, variants, processes, largest batches, losses, failed cells."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter, methodcaller

from rich.console import Console

from bench.analyse import loss_curves, peaks
from bench.analyse.block_ratios import Effect
from bench.analyse.comparisons import Comparison
from bench.analyse.loss_curves import Training
from bench.analyse.scaling_curves import Scaling
from bench.present import program_sentences, sentences, terminal
from bench.present.cell_columns import COLUMNS, IMPLEMENTATION, PLACE, Row
from bench.present.columns import Column, Figure, Table, between, missing, where_known
from bench.records import numbers
from bench.records.grouping import grouped
from bench.records.largest_batches import MaxBatchRow
from bench.records.rows import Manifest
from bench.records.statuses import STATUSES

_COSTS = {"compile_total_s", "memory_bytes"}


def variants(effects: Sequence[Effect], manifest: Manifest) -> Table:
    """Return the effects of variants, other versions, several processes and rematerialization."""
    changes = manifest["config"].get("variants", {})

    def pair(column: Column) -> Column:
        """Return a column of figures with the option and, smaller, without it."""
        return replace(
            column, note="", optional=True, value=lambda effect: column.of(effect.cell),
            detail=lambda effect: f"{column.figure(effect.usual_cell).main} without",
        )  # fmt: skip

    columns = [
        IMPLEMENTATION,
        replace(PLACE, value=lambda effect: effect.block.place),
        Column("option", "Option", filter=True,
               detail=lambda effect: changes.get(effect.option.partition("=")[2], "")),
        Column("ratio", "Ratio", "95 % interval", "ratio",
               value=lambda effect: effect.ratio.value,
               detail=lambda effect: between(effect.ratio.low, effect.ratio.high, "ratio")),
        Column("verdict", "Verdict", value=lambda effect: effect.verdict.word, filter=True),
        *(pair(column) for column in COLUMNS if column.key in _COSTS),
    ]  # fmt: skip
    fact = (
        "Step time over that without the option; compile time and memory with it and without. "
        "Another version, and a variant that races, takes turns with the present one from a "
        "process of its own. Every other option is measured in launches of its own, so its "
        "intervals are wider; more launches narrow them."
    )
    return Table("What options change", columns, effects, [fact], name="variants",
                 cell=lambda effect: effect.cell["cell"])  # fmt: skip


def processes(blocks: Sequence[Comparison]) -> Table:
    """Return the slowest process of each implementation on meshes of several processes."""
    rows = [
        {**cell, "place": block.place, **block.straggling[cell["implementation"]]}
        for block in blocks
        for cell in block.ranked
        if cell["implementation"] in block.straggling
    ]
    columns = [
        IMPLEMENTATION,
        PLACE,
        Column("slowest", "Slowest process", "by rank", "count"),
        Column("often", "How often", "of the spans", "percent"),
        Column("excess", "Spread", "slowest over fastest, median", "percent"),
    ]
    fact = (
        "A step takes as long as its slowest process. Processes wait for one another in "
        "collectives, so their times are close even where their work is not: traces show what each "
        "of them computes."
    )
    return Table(
        "Slowest processes", columns, rows, [fact], name="processes", cell=lambda row: row["cell"]
    )


def largest(rows: Sequence[MaxBatchRow]) -> Table:
    """Return the largest batches that fit."""
    columns = [
        IMPLEMENTATION,
        Column("subject", "Workload", filter=True, long=True, only="page",
               value=lambda row: f"{row['workload']}, {row['options']}"),
        Column("mesh", "Mesh", filter=True),
        Column("batch", "Batch", "global", "count", detail=_refuted),
        Column("status", "Status", filter=True, long=True, detail=lambda row: row["reason"]),
        Column("predicted_bytes", "A device holds", "as planned", "bytes"),
        Column("peak_bytes", "Held", "as measured", "bytes", optional=True),
        Column("limit_bytes", "May hold", "", "bytes", long=True, detail=itemgetter("limit_is")),
        Column("next_batch", "Too large", "planned or run", "count",
               detail=where_known("next_bytes", numbers.bytes_)),
    ]  # fmt: skip
    fact = (
        "What a device would hold is predicted by compiling the step at a series of batch sizes, "
        "to within a sixteenth. The largest that should fit was then run for a few steps, which "
        "proves only that it fits."
    )
    return Table("Largest batch that fits", columns, rows, [fact], name="max_batch")


def _refuted(row: MaxBatchRow) -> str:
    batches = row["refuted"] and sentences.listing(map(str, row["refuted"]))
    was = "was" if len(row["refuted"]) == 1 else "were"
    return f"{batches} {was} predicted to fit, but ran out of memory" if batches else ""


def largest_line(row: MaxBatchRow) -> str:
    """Return a line with the row's cell and its largest batch, or why there is none."""
    cell = "/".join((row["workload"], row["mesh"], row["options"], row["implementation"]))
    if row["batch"] is None:
        return f"{cell}: {row['status']}: {row['reason']}"
    refuted = _refuted(row)
    return f"{cell}: {row['batch']}, which ran{refuted and '; ' + refuted}"


def show_largest(console: Console, rows: Sequence[MaxBatchRow]) -> None:
    """Print a table for each workload with its options and limit."""
    for (workload, options, limit, source), own in groupby(
        rows, key=itemgetter("workload", "options", "limit_bytes", "limit_is")
    ):
        title = f"{workload}, {options}: {numbers.bytes_(limit)} per device, {source}"
        table = largest(list(own))
        columns = [column for column in table.columns if column.key != "limit_bytes"]
        terminal.show(console, replace(table, title=title, columns=columns, facts=()))


def losses(trainings: Sequence[Training]) -> Table:
    """Return the distance of loss curves from the reference's."""
    rows = [(own.block, one) for own in trainings for one in (*own.curves, own.yardstick) if one]
    early = f"in the first {loss_curves.EARLY} steps"
    columns = [
        replace(IMPLEMENTATION, value=lambda row: row[1].arm),
        Column("subject", "Workload", value=lambda row: row[0].subject, filter=True, only="page"),
        Column("place", "Mesh, batch", value=lambda row: row[0].place, filter=True),
        Column("largest", "Largest difference", "relative", "scientific", lambda r: r[1].largest),
        Column("early", "Largest difference", early, "scientific", lambda row: row[1].early),
        Column("beyond", "Above the tolerance", "from step", "count", lambda row: row[1].beyond),
        Column("reason", "Ended early", value=lambda row: row[1].reason or None, long=True,
               optional=True),
    ]  # fmt: skip
    steps = numbers.count(max((len(curve.differences) for _, curve in rows), default=0), "step")
    tolerances = [numbers.scientific(training.reference.tolerance) for training in trainings]
    fact = (
        f"Over {steps} from the same parameters on the same data: the difference from the loss of "
        "the whole batch on one device, in the same dtypes. Every step amplifies rounding; the "
        "rows of the whole batch show how far rounding takes the reference itself. The gate allows "
        f"{' or '.join(dict.fromkeys(tolerances))} within its few steps."
    )
    title = "Largest difference from the reference's loss"
    return Table(title, columns, rows, [fact], name="loss_differences")


def endings(cells: Sequence[Row]) -> Table:
    """Return the cells without a time, grouped by reason, worst first."""
    order = [*STATUSES]
    without = [cell for cell in cells if cell["status"] != "ok"]
    worst_first = sorted(without, key=lambda cell: (order.index(cell["status"]), cell["reason"]))
    reasons = grouped(((cell["status"], cell["reason"]), cell) for cell in worst_first)
    rows = [
        {
            "status": status,
            "reason": reason,
            "implementations": sorted({cell["implementation"] for cell in same}),
            "cells": [cell["cell"] for cell in same],
        }
        for (status, reason), same in reasons.items()
    ]
    columns = [
        Column("status", "Ended", "", "status"),
        Column("reason", "Reason", long=True),
        Column("implementations", "Implementations",
               value=lambda row: ", ".join(row["implementations"])),
        Column("cells", "Cells", value=lambda row: str(len(row["cells"])),
               detail=lambda row: sentences.some(row["cells"])),
    ]  # fmt: skip
    return Table("Wrong, unsupported or failed, by reason", columns, rows)


def scaling(curve: Scaling) -> Table:
    """Return the figures of a scaling plot: step time, and efficiency below it."""
    shown = (curve.points[key] for key in ("implementation", "devices", "step_s", "efficiency"))
    rows: dict[str, Row] = {}
    for name, count, step, share in zip(*shown, strict=True):
        efficient = numbers.MISSING if missing(share) else numbers.significant(100 * share)
        point = Figure(numbers.si(step, "s"), f"{efficient} % efficient")
        rows.setdefault(name, {"implementation": name})[count] = point
    columns = [
        Column(str(count), numbers.count(count, "device"), value=methodcaller("get", count))
        for count in sorted(set(curve.points["devices"]))
    ]
    return Table(curve.title, [IMPLEMENTATION, *columns], [rows[name] for name in sorted(rows)])


def comparison(block: Comparison, cells: Mapping[str, Row], manifest: Manifest) -> Table:
    """Return a table of a block's times, fastest first; `cells` are from `cell_columns.rows`."""
    ranked = [cells[cell["cell"]] for cell in block.ranked]
    return Table(block.place, COLUMNS, ranked, [*facts(block, manifest)])


def facts(block: Comparison, manifest: Manifest) -> Iterator[str]:
    """Yield sentences about a whole block; none if it has no time."""
    if not block.ranked:
        return
    yield _floor(block)
    yield f"Differences within {numbers.percent(block.margin)} count as the same."
    yield from program_sentences.facts(block)
    if errors := _known(block, "proof_error"):
        yield f"The proof's largest error was {numbers.percent(max(errors))} of what is allowed."
    if flops := _known(block, "model_flops"):
        yield f"Model FLOPs: {numbers.si(flops[0], 'FLOP')} per step."
    if published := peaks.peak(manifest["device_kind"], block.block.options.precision):
        yield (
            f"Peak: {numbers.si(published.flops, 'FLOP/s')} per device ({published.note}; "
            f"{published.source})."
        )
    rounds = numbers.count(max(cell["rounds"] for cell in block.ranked), "round")
    launches = numbers.count(block.launches, "launch", "launches")
    *others, last = block.span_steps
    spans = " or ".join([*map(str, others), numbers.count(last, "step")])
    yield f"Measured in {rounds} of {spans}, in {launches}."
    yield from _disturbances(block)


def _known(block: Comparison, figure: str) -> list[float]:
    return [cell[figure] for cell in block.ranked if not missing(cell[figure])]


def _disturbances(block: Comparison) -> Iterator[str]:
    if block.drifts:
        parts = [f"{name} {numbers.percent(size)}" for name, size in block.drifts.items()]
        yield f"Trend of the ratio within a launch: {', '.join(parts)}."
    host = block.conditions
    mhz = "" if host.mhz is None else f"; clock {host.mhz[0]:.0f} to {host.mhz[1]:.0f} MHz"
    yield (
        f"Other processes used {numbers.percent(host.foreign)} of the cores' time, other "
        f"guests {numbers.percent(host.steal)}{mhz}."
    )


def _floor(block: Comparison) -> str:
    if block.floor is None:
        return "The noise floor is unknown: the baseline had no twin."
    text = f"Noise floor (A/A twin): ratio {numbers.ratio(block.floor.value)}"
    if block.floor_width is None:
        return f"{text}, no interval."
    width = numbers.percent(block.floor_width)
    ends = between(block.floor.low, block.floor.high, "ratio")
    return f"{text}, 95 % interval {ends}, so up to {width}."
