"""Tables of text, ready for a page: the tidy table's numbers, formatted and in order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bench.analyse import loss_curves, peaks
from bench.analyse.ratio_intervals import floor_width
from bench.present import command_lines, sentences
from bench.present.cause_sentences import signed
from bench.present.columns import Figure
from bench.records import numbers
from bench.records.statuses import STATUSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pandas as pd

    from bench.analyse.comparisons import Comparison
    from bench.analyse.loss_curves import Curve, Training
    from bench.analyse.scaling_curves import Scaling
    from bench.analyse.variant_ratios import Effect
    from bench.present.cause_sentences import Reason
    from bench.records.largest_batches import MaxBatchRow
    from bench.records.rows import Manifest


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    name: str
    figures: list[Figure]
    note: str = ""
    """Below the name."""
    trace: str = ""
    """Address of its trace in TensorBoard."""


@dataclass(frozen=True)
class Table:
    """A table: the first heading is the names'."""

    title: str
    headings: list[Figure]
    rows: list[Row]
    facts: list[str]
    """What holds for all rows, for the caption."""
    remarks: list[str] = field(default_factory=list)
    """What is to be said of single rows, below the table."""

    @property
    def body(self) -> list[Row]:
        """The rows, by the name that bench.present.columns.Table has for them."""
        return self.rows


@dataclass(frozen=True)
class Ending:
    """Cells without a time for one and the same reason."""

    status: str
    reason: str
    implementations: str
    cells: list[str]


def comparison(
    block: Comparison, manifest: Manifest, reasons: Mapping[str, Reason] | None = None
) -> Table:
    """The block's times, fastest first. It has at least one.

    Args:
      block: the comparison.
      manifest: of the run.
      reasons: why implementations differ from the baseline; None where nothing was traced.
    """
    ranked = block.ranked
    unit = ranked[0]["unit"]
    headings = [
        Figure("Implementation"),
        Figure("Step time", "median, quartiles"),
        Figure("Latency", "median, quartiles"),
        Figure("Throughput", f"{unit} a second"),
        Figure("To baseline", "ratio, 95 % interval"),
        Figure("Verdict", f"margin {numbers.percent(block.margin)}"),
        *([] if reasons is None else [Figure("Why", "main cause, as traced")]),
        Figure("Compile", "trace + lower + compile"),
        Figure("Memory", "a device, as planned"),
        Figure("Achieved", "model FLOP/s"),
        Figure("MFU"),
    ]
    rows = [_row(cell, block, reasons) for cell in ranked]
    return Table(block.place, headings, rows, facts(block, manifest))


def _row(cell: Mapping[Any, Any], block: Comparison, reasons: Mapping[str, Reason] | None) -> Row:
    notes = []
    if cell["implementation"] == block.baseline:
        notes.append("baseline")
    if not cell["interleaved"]:
        notes.append("measured apart")
    if cell["bubble"] > 0:
        notes.append(_bubble(cell))
    figures = [
        _spread(cell, "step"),
        _spread(cell, "latency"),
        Figure(numbers.si(cell["units_per_s"], "").strip(numbers.NARROW)),
        _ratio(cell, block),
        _verdict(cell, block),
        *([] if reasons is None else [_why(reasons.get(cell["implementation"]))]),
        _compile(cell),
        Figure(numbers.bytes_(cell["memory_bytes"]), _high_water(cell)),
        Figure(numbers.si(cell["achieved_flops"], "FLOP/s")),
        Figure("unknown" if math.isnan(cell["mfu"]) else numbers.percent(cell["mfu"])),
    ]
    return Row(cell["implementation"], figures, ", ".join(notes))


def _bubble(cell: Mapping[Any, Any]) -> str:
    """By the schedule, and as measured, where it was."""
    text = f"bubble {numbers.percent(cell['bubble'])} by its schedule"
    if math.isnan(cell["idle"]):
        return text
    measured = numbers.percent(cell["idle"])
    if not math.isnan(cell["idle_low"]):
        low, high = (numbers.percent(cell[end]) for end in ("idle_low", "idle_high"))
        measured += f" ({low} to {high})"
    return f"{text}, measured with the update {measured}"


