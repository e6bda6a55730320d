"""Caveats: what the stored rows say against trusting the numbers too far."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from bench.analyse import loss_curves, peaks
from bench.analyse.ratio_intervals import PROCESS_SD, floor_width
from bench.analyse.verdicts import decide
from bench.present import loss_sentences
from bench.present.sentences import listing
from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.analyse.cell_table import Tables
    from bench.records.rows import Manifest
    from bench.records.store import Damage

NAMED = 8
"""Damaged parts of files that are named."""

BUSY_SHARE = 0.05
"""Share of the cores' time above which others on the host are worth mentioning."""


@dataclass(frozen=True)
class Caveat:
    """A reason to read some numbers with care."""

    title: str
    text: str


def caveats(content: Tables, manifest: Manifest) -> list[Caveat]:
    """All caveats that apply to a run."""
    trainings = loss_curves.find(content)
    every = {
        "Damaged files": damage(content.damaged),
        "More devices than cores": _oversubscribed(content, manifest),
        "Two copies of one program differ": _false_alarms(content),
        "Wide noise floor": _wide_floor(content),
        "Not in a steady state": _unsteady(content),
        "The order of turns matters": _order(content),
        "A busy host": _busy(content, manifest),
        "One launch": _one_launch(content),
        "Measured apart": _apart(content),
        "Too few rounds": _few_rounds(content),
        "Launches that failed": _failed_launches(content),
        "Not traced": _untraced(content, manifest),
        "Loss curves part early": loss_sentences.parted(trainings),
        "Unfinished loss curves": loss_sentences.unfinished(trainings, manifest),
        "Without a checkpoint": _unsaved(content, manifest),
        "Implausible times": _implausible(content),
        "Utilization unknown": _no_peak(content, manifest),
        "Uncommitted changes": "The working tree had changes that the recorded commit lacks."
        if manifest["git"].get("dirty") else "",
    }  # fmt: skip
    return [Caveat(title, text) for title, text in every.items() if text]


def damage(found: Sequence[Damage]) -> str:
    """Which parts of the stored files were ignored; empty if none were."""
    if not found:
        return ""
    named = "; ".join(map(str, found[:NAMED]))
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    parts = numbers.count(len(found), "part")
    return f"{parts} of the stored files could not be used. {named}{more}."


def _oversubscribed(content: Tables, manifest: Manifest) -> str:
    over = sorted({each.block.mesh.size for each in content.comparisons if each.oversubscribed})
    if not over:
        return ""
    cores = numbers.count(int(manifest["host"]["usable_cores"]), "usable core")
    return (
        f"Meshes of {listing([str(devices) for devices in over])} CPU devices share {cores}. They "
        "show what dispatch and communication cost, not how the step scales."
    )


def _wide_floor(content: Tables) -> str:
    floors = [(block.floor, block) for block in content.comparisons if block.floor]
    wide = [(width, b) for floor, b in floors if (width := floor_width(floor)) > b.margin]
    if not wide:
        return ""
    worst, where = max(wide, key=itemgetter(0))
    return (
        f"In {len(wide)} of {numbers.count(len(content.comparisons), 'block')}, two copies of the "
        f"same program could differ by more than the margin of {numbers.percent(where.margin)}: "
        f"by up to {numbers.percent(worst)} in {where.name}."
    )


def _false_alarms(content: Tables) -> str:
    false = [
        block.name
        for block in content.comparisons
        if block.floor
        and decide(block.floor, block.alpha, block.margin).word in ("faster", "slower")
    ]
    if not false:
        return ""
    return (
        f"In {listing(false)}, the baseline and its own copy come out as different programs. "
        "Differences of that size are errors of the method there."
    )


def _unsteady(content: Tables) -> str:
    moving = [
        (abs(effect.size), name, block)
        for block in content.comparisons
        for name, effect in block.drifts.items()
        if effect.sure and abs(effect.size) > block.margin
    ]
    if not moving:
        return ""
    size, name, where = max(moving, key=itemgetter(0))
    return (
        f"{numbers.count(len(moving), 'ratio')} changed within the launches by more than the "
        f"margin; most, by {numbers.percent(size)}, that of {name} in {where.name}. Such a ratio "
        "is an average over a change."
    )


