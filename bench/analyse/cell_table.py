"""The stored rows as one tidy table, a row a cell, and as comparisons, one a block.

Every number of the report is computed here or in bench.analyse.ratio_intervals, from stored rows alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from bench.analyse import energy_per_step, peaks, pipeline_bubbles, rooflines
from bench.analyse import input_waits as waits
from bench.analyse.disturbances import (
    HOST,
    Conditions,
    Effect,
    conditions,
    drifts,
    order_effects,
)
from bench.analyse.ratio_intervals import Ratio, ratios
from bench.analyse.sample_rounds import Rounds, Spread, Turns, spreads
from bench.analyse.verdicts import Claim, claim, pairs
from bench.records import largest_batches as max_batches
from bench.records import numbers
from bench.records.arms import INPUT_WAYS, TWIN, implementation_of, input_arm, input_opponents
from bench.records.mesh import MeshShape
from bench.records.statuses import MARGIN, decisive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bench.analyse.input_waits import Waits
    from bench.analyse.pipeline_bubbles import Idle
    from bench.records.largest_batches import MaxBatchRow
    from bench.records.rows import (
        Ceilings,
        Checkpoint,
        EnergyMeter,
        LossRow,
        Manifest,
        TraceRow,
    )
    from bench.records.store import Damage, Run

"""Status the report gives an `ok` cell whose time cannot be true."""

_OF_A_CLAIM = (
    *("ratio", "ratio_low", "ratio_high"),
    *("verdict_low", "verdict_high", "to_decide_s"),
)
"""Figures of a cell that is compared with a baseline."""

BLOCK_ORDER = ["workload", "size", "options", "devices", "mesh", "batch"]
"""Blocks are listed by these columns."""


@dataclass(frozen=True)
class Comparison:
    """One block: arms that may be compared with one another."""

    name: str
    workload: str
    size: str
    precision: str
    options: str
    """The precision, and what else is asked of the step."""
    mesh: str
    batch: int
    devices: int
    processes: int
    baseline: str
    """Empty if nothing ran."""
    rounds: Rounds
    """Of cells that may show a time, and of the twin."""
    conditions: Conditions | None
    """What the host did meanwhile; None where the system told nothing."""
    floor: Ratio | None
    """The A/A twin against the baseline."""
    launches: int
    measured_s: float
    """Wall seconds of the timed rounds of all launches."""
    span_steps: tuple[int, ...]
    """Steps of a throughput span, in every launch that timed anything: the different ones."""
    load: float
    """Highest load average of the host when a launch began."""
    ceilings: Ceilings | None
    """What its hardware can do at best: see bench.analyse.rooflines.ceilings."""
    arms: tuple[str, ...]
    """Implementations that may show a time."""
    alpha: float
    """Error that the last look at the block may spend, over all pairs of its arms."""
    margin: float
    """Share of a step time that is too small a difference to matter."""
    claims: dict[str, Claim]
    """What is said of each arm but the baseline, against the baseline."""
    ranked: list[dict[str, Any]]
    """The block's `ok` cells, as rows of `Tables.cells`, fastest first: by ratio, which shared
    noise does not touch, and by step time where there is none."""
    drifts: dict[str, Effect]
    """Trend of each arm's ratio to the baseline within the launches."""
    order: dict[str, Effect]
    """Effects of `position` and `predecessor` on the times of turns."""
    input_claims: dict[str, Claim]
    """What is said of each arm that takes its input, against the same implementation's own arm."""
    waits: dict[str, Waits]
    """How long its steps waited for input."""
    process_times: dict[str, np.ndarray]
    """Of several processes, nanoseconds of each arm's throughput spans, (spans, processes)."""

    def claims_of(self, arm: str) -> dict[str, Claim]:
        """What is said of an arm against each other one, by the other."""
        found = ratios(self.rounds, {o: arm for o in self.arms if o != arm})
        alpha = self.alpha / pairs(len(self.arms), len(self.input_claims))
        return {other: claim(ratio.inverse, alpha, self.margin) for other, ratio in found.items()}

    def seconds_to_decide(self, claim: Claim) -> float:
        """How much more measuring would probably decide a claim; 0 if it is decided."""
        return self.measured_s * max(claim.to_decide - 1, 0.0)

    @property
    def subject(self) -> str:
        """`gpt2-nano, fp32`: what scaling and summaries group by."""
        return f"{self.workload}-{self.size}, {self.options}"

    @property
    def place(self) -> str:
        """`data=2, batch 16`."""
        return f"{self.mesh}, batch {self.batch}"