def _spread(cell: Mapping[Any, Any], name: str) -> Figure:
    return Figure(
        numbers.si(cell[f"{name}_s"], "s"),
        numbers.range_si(cell[f"{name}_q1_s"], cell[f"{name}_q3_s"], "s"),
    )


def _ratio(cell: Mapping[Any, Any], block: Comparison) -> Figure:
    if cell["implementation"] == block.baseline:
        return Figure("1")
    if math.isnan(cell["ratio"]):
        return Figure(numbers.MISSING, "baseline has no time")
    if math.isnan(cell["ratio_low"]):
        return Figure(numbers.ratio(cell["ratio"]), "no interval")
    ends = (numbers.ratio(cell[end]) for end in ("ratio_low", "ratio_high"))
    return Figure(numbers.ratio(cell["ratio"]), "\N{EN DASH}".join(ends))


def _verdict(cell: Mapping[Any, Any], block: Comparison) -> Figure:
    if cell["implementation"] == block.baseline:
        return Figure("baseline")
    word = cell["verdict"]
    if word is None:
        return Figure(numbers.MISSING)
    if word != "undecided":
        return Figure(word)
    return Figure(
        word, sentences.to_decide(cell["to_decide_s"]) if cell["paired"] else "not paired"
    )


def _high_water(cell: Mapping[Any, Any]) -> str:
    measured = cell["high_water_bytes"]
    return "" if math.isnan(measured) else f"{numbers.bytes_(measured)} measured"


def _why(found: Reason | None) -> Figure:
    if found is None or not found.main:
        return Figure(numbers.MISSING)
    return Figure(signed(found.seconds), found.main)


def _compile(cell: Mapping[Any, Any]) -> Figure:
    parts = [cell["trace_s"], cell["lower_s"], cell["compile_s"]]
    if any(map(math.isnan, parts)):
        return Figure(numbers.MISSING)
    cached = " cached" if cell["cache_hits"] > 0 else ""
    each = " + ".join(numbers.seconds(part).partition(numbers.NARROW)[0] for part in parts)
    return Figure(numbers.seconds(sum(parts)), f"{each}{cached}")


def facts(block: Comparison, manifest: Manifest) -> list[str]:
    """What holds for the whole block, in sentences. It has at least one time."""
    ranked = block.ranked
    facts = [_floor(block)]
    errors = _known(ranked, "proof_error")
    if errors:
        worst = numbers.percent(max(errors))
        facts.append(f"Proved with at most {worst} of the allowed error.")
    flops = _known(ranked, "model_flops")
    if flops:
        facts.append(f"Model FLOPs {numbers.si(flops[0], 'FLOP')} a step.")
    published = peaks.peak(manifest["device_kind"], block.block.options.precision)
    if published:
        facts.append(
            f"Peak {numbers.si(published.flops, 'FLOP/s')} a device ({published.note}; "
            f"{published.source})."
        )
    launches = numbers.count(block.launches, "launch", "launches")
    rounds = numbers.count(max(cell["rounds"] for cell in ranked), "round")
    spans = " or ".join(map(str, block.span_steps))
    facts.append(f"{rounds} of {spans} steps in {launches}.")
    facts += _effects(block)
    if block.oversubscribed:
        facts.append("More devices than cores: not a measure of scaling.")
    return facts


def _known(cells: list[dict[str, Any]], figure: str) -> list[float]:
    return [cell[figure] for cell in cells if not math.isnan(cell[figure])]


def _effects(block: Comparison) -> list[str]:
    """Order, drift and host, in a sentence each."""
    facts = []
    if block.order:
        parts = [
            f"{by} {numbers.percent(e.size)}{'' if e.sure else ' (no more than chance)'}"
            for by, e in block.order.items()
        ]
        facts.append(f"Effects of the order of turns: {', '.join(parts)}.")
    moving = {name: e for name, e in block.drifts.items() if e.sure}
    if moving:
        parts = [f"{name} {numbers.percent(e.size)}" for name, e in moving.items()]
        facts.append(f"Trend of the ratio within a launch: {', '.join(parts)}.")
    elif block.drifts:
        facts.append("Ratios are steady within launches.")
    if block.conditions:
        host = block.conditions
        mhz = "" if host.mhz is None else f", {host.mhz[0]:.0f} to {host.mhz[1]:.0f} MHz"
        facts.append(
            f"Of the cores' time, other processes had {numbers.percent(host.foreign)}, "
            f"other guests {numbers.percent(host.steal)}{mhz}."
        )
    return facts