def _order(content: Tables) -> str:
    effects = [
        (effect.size, by, block)
        for block in content.comparisons
        for by, effect in block.order.items()
        if effect.sure and effect.size > block.margin
    ]
    if not effects:
        return ""
    size, by, where = max(effects, key=itemgetter(0))
    blocks = numbers.count(len({block.name for _, _, block in effects}), "block")
    return (
        f"In {blocks}, the time of a turn depends on its place in the round or on what ran before "
        f"it by more than the margin; most on its {by} in {where.name}, by "
        f"{numbers.percent(size)}. Every arm has every place and predecessor about equally often, "
        "so this is mostly noise."
    )


def _one_launch(content: Tables) -> str:
    single = [block for block in content.comparisons if block.claims and block.launches == 1]
    if not single:
        return ""
    return (
        f"{numbers.count(len(single), 'block')} had only one launch. How much another process "
        f"would differ is assumed: {numbers.percent(PROCESS_SD)} (standard deviation). More "
        "launches (--launches 3) would show it."
    )


def _busy(content: Tables, manifest: Manifest) -> str:
    """Load of others; a load average later in the run is mostly the run's own."""
    parts = []
    for share, what in (("steal", "other guests of its host"), ("foreign", "other processes")):
        worst, where = max(
            ((getattr(c.conditions, share), c.name) for c in content.comparisons if c.conditions),
            default=(0.0, ""),
        )
        if worst > BUSY_SHARE:
            parts.append(
                f"While {where} was timed, {what} used {numbers.percent(worst)} of the cores' time."
            )
    cores, load = manifest["host"].get("usable_cores"), manifest["host"].get("load")
    if cores is not None and load is not None and load > cores / 2:
        parts.append(f"When the run began, the load was {load:.2g} on {cores} usable cores.")
    return " ".join(parts)


def _apart(content: Tables) -> str:
    cells = content.cells
    apart = len(cells) and int(((cells["status"] == "ok") & ~cells["interleaved"]).sum())
    if not apart:
        return ""
    return (
        f"{numbers.count(apart, 'cell')} did not fit beside the others and ran in a process of its "
        "own. The ratio has no interval: the host may have changed in between."
    )


def _few_rounds(content: Tables) -> str:
    short = [block for block in content.comparisons if block.floor and block.floor.low is None]
    if not short:
        return ""
    blocks = numbers.count(len(short), "block")
    return f"{blocks} had under 6 rounds, too few for a 95{numbers.NARROW}% interval."


def _failed_launches(content: Tables) -> str:
    cells = content.cells
    failed = list(cells[cells["failed_launches"] > 0]["cell"]) if len(cells) else []
    return (
        f"Cells that failed in some launches and ran in others: {listing(failed)}."
        if failed
        else ""
    )


def _implausible(content: Tables) -> str:
    cells = content.cells
    refused = len(cells) and int((cells["status"] == "implausible").sum())
    if not refused:
        return ""
    return f"{numbers.count(refused, 'cell')} would exceed the device's peak and shows no time."


def _no_peak(content: Tables, manifest: Manifest) -> str:
    kind = manifest["device_kind"]
    precisions = sorted({each.block.options.precision for each in content.comparisons})
    missing = [precision for precision in precisions if not peaks.peak(kind, precision)]
    if not missing:
        return ""
    return f"No peak is published for {kind} in {listing(missing)}, so there is no MFU."


def _untraced(content: Tables, manifest: Manifest) -> str:
    """Where traces were asked for, and failed."""
    if not manifest["config"].get("profile_steps"):
        return ""
    missing = [name for name in _timed(content) if name not in content.traces]
    if not missing:
        return ""
    return (
        f"Tracing failed for {numbers.count(len(missing), 'cell')}, for instance {missing[0]}, so "
        "there is no explanation of its time. The times themselves are not affected."
    )


def _unsaved(content: Tables, manifest: Manifest) -> str:
    """Where checkpoints were asked for, and failed."""
    if not manifest["config"].get("checkpoints"):
        return ""
    reasons = {name: checkpoint["reason"] for name, checkpoint in content.checkpoints.items()}
    failed = {name: reasons.get(name, "no reason is known") for name in _timed(content)}
    failed = {name: reason for name, reason in failed.items() if reason}
    if not failed:
        return ""
    name, reason = next(iter(failed.items()))
    return (
        f"There are no figures of checkpoints for {numbers.count(len(failed), 'cell')}, for "
        f"instance {name}: {reason}. The times are not affected."
    )


def _timed(content: Tables) -> list[str]:
    cells = content.cells
    return list(cells.loc[cells["status"] == "ok", "cell"]) if len(cells) else []
