"""Caveats: reasons in the stored rows to read the figures with care."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from bench.analyse import loss_curves
from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.analyse.turn_details import Throttling
from bench.analyse.verdicts import decide
from bench.present import phase_tables, program_sentences
from bench.present.cell_columns import Row, framework, is_other_framework
from bench.present.columns import formatted
from bench.present.sentences import listing
from bench.records import numbers
from bench.records.rows import Manifest, is_resumable

NAMED = 8
"""Limit on the damaged parts of files, or blocks without results, that are listed by name."""

FUSED_ATTENTION = r"[^ ,]*fmha[^ ,]*|tpu_custom_call"
"""Names of custom calls that compute attention: cuDNN's on CUDA, and a Pallas kernel on TPU."""

BUSY_SHARE = 0.05
"""Share of the cores' time above which the load of other processes is named."""


def caveats(content: Tables, manifest: Manifest) -> dict[str, str]:
    """Return the text of every caveat that applies to a run, by its title."""
    said = {"Damaged files": damage(content.damaged)}
    _of_run(said, content.comparisons, manifest)
    _of_host(said, content, manifest)
    _of_ratios(said, content.comparisons)
    said["Equal programs, unequal times"] = program_sentences.caveat(content.comparisons)
    _of_rounds(said, content.comparisons)
    _of_cells(said, content.rows)
    _of_phases(said, content, manifest)
    return {title: text for title, text in said.items() if text}


def _of_run(said: dict[str, str], blocks: Sequence[Comparison], manifest: Manifest) -> None:
    asked = manifest["config"].get("blocks", [])
    measured = {block.name for block in blocks}
    if left := [name for name in asked if name not in measured]:
        resume = f" --resume {manifest['run']} measures them." if is_resumable(manifest) else ""
        said["Blocks without results"] = (
            f"The run ended before {len(left)} of {numbers.count(len(asked), 'block')} had been "
            f"measured: {_named(left)}.{resume}"
        )


def damage(found: Sequence[str]) -> str:
    """Describe the parts of stored files that were ignored; empty if none were."""
    parts = numbers.count(len(found), "part")
    return f"{parts} of the stored files could not be used. {_named(found)}." if found else ""


def _named(parts: Sequence[object]) -> str:
    more = [f"and {len(parts) - NAMED} more"] if len(parts) > NAMED else []
    return "; ".join([*map(str, parts[:NAMED]), *more])


def _of_host(said: dict[str, str], content: Tables, manifest: Manifest) -> None:
    blocks, host = content.comparisons, manifest["host"]
    if over := sorted({block.block.mesh.size for block in blocks if block.oversubscribed}):
        said["More devices than cores"] = (
            f"Meshes of {listing([str(devices) for devices in over])} CPU devices share "
            f"{numbers.count(host['usable_cores'], 'usable core')}. They show what dispatch "
            "and communication cost, not how the step scales."
        )
    said["A busy host"] = " ".join(f"{one[0].upper()}{one[1:]}." for one in busy(blocks))
    said["Throttled GPUs"] = _throttled(content.throttling)
    if manifest["git"]["dirty"]:
        said["Uncommitted changes"] = "The working tree had changes that the recorded commit lacks."


def busy(blocks: Sequence[Comparison]) -> Iterator[str]:
    """Yield clauses on others that used much of the cores' time, and in which block the most."""
    for share, what in (("steal", "other guests of its host"), ("foreign", "other processes")):
        shares = ((getattr(b.conditions, share), b.name) for b in blocks)
        most, where = max(shares, default=(0.0, ""))
        if most > BUSY_SHARE:
            yield f"while {where} was timed, {what} used {numbers.percent(most)} of the cores' time"


def _throttled(found: Throttling | None) -> str:
    if found is None:
        return ""
    reasons = ", ".join(f"{turns} by {why}" for why, turns in found.reasons.items())
    return (
        f"A GPU's clock was held down after {found.throttled} of "
        f"{numbers.count(found.turns, 'turn')} ({reasons}), most often of {found.arm} in "
        f"{found.block}. These turns count like others; samples.csv marks them."
    )