def _floor(block: Comparison) -> str:
    if block.floor is None:
        return "Noise floor unknown: the baseline had no twin."
    text = f"Noise floor (A/A twin): ratio {numbers.ratio(block.floor.value)}"
    if block.floor.low is None:
        return f"{text}, no interval."
    width = numbers.percent(floor_width(block.floor))
    interval = numbers.interval(block.floor.low, block.floor.high)
    return f"{text}, 95 % interval {interval}, so up to {width}."


def communication(blocks: list[Comparison]) -> Table | None:
    """What every implementation communicates on every mesh; None where there is nothing to say."""
    known = {
        block.place: {
            cell["implementation"]: cell
            for cell in block.ranked
            if cell["communication"] is not None
        }
        for block in blocks
        if block.block.mesh.size > 1
    }
    places = [place for place, cells in known.items() if cells]
    if not places:
        return None
    names = sorted({name for cells in known.values() for name in cells})
    rows = [
        Row(name, [_communicated(known[place].get(name)) for place in places]) for name in names
    ]
    fact = (
        "Bytes that a device sends in a step, with a ring algorithm, and in how many collectives, "
        "as compiled; copies that the host makes between devices are not among them."
    )
    headings = [Figure("Implementation"), *map(Figure, places)]
    return Table("What a step communicates", headings, rows, [fact])


def _communicated(cell: Mapping[Any, Any] | None) -> Figure:
    if cell is None:
        return Figure(numbers.MISSING)
    if not cell["communication"]:
        return Figure("no collective")
    return Figure(numbers.bytes_(cell["wire_bytes"]), collectives(cell["communication"]))


def collectives(rows: Iterable[Mapping[str, Any]] | None) -> str:
    """`2 all-reduces over data, 1 all-gather over fsdp`; empty without any, or if unknown."""
    return ", ".join(map(_collectives, rows or ()))


def _collectives(row: Mapping[str, Any]) -> str:
    """`2 all-gathers over fsdp`, with the dtypes where they are not float32."""
    text = numbers.count(row["count"], row["kind"])
    others = [dtype for dtype in row["dtypes"] if dtype != "f32"]
    text += f" ({', '.join(others)})" if others else ""
    if row["axes"]:
        return f"{text} over {' and '.join(row['axes'])}"
    return f"{text} among {row['members']} devices"


def variant(effects: list[Effect]) -> Table:
    """What a variant, or several processes, change: step times over those without."""
    places = list(dict.fromkeys(effect.block.place for effect in effects))
    by_name: dict[str, dict[str, Effect]] = {}
    for effect in effects:
        by_name.setdefault(effect.implementation, {})[effect.block.place] = effect
    rows = [
        Row(name, [_changed(of_place.get(place)) for place in places])
        for name, of_place in sorted(by_name.items())
    ]
    several = not effects[0].block.block.options.variant
    other = "one process" if several else "the usual environment"
    fact = (
        f"Step time over that in {other}, which is measured in launches of its own, so that "
        "intervals are wider; more launches narrow them."
    )
    headings = [Figure("Implementation"), *map(Figure, places)]
    return Table(f"Against {other}", headings, rows, [fact])


def _changed(effect: Effect | None) -> Figure:
    if effect is None:
        return Figure(numbers.MISSING)
    if effect.ratio.low is None:
        return Figure(numbers.ratio(effect.ratio.value), "no interval")
    interval = numbers.interval(effect.ratio.low, effect.ratio.high)
    return Figure(numbers.ratio(effect.ratio.value), f"{interval}, {effect.verdict.word}")


def largest_batches(rows: Sequence[MaxBatchRow]) -> Table:
    """The largest batch of each implementation on each mesh; at least one row, all of one limit."""
    meshes = list(dict.fromkeys(row["mesh"] for row in rows))
    by_name: dict[str, dict[str, MaxBatchRow]] = {}
    for row in rows:
        by_name.setdefault(row["implementation"], {})[row["mesh"]] = row
    limit = numbers.bytes_(rows[0]["limit_bytes"])
    facts = [
        "Global batch, and what a device would hold of it.",
        "Searched by compiling, to a sixteenth; the largest was then run for a few steps.",
        f"A device may hold {limit}: {rows[0]['limit_is']}.",
    ]
    return Table(
        f"Largest batch that fits {limit}",
        [Figure("Implementation"), *map(Figure, meshes)],
        [
            Row(name, [_largest(own.get(mesh)) for mesh in meshes])
            for name, own in sorted(by_name.items())
        ],
        facts,
    )


