"""The default margin of a run: what its planned rounds can resolve on this machine."""

import contextlib
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.plan.matrix import Plan
from bench.records import store
from bench.records.arms import TWIN
from bench.records.host import processor_name
from bench.records.messages import Catalogue
from bench.records.numbers import count, percent

MARGINS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2)

ASSUMED = {"cpu": 0.12, "gpu": 0.02}
"""By platform, the assumed standard deviation of a round's log ratio of equal programs, used until
a run here measures it: for steps of at least 10 ms on shared cores, and on any accelerator."""

PROCESSES = 0.0035
"""The standard deviation between processes, as bench.analyse.process_spread.PROCESS has it."""

RACED = 1.5
"""Rounds of an arm that stays undecided, as a multiple of the planned rounds."""

SEVERAL = 1.5
"""Margin in half-widths of a verdict's interval: a margin no wider than the interval would leave
every comparison undecided unless its estimate is exactly 1."""


def resolved_margin(plan: Plan, catalogue: Catalogue, reports: Path) -> tuple[float, str]:
    """Return the margin that a plan can resolve on this machine, and the reason in words.

    The noise of rounds is the median over launches of the newest run here that timed one of the
    plan's workloads beside a twin; only the same workloads count, because short steps vary more. A
    normal approximation gives the half-width of a verdict's interval after the plan's launches; the
    margin is the smallest of MARGINS that is at least SEVERAL times that.
    """
    noise, source = _noise(plan, catalogue, reports)
    comparisons = max(1, len(plan.implementations) - 1)
    z = -statistics.NormalDist().inv_cdf(0.004 / comparisons)
    rounds = plan.launches * plan.worker["rounds"] * RACED
    wanted = SEVERAL * z * math.hypot(noise / rounds**0.5, PROCESSES / plan.launches**0.5)
    margin = next((margin for margin in MARGINS if margin >= wanted), MARGINS[-1])
    planned = count(plan.launches, "launch", "launches")
    planned = f"{planned} of up to {count(plan.worker['rounds'], 'round')}"
    resolves = f"{percent(margin)} is what {planned} can resolve here"
    if wanted > margin:
        resolves = f"{percent(margin)}; {planned} can resolve only {percent(wanted)} here"
    varies = f"the ratio of equal programs varies by {percent(noise)} between rounds"
    return margin, f"{resolves}, where {varies} ({source})"


def _noise(plan: Plan, catalogue: Catalogue, reports: Path) -> tuple[float, str]:
    workloads = {(block.workload, block.size) for block in plan.blocks}
    for run in runs_here(catalogue, reports):
        with contextlib.suppress(KeyError, ValueError):
            rows = ((launch, launch.head["blocks"][0]) for launch in run.launches)
            alike = [one for one, row in rows if (row["workload"], row["size"]) in workloads]
            if found := [noise for launch in alike if (noise := _of_launch(launch.samples))]:
                return statistics.median(found), f"measured in {run.directory.name}"
    return ASSUMED.get(catalogue["platform"], ASSUMED["gpu"]), "an assumption, until a run shows it"


def runs_here(catalogue: Catalogue, reports: Path) -> Iterator[store.Run]:
    """Yield the newest stored runs that were measured on this machine, except damaged ones."""
    here = {name: catalogue[name] for name in ("platform", "device_kind", "usable_cores")}
    # Published runs of others are stored here too.
    here |= {"cpu": processor_name(), "memory_bytes": psutil.virtual_memory().total}
    for run in store.newest(reports):
        if here.items() <= {**run.manifest, **run.manifest["host"]}.items():
            yield run


def _of_launch(samples: bytes) -> float:
    """Return the robust standard deviation of log(twin / arm), median over arms; 0 without twin."""
    logs_of: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for row in map(json.loads, samples.splitlines()):
        logs_of[row["arm"]][row["round"]] = math.log(row["throughput_ns"] / row["steps"])
    twin, spreads = logs_of.pop(TWIN, {}), []
    for own in logs_of.values():  # any arm will do: a constant ratio does not add to the spread
        logs = [twin[number] - own[number] for number in own.keys() & twin.keys()]
        if len(logs) > 1:
            middle = statistics.median(logs)
            spreads.append(1.4826 * statistics.median(abs(log - middle) for log in logs))
    return statistics.median(spreads) if spreads else 0.0