@dataclass(frozen=True)
class Tables:
    """What the rest of the report is made from."""

    cells: pd.DataFrame
    """One row a cell. Columns: what bench.records.rows.CellRow identifies a cell by, with `key`, then
    `status`, `reason`, `interleaved`, `oversubscribed`, `failed_launches`, `rounds`, seconds a step
    (`step_s`, `step_q1_s`, `step_q3_s`, and the same of `latency`), `unit`, `units_per_s`,
    `trace_s`, `lower_s`, `compile_s`, `cache_hits`, `memory_bytes` and its parts
    (`argument_bytes`, `output_bytes`, `temporary_bytes`, `alias_bytes`) as the compiler plans them
    and as measured (`high_water_bytes`), what its programs
    communicate (`communication`, rows of bench.records.rows.Communication; `wire_bytes` that a device sends
    in all), the proof's largest error as a share of what was allowed (`proof_error`), what a
    pipeline's schedule leaves idle as a share of the step (`bubble`) and what was measured not to
    be spent on microbatches (`idle`, `idle_low`, `idle_high`: see bench.analyse.pipeline_bubbles), FLOPs of a
    step over all devices (`model_flops`, `traced_flops`, `compiled_flops`) and bytes
    (`accessed_bytes`), compiled FLOPs for each such byte (`intensity`) and of a device in a second
    (`device_flops`), the most that the measured ceilings allow at this intensity (`roof_flops`) and
    the share of it that is reached (`roof`; the compiler counts every operand of every instruction
    as a byte accessed, caches included, and the body of a loop once, so that it may be over 1),
    why there are no samples with input (`inputs`, by way; null where it was not asked for),
    seconds that `wire_bytes` alone take at the measured rate (`communication_s`; 0 where none are
    sent), `achieved_flops` a second, `mfu` as a share, `baseline`, `ratio`,
    `ratio_low`, `ratio_high`, `paired`, `launches`, `verdict`, `verdict_low`, `verdict_high`,
    joules a step, per unit, units per joule, watts and the ratio of joules to the baseline's, with
    the half-widths of 95 % intervals (bench.analyse.energy_per_step.FIGURES),
    `to_decide_s` (more measuring time that would probably decide it), `profile`. NaN or None where
    there is no figure; no times unless status is `ok`."""
    comparisons: list[Comparison]
    traces: dict[str, TraceRow]
    """What traces showed, by cell."""
    checkpoints: dict[str, Checkpoint]
    """Of saving and restoring states, by cell."""
    timeline: pd.DataFrame
    """One row a round, in order of time: `minutes` since the first, `launch`, the baseline's
    `relative` step time against its median over the block, the shares of all cores' time that
    other processes (`foreign`) and other guests (`steal`) had, and the cores' mean frequency,
    `mhz`; NaN where nothing is known. The system counts in ticks of 10 ms, so that a short round's
    shares are rough, and those of others may come out below 0: they are to be averaged."""
    damaged: Sequence[Damage] = ()
    """What was stored and is not read."""
    losses: Sequence[LossRow] = ()
    """Loss curves, of implementations and references: see bench.analyse.loss_curves."""
    meters: Mapping[str, list[EnergyMeter]] = field(default_factory=dict)
    """What counted energy in each attempt at a block, or why nothing did."""
    largest: Sequence[MaxBatchRow] = ()
    """The largest batches that fit, where they were looked for."""