def _of_ratios(said: dict[str, str], blocks: Sequence[Comparison]) -> None:
    words = {b.name: decide(b.floor, b.alpha, b.margin).word for b in blocks if b.floor}
    if false := [name for name, word in words.items() if word in {"faster", "slower"}]:
        said["Two copies of one program differ"] = (
            f"In {listing(false)}, the baseline's own copy was called faster or slower than the "
            "baseline. Differences of that size are errors of the method there."
        )
    if wide := [(width, b) for b in blocks if (width := b.floor_width or 0.0) > b.margin]:
        worst, where = max(wide, key=itemgetter(0))
        where_wide = f"In {len(wide)} of {len(blocks)} blocks, two" if len(blocks) > 1 else "Two"
        said["Wide noise floor"] = (
            f"{where_wide} copies of the same program could differ by more than the margin of "
            f"{numbers.percent(where.margin)}: by up to {numbers.percent(worst)} in {where.name}."
        )
    if single := [block for block in blocks if block.claims and block.launches == 1]:
        spreads = (b.process.between(arm, b.baseline).sd for b in single for arm in b.claims)
        said["One launch"] = (
            f"{numbers.count(len(single), 'block')} had only one launch. A standard deviation of "
            f"{numbers.percent(max(spreads))} between processes is assumed, from earlier runs if "
            "there are any. More launches (--launches 3) would show it."
        )


def _of_rounds(said: dict[str, str], blocks: Sequence[Comparison]) -> None:
    moving = [
        (abs(size), arm, block)
        for block in blocks
        for arm, size in block.drifts.items()
        if abs(size) > block.margin
    ]
    if moving:
        size, name, where = max(moving, key=itemgetter(0))
        said["Not in a steady state"] = (
            f"{numbers.count(len(moving), 'ratio')} changed within the launches by more than the "
            f"margin; that of {name} in {where.name} changed most, by {numbers.percent(size)}. "
            "Such a ratio averages over a trend."
        )


def _of_cells(said: dict[str, str], cells: Sequence[Row]) -> None:
    if alone := sum(cell["status"] == "ok" and not cell["interleaved"] for cell in cells):
        said["Measured in a separate process"] = (
            f"{numbers.count(alone, 'cell')} ran in a process without the others: they did not fit "
            "together, or one may have disturbed another. The ratio has no interval: the host may "
            "have changed in between."
        )
    if earlier := {cell[key] for cell in cells for key in ("proved_in", "compiled_in")} - {None}:
        said["Proved or compiled earlier"] = (
            f"Some proofs and compile times are from {listing(sorted(earlier))}, with the "
            "same files, versions and environment; --cold reuses none."
        )
    said["Processes of their own"] = _foreign(cells)
    if failed := [cell["cell"] for cell in cells if cell["failed_launches"]]:
        said["Launches that failed"] = (
            f"Cells that failed in some launches and ran in others: {listing(failed)}."
        )
    if settings := {cell["cell"]: cell["settings"] for cell in cells if cell["settings"]}:
        said["Settings of the process"] = (
            f"The files of {listing(settings)} set {listing(sorted(set(settings.values())))} for "
            "the whole process. They were restored before anything else was proved or timed."
        )
    said["Winners repeated in isolation"] = " ".join(
        _isolated(cell["cell"], cell["isolation"]) for cell in cells if cell["isolation"]
    )
    said["Approximate steps"] = _approximate(cells)
    said["Fused attention"] = _fused_attention(cells)


def _foreign(cells: Sequence[Row]) -> str:
    """Describe the steps in processes of their own; empty if there are none."""
    figures = itemgetter("implementation", "foreign", "devices")
    others = [figures(cell) for cell in cells if cell["foreign"]]
    if not others:
        return ""
    kinds = sorted({f"{name} ({framework(one)})" for name, one, _ in others})
    asking = max(one["asking_ns"] for _, one, _ in others) / 1e9
    text = (
        f"These run in processes of their own: {listing(kinds)}. Their times exclude the cost of "
        f"requesting them, up to {numbers.si(asking, 's')}; operations, and for other frameworks "
        "memory and communication, are unknown."
    )
    single = ((n, one) for n, one, devices in others if one["processes"] < devices)
    if whole := sorted({name for name, one in single if is_other_framework(one)}):
        text += (
            f" On several devices, one process still computes the whole batch of {listing(whole)}: "
            "nothing is replicated or reduced."
        )
    if narrow := sorted({name for name, one, _ in others if not one.get("float64", True)}):
        text += f" {listing(narrow)} cannot compute in float64: proved only in the timed dtypes."
    return text


def _isolated(cell: str, row: Mapping[str, Any]) -> str:
    """Say why a winner was measured again in isolation, and what came of it."""
    beside = f" beside {row['beside']}" if row["beside"] else ""
    said = f"{cell} was measured again{beside}, in a process of its own, because {row['why']}."
    if row["isolated_ratio"] is None:
        return f"{said} It yielded no times: {row['reason']}."
    what = f"Its step time over that of {row['beside']} was" if row["beside"] else "A step took"
    form = "ratio" if row["beside"] else "s"
    there, shared = (formatted(row[name], form) for name in ("isolated_ratio", "ratio"))
    return f"{said} {what} {there} there, and {shared} in the shared process."