def _largest(row: MaxBatchRow | None) -> Figure:
    if row is None:
        return Figure(numbers.MISSING)
    if row["batch"] is None:
        return Figure(row["status"], row["reason"])
    if row["refuted"]:
        return Figure(str(row["batch"]), f"{row['refuted'][0]} was predicted, and did not fit")
    return Figure(str(row["batch"]), numbers.bytes_(row["predicted_bytes"]))


def curve(scaling: Scaling) -> Table:
    """The numbers behind a scaling plot: step time, and efficiency below it."""
    devices = sorted(scaling.points["devices"].unique())
    headings = [Figure("Implementation"), *(Figure(numbers.count(n, "device")) for n in devices)]
    rows = []
    for name, points in scaling.points.groupby("implementation"):
        by_devices = points.set_index("devices").to_dict("index")
        rows.append(Row(str(name), [_point(by_devices, n) for n in devices]))
    return Table(scaling.title, headings, rows, [])


def _point(by_devices: dict[Any, dict[Any, Any]], devices: int) -> Figure:
    if devices not in by_devices:
        return Figure(numbers.MISSING)
    point = by_devices[devices]
    share = point["efficiency"]
    return Figure(
        numbers.si(point["step_s"], "s"),
        numbers.MISSING if math.isnan(share) else f"{numbers.significant(100 * share)} % efficient",
    )


def energy(blocks: Iterable[Comparison]) -> Table | None:
    """What steps of a subject use; None where no figure is known."""
    cells = [(block, cell) for block in blocks for cell in block.ranked]
    known = [(block, cell) for block, cell in cells if not math.isnan(cell["joules_per_step"])]
    if not known:
        return None
    unit = known[0][1]["unit"]
    headings = [
        Figure("Implementation"),
        Figure("Mesh, batch"),
        Figure("A step", "joules, 95 % interval"),
        Figure(f"One of the {unit}", "joules"),
        Figure(f"{unit.capitalize()}", "per joule"),
        Figure("Power", "mean"),
        Figure("To baseline", "joules a step, 95 % interval"),
    ]
    rows = [
        Row(
            cell["implementation"],
            [
                Figure(block.place),
                _with_error(cell["joules_per_step"], cell["joules_error"], _joules),
                Figure(_joules(cell["joules_per_unit"])),
                Figure(numbers.significant(cell["units_per_joule"])),
                Figure(numbers.si(cell["watts"], "W")),
                Figure("1")
                if cell["implementation"] == block.baseline
                else _with_error(cell["energy_ratio"], cell["energy_ratio_error"], numbers.ratio),
            ],
        )
        for block, cell in known
    ]
    fact = (
        "Of whole boards or packages, idle power included, over whole turns: steps of the "
        "throughput and the latency spans alike. Intervals are of how often counters move; they "
        "hold no difference between runs."
    )
    return Table("Energy", headings, rows, [fact])


def _joules(value: float) -> str:
    return numbers.si(value, "J")


def _with_error(value: float, error: float, text: Callable[[float], str]) -> Figure:
    if math.isnan(value):
        return Figure(numbers.MISSING)
    return Figure(text(value), f"{text(max(value - error, 0.0))}\N{EN DASH}{text(value + error)}")