def build(run: Run) -> Tables:
    """Compute the tables of a run."""
    launches: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _records(run.cells):
        launches[row["cell"]].append(row)
    cells = [_identity(rows, run.manifest) for rows in launches.values()]
    of_block: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        of_block[cell["block"]].append(cell)
    ceilings = rooflines.ceilings(run.blocks)
    timed = _timed_samples(run)
    given = run.manifest["config"].get("inputs", [])
    # Of hundreds of blocks, frames would take most of the time: columns become arrays once.
    turns, host = Turns.of(timed), {name: timed[name].to_numpy(float) for name in HOST}
    places = timed.groupby("block").indices
    used = energy_per_step.measure(timed, run.blocks)
    margin = float(run.manifest["config"].get("margin", MARGIN))
    comparisons = []
    for name, attempts in _attempts(run.blocks).items():
        own, shown = of_block[name], np.asarray(places.get(name, ()), np.intp)
        rounds = Rounds.arranged(turns.at(shown))
        throughput, latency = (spreads(rounds, figure) for figure in ("throughput", "latency"))
        for cell in own:
            arm, device_kind = cell["implementation"], run.manifest["device_kind"]
            cell.update(_times(cell, throughput.get(arm), latency.get(arm), device_kind))
        baseline, counted = _comparable(attempts, timed, shown, own)
        if len(counted) < len(shown):
            rounds = Rounds.arranged(turns.at(counted))
        right = [cell for cell in own if cell["status"] == "ok"]
        arms = tuple(cell["implementation"] for cell in right)
        slots = conditions({column: values[counted] for column, values in host.items()})
        times = process_times(timed, counted) if attempts[0]["processes"] > 1 else {}
        waited = waits.measure(timed, counted) if len(given) else {}
        machine = ceilings.get(name)
        comparison = _comparison(
            name, attempts, rounds, slots, times, waited, baseline, arms, margin, machine
        )
        for cell in own:
            cell.update(_ratio(cell, comparison))
            cell.update(rooflines.figures(cell, machine))
            cell.update(energy_per_step.figures(used, cell, baseline))
        comparison.ranked.extend(sorted(right, key=_rank))
        comparisons.append(comparison)
    idle = pipeline_bubbles.measure(comparisons)
    for cell in cells:
        cell.update(_idle(idle.get((cell["block"], cell["implementation"]))))
    table = pd.DataFrame(cells)
    if cells:
        order = [*BLOCK_ORDER, "implementation"]
        table = table.sort_values(order, kind="stable", ignore_index=True)
    traces = {row["cell"]: row for row in run.traces}
    saved = {
        str(row["cell"]): cast("Checkpoint", row["checkpoint"])
        for row in _records(run.cells[["cell", "checkpoint"]])
        if isinstance(row["checkpoint"], dict)
    }
    timeline = _timeline(run.samples, comparisons)
    meters = {name: _meters(attempts) for name, attempts in _attempts(run.blocks).items()}
    return Tables(
        table,
        comparisons,
        traces,
        saved,
        timeline,
        [*run.damaged, *max_batches.damage(run.directory)],
        run.losses,
        meters,
        max_batches.read(run.directory),
    )


def _meters(attempts: list[dict[str, Any]]) -> list[EnergyMeter]:
    """What counted energy; earlier runs do not say."""
    found = [row["energy"] for row in attempts if isinstance(row["energy"], dict)]
    return cast("list[EnergyMeter]", found)


