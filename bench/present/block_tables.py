"""The table of a block, and facts about the whole block."""

from collections.abc import Iterator, Mapping

from bench.analyse import peaks
from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import floor_width
from bench.present import cell_columns, program_sentences
from bench.present.cell_columns import Row
from bench.present.columns import Table, between, missing
from bench.records import numbers
from bench.records.rows import Manifest


def comparison(block: Comparison, cells: Mapping[str, Row], manifest: Manifest) -> Table:
    """Return the times of a block that has any, fastest first, from `cell_columns.rows`."""
    ranked = [cells[cell["cell"]] for cell in block.ranked]
    return Table(block.place, cell_columns.COLUMNS, ranked, facts(block, manifest))


def facts(block: Comparison, manifest: Manifest) -> list[str]:
    """Return sentences about a whole block; none if it has no time."""
    return list(_facts(block, manifest)) if block.ranked else []


def _facts(block: Comparison, manifest: Manifest) -> Iterator[str]:
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
    if 1 in block.span_steps:
        yield "In spans of one step, the step time is a latency: the clock stops after every step."
    yield from _disturbances(block)
    if block.oversubscribed:
        yield "There are more devices than cores, so this does not measure scaling."


def _known(block: Comparison, figure: str) -> list[float]:
    return [cell[figure] for cell in block.ranked if not missing(cell[figure])]


def _disturbances(block: Comparison) -> Iterator[str]:
    if block.order:
        yield f"Effects of the order of turns: {order(block)}."
    if moving := {name: effect for name, effect in block.drifts.items() if effect.sure}:
        parts = [f"{name} {numbers.percent(effect.size)}" for name, effect in moving.items()]
        yield f"Trend of the ratio within a launch: {', '.join(parts)}."
    elif block.drifts:
        yield "Ratios are steady within launches."
    if block.conditions:
        host = block.conditions
        mhz = "" if host.mhz is None else f"; clock {host.mhz[0]:.0f} to {host.mhz[1]:.0f} MHz"
        yield (
            f"Other processes used {numbers.percent(host.foreign)} of the cores' time, other "
            f"guests {numbers.percent(host.steal)}{mhz}."
        )


def order(block: Comparison) -> str:
    """Return `position 0.31 % (no more than chance), predecessor 0.52 %`."""
    return ", ".join(
        f"{by} {numbers.percent(e.size)}{'' if e.sure else ' (no more than chance)'}"
        for by, e in block.order.items()
    )


def _floor(block: Comparison) -> str:
    if block.floor is None:
        return "The noise floor is unknown: the baseline had no twin."
    text = f"Noise floor (A/A twin): ratio {numbers.ratio(block.floor.value)}"
    if block.floor.low is None:
        return f"{text}, no interval."
    width = numbers.percent(floor_width(block.floor))
    ends = between(block.floor.low, block.floor.high, "ratio")
    return f"{text}, 95 % interval {ends}, so up to {width}."