def loss_differences(trainings: Sequence[Training]) -> Table:
    """How far the loss curves of a subject's blocks are from the reference's."""
    places = [training.block.place for training in trainings]
    by_arm: dict[str, dict[str, Curve]] = {}
    for training in trainings:
        for one in (*training.curves, *training.yardsticks):
            by_arm.setdefault(one.arm, {})[training.block.place] = one
    # References last.
    names = sorted(by_arm, key=lambda arm: (arm in loss_curves.YARDSTICKS, arm))
    rows = [
        Row(name, [_from_reference(by_arm[name].get(place)) for place in places]) for name in names
    ]
    steps = max(training.steps for training in trainings)
    tolerance = numbers.scientific(trainings[0].reference.tolerance)
    meaning = (
        f"Of {numbers.count(steps, 'step')} from the same parameters on the same data: the largest "
        "relative difference from the loss of the whole batch on one device, in the same dtypes. "
        "Every step amplifies rounding; the last rows show how far that leads the reference "
        f"itself. The gate allows its few steps {tolerance}."
    )
    headings = [Figure("Implementation"), *map(Figure, places)]
    return Table("Largest difference from the reference's loss", headings, rows, [meaning])


def _from_reference(one: Curve | None) -> Figure:
    if one is None or one.largest is None:
        return Figure(numbers.MISSING, one.reason if one else "")
    notes = []
    if len(one.differences) > loss_curves.EARLY:
        notes.append(f"{numbers.scientific(one.early)} in the first {loss_curves.EARLY}")
    if one.beyond:
        notes.append(f"above the gate's tolerance from step {one.beyond}")
    if one.reason:
        notes.append(one.reason)
    return Figure(numbers.scientific(one.largest), ", ".join(notes))


def endings(cells: pd.DataFrame) -> list[Ending]:
    """Cells without a time, those for the same reason together, worst first."""
    if cells.empty:
        return []
    without = cells[cells["status"] != "ok"]
    return [
        Ending(
            status=display.label,
            reason=str(reason),
            implementations=", ".join(sorted(rows["implementation"].unique())),
            cells=list(rows["cell"]),
        )
        for status, display in STATUSES.items()
        for reason, rows in without[without["status"] == status].groupby("reason", sort=True)
    ]


def environment(manifest: Manifest, counted: str = "") -> list[tuple[str, str]]:
    """What the run ran on, as names and values; `counted` says whose energy was, if any."""
    host, git = manifest["host"], manifest["git"]
    memory = manifest["device_memory_bytes"]
    device = f"{manifest['device_count']} {numbers.TIMES} {manifest['device_kind']}"
    device += f", {numbers.bytes_(memory)} each" if memory else ""
    if manifest["platform"] == "cpu":
        device = "virtual CPU devices, as many as each mesh has"
    commit = git.get("commit") or "unknown"
    variants = manifest["config"].get("variants", {})
    known = [
        ("Started", started(manifest)),
        ("Command", command_lines.of_run(manifest)),
        ("Preset", manifest["preset"]),
        ("Platform", manifest["platform"]),
        ("Device", device),
        ("Processor", host.get("cpu")),
        ("Cores", _cores(host)),
        ("Host memory", numbers.bytes_(host["memory_bytes"]) if host.get("memory_bytes") else None),
        ("Operating system", host.get("os")),
        ("Load at start", None if host.get("load") is None else f"{host['load']:.2f}"),
        ("Versions", ", ".join(f"{k} {v}" for k, v in manifest["versions"].items())),
        ("Environment", " ".join(f"{k}={v}" for k, v in manifest["environment"].items()) or "-"),
        *((f"Variant {name}", text) for name, text in variants.items()),
        ("Energy", counted or None),
        ("Commit", f"{commit}{' with uncommitted changes' if git.get('dirty') else ''}"),
    ]
    return [(name, str(value)) for name, value in known if value is not None]


def machine(manifest: Manifest) -> str:
    """The environment in one line."""
    host = manifest["host"]
    known = [
        manifest["device_kind"] if manifest["platform"] != "cpu" else host.get("cpu") or "CPU",
        f"{_cores(host)} cores" if _cores(host) else None,
        host.get("os"),
        *(f"{name} {manifest['versions'][name]}" for name in ("python", "jax")
          if name in manifest["versions"]),
    ]  # fmt: skip
    return ", ".join(text for text in known if text)


def started(manifest: Manifest) -> str:
    """When the run began: `2026-11-21 14:10 UTC`."""
    moment = datetime.fromisoformat(manifest["started_at"])
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _cores(host: dict[str, Any]) -> str | None:
    if host.get("usable_cores") is None:
        return None
    physical = host.get("physical_cores")
    return f"{host['usable_cores']} usable" + (f", {physical} physical" if physical else "")