def _attempts(blocks: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Rows of blocks by their name, in the order of the report."""
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _records(blocks.sort_values(BLOCK_ORDER, kind="stable")):
        found[row["block"]].append(row)
    return found


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dicts; as `to_dict`, which takes five times as long."""
    names = frame.columns.tolist()
    return [dict(zip(names, row, strict=True)) for row in frame.astype(object).to_numpy().tolist()]


def _comparable(
    attempts: list[dict[str, Any]],
    timed: pd.DataFrame,
    places: NDArray[np.intp],
    own: list[dict[str, Any]],
) -> tuple[str, NDArray[np.intp]]:
    """A block's baseline, and the places of those of its samples that may be compared with it.

    The baseline is that of the attempt that timed most arms: cells measured alone are their own,
    and their twins count for nobody else.
    """
    refused = [cell["implementation"] for cell in own if cell["status"] != "ok"]
    if refused:
        places = places[~timed["arm"].iloc[places].map(implementation_of).isin(refused)]
    if not places.size:
        return "", places
    baselines = {row["attempt"]: row["baseline"] for row in attempts}
    if len(set(baselines.values())) == 1:
        return attempts[0]["baseline"], places
    samples = timed[["attempt", "arm"]].iloc[places]
    baseline = baselines[samples.groupby("attempt")["arm"].nunique().idxmax()]
    of_others = samples["attempt"].map(baselines) != baseline
    return baseline, places[~((samples["arm"] == TWIN) & of_others)]


def _rank(cell: dict[str, Any]) -> tuple[float, float, str]:
    ratio = cell["ratio"]
    return math.inf if math.isnan(ratio) else ratio, cell["step_s"], cell["implementation"]


def _timeline(samples: pd.DataFrame, comparisons: list[Comparison]) -> pd.DataFrame:
    baselines = {c.name: c.baseline for c in comparisons}
    key = ["block", "launch", "attempt", "round"]
    # Where no system shows a frequency these are objects, of which pandas takes means one by one.
    samples = samples.astype({"host_mhz": float})
    host = samples.groupby(key, sort=False).agg(
        at=("at", "min"),
        there=("host_cores_s", "sum"),
        foreign=("host_foreign_s", "sum"),
        steal=("host_steal_s", "sum"),
        mhz=("host_mhz", "mean"),
    )
    there = host["there"].astype(float).where(host["there"] > 0)
    own = samples[samples["arm"] == samples["block"].map(baselines)]
    seconds = own["throughput_ns"] / own["steps"]
    relative = seconds / seconds.groupby(own["block"]).transform("median")
    table = host.assign(
        minutes=(host["at"] - host["at"].min()) / 60,
        relative=pd.Series(relative.to_numpy(), index=pd.MultiIndex.from_frame(own[key])),
        foreign=host["foreign"] / there,
        steal=host["steal"] / there,
    )
    columns = ["minutes", "launch", "relative", "foreign", "steal", "mhz"]
    return table.sort_values("at", kind="stable").reset_index()[columns]


def oversubscribed(manifest: Manifest, devices: int) -> bool:
    """Whether CPU devices have to share cores, so that their number shows no scaling."""
    cores = manifest["host"].get("usable_cores")
    return manifest["platform"] == "cpu" and cores is not None and devices > int(cores)


def _identity(rows: list[dict[str, Any]], manifest: Manifest) -> dict[str, Any]:
    """One cell from its row of each launch.

    What `decisive` says counts, and launches that failed are counted beside it.
    """
    first = rows[decisive([row["status"] for row in rows])]
    cell: dict[str, Any] = {
        key: first[key]
        for key in ("cell", "block", "workload", "size", "mesh", "devices", "processes", "batch",
                    "precision", "options", "implementation", "key", "status", "reason")
    }  # fmt: skip
    return cell | {
        "interleaved": bool(first["interleaved"] is not False),
        "oversubscribed": oversubscribed(manifest, int(first["devices"])),
        "launches": len(rows),
        "failed_launches": sum(row["status"] != "ok" for row in rows)
        if first["status"] == "ok"
        else 0,
        "unit": first["unit"],
        "units_per_step": _number(first["units_per_step"]),
        # Of the first launch: later ones take programs from the compilation cache.
        "trace_s": _number(first["compile_trace_s"]),
        "lower_s": _number(first["compile_lower_s"]),
        "compile_s": _number(first["compile_compile_s"]),
        "cache_hits": _number(first["compile_cache_hits"]),
        "memory_bytes": _number(first["memory_total_bytes"]),
        "high_water_bytes": max(
            (found for row in rows if not math.isnan(found := _number(row["high_water_bytes"]))),
            default=float("nan"),
        ),
        "communication": _listed(first["communication"]),
        "wire_bytes": _wire_bytes(first["communication"]),
        **{
            f"{part}_bytes": _number(first[f"memory_{part}_bytes"])
            for part in ("argument", "output", "temporary", "alias")
        },
        "traced_flops": _number(first["traced_flops"]),
        "compiled_flops": _number(first["cost_flops"]),
        "accessed_bytes": _number(first["cost_accessed_bytes"]),
        "model_flops": _number(first["model_flops"]),
        "bubble": _number(first["bubble"]),
        "proof_error": _proof_error(first["proof"]),
        "inputs": first["inputs"] if isinstance(first["inputs"], dict) else None,
        "profile": first["profile"] if isinstance(first["profile"], str) else None,
    }


def _proof_error(checks: Any) -> float:
    """The proof's largest error, as a share of what was allowed; NaN without a proof."""
    if not isinstance(checks, list) or not checks:
        return float("nan")
    shares = [
        check[f"{part}_error"] / check[f"{part}_tolerance"]
        for check in checks
        for part in ("loss", "update")
    ]
    return float(max(shares))


def _idle(found: Idle | None) -> dict[str, float]:
    ends = ("idle", "idle_low", "idle_high")
    if found is None:
        return dict.fromkeys(ends, float("nan"))
    return dict(zip(ends, (found.value, found.low, found.high), strict=True))


def _listed(rows: Any) -> list[dict[str, Any]] | None:
    return rows if isinstance(rows, list) else None


def _wire_bytes(rows: Any) -> float:
    """Of all collectives; NaN where nothing is known."""
    listed = _listed(rows)
    return float("nan") if listed is None else float(sum(row["wire_bytes"] for row in listed))


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _timed_samples(run: Run) -> pd.DataFrame:
    """Samples of the attempts that `ok` cells ended in, and of the twins that ran beside them."""
    key = ["block", "launch", "attempt"]
    ok = run.cells.loc[run.cells["status"] == "ok", [*key, "implementation"]]
    twins = run.blocks.merge(
        ok, left_on=[*key, "baseline"], right_on=[*key, "implementation"], how="inner"
    )[key].assign(implementation=TWIN)
    given = [
        ok.assign(implementation=ok["implementation"].map(partial(input_arm, way=w)))
        for w in INPUT_WAYS
    ]
    arms = pd.concat([ok, twins, *given])
    arms = arms.rename(columns={"implementation": "arm"}).drop_duplicates()
    return run.samples.merge(arms, on=[*key, "arm"], how="inner")


def _times(
    cell: dict[str, Any], throughput: Spread | None, latency: Spread | None, device_kind: str
) -> dict[str, Any]:
    """Times and rates of an `ok` cell, or the status and reason that refuse them."""
    figures = ("step_s", "step_q1_s", "step_q3_s", "latency_s", "latency_q1_s", "latency_q3_s",
               "units_per_s", "achieved_flops", "mfu")  # fmt: skip
    nothing: dict[str, Any] = {"rounds": 0} | dict.fromkeys(figures, float("nan"))
    if cell["status"] != "ok":
        return nothing
    if throughput is None or latency is None:
        return nothing | {"status": "crashed", "reason": "no samples were stored"}
    published = peaks.peak(device_kind, cell["precision"])
    used = float("nan")
    if published:
        used = peaks.mfu(cell["model_flops"], throughput.median, cell["devices"], published)
        if used > 1:
            return nothing | {
                "status": "implausible",
                "reason": f"the time would mean {numbers.percent(used)} of the published peak of "
                f"{device_kind}, {numbers.si(published.flops, 'FLOP/s')}; nothing can be that "
                "fast, so it is not shown",
            }
    return {
        "rounds": throughput.rounds,
        "step_s": throughput.median,
        "step_q1_s": throughput.lower_quartile,
        "step_q3_s": throughput.upper_quartile,
        "latency_s": latency.median,
        "latency_q1_s": latency.lower_quartile,
        "latency_q3_s": latency.upper_quartile,
        "units_per_s": cell["units_per_step"] / throughput.median,
        "achieved_flops": cell["model_flops"] / throughput.median,
        "mfu": used,
    }


def _comparison(
    name: str,
    attempts: list[dict[str, Any]],
    rounds: Rounds,
    conditions: Conditions | None,
    process_times: dict[str, np.ndarray],
    waited: dict[str, Waits],
    baseline: str,
    arms: tuple[str, ...],
    margin: float,
    machine: Ceilings | None,
) -> Comparison:
    """A block's comparison, not yet ranked."""
    first = attempts[0]
    looks = [look for row in sorted(attempts, key=itemgetter("launch")) for look in row["looks"]]
    alpha = float(looks[-1]["alpha"]) if looks else 0.0
    opponents = {arm: baseline for arm in arms if arm != baseline}
    given = input_opponents(rounds.arms)
    known = ratios(rounds, opponents | given | {TWIN: baseline})
    floor, each = known.pop(TWIN, None), alpha / pairs(len(arms), len(given))
    found = {arm: claim(ratio, each, margin) for arm, ratio in known.items()}
    return Comparison(
        name=name,
        workload=first["workload"],
        size=first["size"],
        precision=first["precision"],
        options=first["options"],
        mesh=str(MeshShape.parse(first["mesh"])),
        batch=int(first["batch"]),
        devices=int(first["devices"]),
        processes=int(first["processes"]),
        baseline=baseline,
        rounds=rounds,
        conditions=conditions,
        floor=floor,
        launches=len({row["launch"] for row in attempts}),
        measured_s=float(sum(row["seconds"].get("measure", 0.0) for row in attempts)),
        span_steps=tuple(sorted({int(row["steps"]) for row in attempts if row["steps"]})),
        load=max(float(row["load_before"]) for row in attempts),
        ceilings=machine,
        arms=arms,
        alpha=alpha,
        margin=margin,
        claims={arm: one for arm, one in found.items() if arm not in given},
        ranked=[],
        drifts=drifts(rounds.paired(opponents)),
        order=order_effects(rounds),
        input_claims={arm: one for arm, one in found.items() if arm in given},
        waits=waited,
        process_times=process_times,
    )


def process_times(timed: pd.DataFrame, places: NDArray[np.intp]) -> dict[str, np.ndarray]:
    """Nanoseconds of each arm's throughput spans in each of several processes."""
    told = timed[["arm", "process_throughput_ns"]].iloc[places].dropna()
    return {
        str(arm): np.array(rows["process_throughput_ns"].tolist(), dtype=np.int64)
        for arm, rows in told.groupby("arm")
    }


def _ratio(cell: dict[str, Any], comparison: Comparison) -> dict[str, Any]:
    name = cell["implementation"]
    own: dict[str, Any] = {"baseline": comparison.baseline, "paired": True, "verdict": None}
    own |= dict.fromkeys(_OF_A_CLAIM, float("nan"))
    if name == comparison.baseline and name in comparison.arms:
        return own | {"ratio": 1.0, "ratio_low": 1.0, "ratio_high": 1.0}
    claim = comparison.claims.get(name)
    if claim is None:
        return own | {"paired": False}
    ratio, verdict = claim.ratio, claim.verdict
    low, high = ratio.interval() or (float("nan"), float("nan"))
    return own | {
        "ratio": ratio.value,
        "ratio_low": low,
        "ratio_high": high,
        "paired": ratio.paired,
        "verdict": verdict.word,
        "verdict_low": verdict.low,
        "verdict_high": verdict.high,
        "to_decide_s": comparison.seconds_to_decide(claim),
    }