def _approximate(cells: Sequence[Row]) -> str:
    """Name the proved approximate steps and how they differ; empty if there are none."""
    ok = (cell for cell in cells if cell["status"] == "ok")
    found = {cell["implementation"]: cell["approximate"] for cell in ok if cell["approximate"]}
    if not found:
        return ""
    return (
        "These compute another step than the workload's: "
        f"{listing(f'{name} ({why})' for name, why in found.items())}. They were proved by how "
        "they train, over several seeds, and ranked separately. How they fare in longer training "
        "is unknown."
    )


def _fused_attention(cells: Sequence[Row]) -> str:
    """Describe attention kernels and their proof; empty if no program calls such a kernel."""
    called = {cell["cell"]: re.findall(FUSED_ATTENTION, cell["kernels"]) for cell in cells}
    found = {cell: kernels for cell, kernels in called.items() if kernels}
    if not found:
        return ""
    kernels = sorted({kernel for of_cell in found.values() for kernel in of_cell})
    return (
        f"The timed programs of {listing(found)} call {listing(kernels)}. Their proof in "
        "float64 is that of attention by plain matrix products; in the timed dtypes, steps with "
        "these kernels were compared with it to within rounding."
    )


def _divided_proofs(cells: Sequence[Row]) -> str:
    """Say how proofs that exceed the memory of a device were made; empty if none does."""
    clauses = []
    if divided := [cell["cell"] for cell in cells if cell["proof_parts"]]:
        clauses.append(
            f"The reference of {listing(divided)} does not fit on one device: it was computed in "
            "parts of the batch, or with its parameters sharded."
        )
    if smaller := [cell["cell"] for cell in cells if cell["proof_parts"] and cell["proof_batch"]]:
        clauses.append(f"A smaller batch served for the proof of {listing(smaller)} in float64.")
    ok = [c for c in cells if c["status"] == "ok" and not (c["approximate"] or c["foreign"])]
    proved = [cell for cell in ok if not math.isnan(cell["proof_error"])]
    if narrow := [cell["cell"] for cell in proved if not cell["proved_exactly"]]:
        clauses.append(
            f"The steps of {listing(narrow)} do not fit in float64 at any batch: proved "
            "only in the timed dtypes."
        )
    return " ".join(clauses)


def _of_phases(said: dict[str, str], content: Tables, manifest: Manifest) -> None:
    cells, config = content.rows, manifest["config"]
    if proof := config.get("functions"):
        loosened = f", and more in {listing(proof['loosened'])}" if proof["loosened"] else ""
        said["Proved against one another"] = (
            "These are functions that were given to lockstep.compare. In three steps, each had to "
            f"reproduce the losses of the reference to {proof['loss_tolerance']:.2g} and the "
            f"update of each leaf of its state to {proof['update_tolerance']:.2g}{loosened}, in "
            "the dtypes that were timed. Nothing was proved in float64."
        )
    else:
        said["Steps too large for a whole proof"] = _divided_proofs(cells)
    trainings = loss_curves.find(content)
    said["Loss curves diverge early"] = phase_tables.parted_losses(trainings)
    timed = [cell["cell"] for cell in cells if cell["status"] == "ok" and not cell["foreign"]]
    reasons = {f"{b.name}/{arm}": b.ended for b in content.comparisons for arm in b.arms}
    reasons |= {name: checkpoint["reason"] for name, checkpoint in content.checkpoints.items()}
    losses = phase_tables.unfinished_losses(trainings, content)
    every = ((t.block.name, c) for t in trainings for c in (t.reference, t.yardstick) if c)
    references = [f"{one.arm} of {block}: {one.reason}" for block, one in every if one.reason]
    lost = (
        ("profile_steps", "trace", "cell", [name for name in timed if name not in content.traces]),
        ("train_steps", "whole loss curve", "cell", losses),
        ("train_steps", "whole loss curve", "reference", references),
        ("checkpoints", "checkpoint", "cell", [f"{n}: {reasons[n]}" for n in timed if reasons[n]]),
    )
    said["Phases that failed"] = " ".join(
        f"There is no {what} of {numbers.count(len(names), whose)}, for instance {names[0]}."
        for option, what, whose, names in lost
        if config.get(option) and names
    )
