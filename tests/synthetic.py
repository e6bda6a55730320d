"""Synthetic runs with known truth, for tests of storing, statistics and the report."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from bench.records import store
from bench.records.arms import IN_PARTS, TWIN, WHOLE_BATCH, arm_beside
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape
from bench.records.messages import Inspection
from bench.records.row_parts import ProofCheck
from bench.records.rows import (
    SCHEMA,
    BlockRow,
    Ceilings,
    CellRow,
    Checkpoint,
    HostSlot,
    Look,
    LossRow,
    Manifest,
    SampleRow,
    block_fields,
)
from bench.records.statuses import Status
from bench.records.step_programs import Communication, Operation, compressed, packed
from bench.records.trace_rows import DrawnRuns, DrawnStep, OpTime, StepParts, TraceRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Attempt = tuple[list[SampleRow], list[CellRow], BlockRow]

BASELINE = "jit_spmd"
RATIOS = {
    "jit_spmd": 1.0,
    "nnx_jit": 1.25,
    "nnx_jit_cached": 1.03,
    "pmap": 1.10,
    "python_loop": 4.0,
    "shard_map_pmean": 0.9,
    "shard_map_psum": 0.9,
}
"""True time of each implementation over the baseline's."""

SHARED = {"bench/contract/__init__.py": "c" * 16}

STARTED = 1_795_270_205.0
"""2026-11-21 14:10:05 UTC."""

FLOPS = {"linear-base": 2e8, "mlp-base": 6e9, "gpt2-nano": 4e10}
"""FLOPs per step of the smallest batch."""


PROCESSOR = "An eight-core processor"
MEMORY_BYTES = 33_554_432_000


@dataclass
class Plan:
    """What a synthetic run measures, and what is true in it."""

    workloads: tuple[str, ...] = ("mlp-base",)
    devices: tuple[int, ...] = (1, 2, 4, 8)
    batches: tuple[str, ...] = ("strong",)
    """`strong`: 64 over all devices; `weak`: 64 a device."""
    ratios: dict[str, float] = field(default_factory=lambda: dict(RATIOS))
    rounds: int = 12
    launches: int = 1
    noise: float = 0.004
    """Standard deviation of a turn's log time, beside what a whole round shares."""
    shared_noise: float = 0.05
    seed: int = 0
    """Of all noise: another one is another measurement of the same truth."""
    pace: float = 1.0
    """By how much the host makes every time longer."""
    endings: dict[tuple[str, int], tuple[Status, str]] = field(default_factory=dict)
    """How a cell ends other than ok, by implementation and devices (0: any)."""
    stages: int = 0
    """Of a pipeline whose blocks take 2, 4 and 8 microbatches of one size; 0 where it is none."""
    variants: dict[str, float] = field(default_factory=lambda: {"": 1.0})
    """By how much each environment makes every time longer, by name."""
    remat: dict[str, float] = field(default_factory=lambda: {"": 1.0})
    """By how much each policy of rematerialization does, by name."""
    inputs: dict[str, float] = field(default_factory=dict)
    """By how much taking its input makes every implementation's step longer, by the way."""
    ablations: dict[str, float] = field(default_factory=dict)
    """By how much lacking a part makes every implementation's step shorter, by the way."""
    checkpoints: bool = False
    """Whether states are saved and restored: 10 MB in 0.1 s, half of it blocking if async."""
    alone: frozenset[str] = frozenset()
    """Implementations that are measured in a worker of their own."""
    platform: str = "cpu"
    device_kind: str = "cpu"
    usable_cores: int = 4
    memory_bytes: int = MEMORY_BYTES
    processor: str = PROCESSOR
    flops_scale: float = 1.0
    foreign: float = 0.0
    """Share of the cores' time that other processes used."""
    traced: bool = False
    trained: int = 0
    """Steps of every loss curve."""
    drifts: dict[str, float] = field(default_factory=dict)
    """By how much more, at every step, an arm's loss is off the reference's, relatively."""
    programs: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """Fingerprint, dispatch path and the host's calls of implementations whose program is known."""
    approximate: frozenset[str] = frozenset()
    """Implementations whose steps are approximate."""
    contents: dict[str, str] = field(default_factory=dict)
    """Hash of an implementation's file, where it is another than usual."""

    def blocks(self) -> Iterator[Block]:
        """Blocks of the run, each once."""
        seen: dict[Block, None] = {}
        for workload in self.workloads:
            name, _, size = workload.partition("-")
            for devices in self.devices:
                for scaling in self.batches:
                    batch = 64 if scaling == "strong" else 64 * devices
                    mesh = MeshShape.parse(f"data={devices}")
                    counts = (2, 4, 8) if self.stages else (1,)
                    for variant, remat, count in product(self.variants, self.remat, counts):
                        options = StepOptions(microbatches=count, remat=remat, variant=variant)
                        seen[Block(name, size, mesh, batch * count, options)] = None
        yield from seen


def manifest(plan: Plan, run: str = "synthetic") -> Manifest:
    """A manifest as the run command writes it."""
    return {
        "schema": SCHEMA,
        "run": run,
        "started_at": "2026-11-21T14:10:05+00:00",
        "argv": ["run", "--preset", "quick", "--meshes", "data=1", "data=2"],
        "preset": "quick",
        "config": {
            "workloads": list(plan.workloads),
            "baseline": BASELINE,
            "margin": 0.02,
            "train_steps": plan.trained,
            "inputs": list(plan.inputs),
            "ablations": list(plan.ablations),
            "checkpoints": ["sync", "async"] if plan.checkpoints else [],
            "options": {},
        },
        "platform": plan.platform,
        "device_kind": plan.device_kind,
        "device_count": 1,
        "device_memory_bytes": None,
        "host": {
            "os": "Linux 6.1",
            "cpu": plan.processor,
            "physical_cores": plan.usable_cores,
            "usable_cores": plan.usable_cores,
            "memory_bytes": plan.memory_bytes,
            "load": 0.3,
        },
        "versions": {"python": "3.13.1", "jax": "0.10.2", "flax": "0.12.8", "optax": "0.2.6"},
        "environment": {"NPROC": "1"},
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
    }


def write(reports: Path, plan: Plan, run: str = "synthetic") -> Path:
    """Store a whole synthetic run and return its folder."""
    directory = store.create(reports, manifest(plan, run))
    measure(directory, plan)
    return directory


def measure(directory: Path, plan: Plan) -> None:
    """Store a plan's blocks in the folder of a run."""
    for block in plan.blocks():
        for launch in range(plan.launches):
            together = [name for name in plan.ratios if name not in plan.alone]
            rows = attempt(plan, block, launch, "all", together)
            shown = traces(plan, block, rows[1]) if plan.traced and not launch else []
            apart = [attempt(plan, block, launch, name, [name]) for name in sorted(plan.alone)]
            curves = losses(plan, block, rows[1]) if plan.trained and not launch else []
            append(directory, rows, *apart, traces=shown, losses=curves)


def append(
    directory: Path,
    *attempts: Attempt,
    traces: list[TraceRow] | None = None,
    losses: list[LossRow] | None = None,
) -> None:
    """Store one launch."""
    samples = [row for attempt in attempts for row in attempt[0]]
    cells = [row for attempt in attempts for row in attempt[1]]
    blocks = [attempt[2] for attempt in attempts]
    store.add_launch(directory, samples, cells, blocks, traces or (), losses or ())


def rewrite(directory: Path, kind: str, change: Callable[[Any], None]) -> None:
    """Change a run's manifest, or every row of a kind, as if it had been stored like that.

    Args:
      directory: of the run.
      kind: `manifest`, `blocks`, `cells`, `traces`, `losses` or `samples`.
      change: changes a row in place.
    """
    if kind == "manifest":
        manifest = store.read_manifest(directory)
        change(manifest)
        store.write_manifest(directory, manifest)
        return
    launches = launches_of(directory)
    for path in launch_files(directory):
        path.unlink()
    for launch in launches:
        for row in launch[kind]:
            change(row)
        store.add_launch(directory, **launch)


def launch_files(directory: Path) -> list[Path]:
    return sorted((directory / store.LAUNCHES).iterdir())


def launches_of(directory: Path) -> list[dict[str, list[Any]]]:
    """The rows of each stored launch, by kind."""
    launches = []
    for path in launch_files(directory):
        head, beside, *samples, _ = map(json.loads, path.read_bytes().splitlines())
        launches.append({**head, **beside, "samples": samples})
    return launches


def attempt(plan: Plan, block: Block, launch: int, label: str, names: list[str]) -> Attempt:
    """Rows of one worker process."""
    rng = np.random.default_rng(zlib.crc32(f"{block.name} {launch} {label}".encode()) + plan.seed)
    tag = f"{zlib.crc32(block.name.encode()):08x}-{launch}-{label}"
    cells = [_cell(plan, block, launch, tag, name, alone=label == name) for name in names]
    ok = [row["implementation"] for row in cells if row["status"] == "ok"]
    baseline = BASELINE if BASELINE in ok else next(iter(ok), "")
    arms = [*ok, TWIN] if label == "all" and baseline else ok
    ways = plan.inputs | plan.ablations
    arms += [arm_beside(name, way) for name in ok for way in ways if label == "all"]
    samples: list[SampleRow] = []
    host = HostSlot(cores_s=4.0, steal_s=0.0, own_s=2.0, foreign_s=4.0 * plan.foreign, mhz=None)
    for number in range(plan.rounds):
        # Shared by the round's turns: what a paired estimator has to see through. Heavy-tailed.
        shared = plan.shared_noise * rng.standard_t(3)
        for index in rng.permutation(len(arms)):
            arm = str(arms[index])
            own, _, way = arm.partition("+")
            ratio = plan.ratios[baseline if arm == TWIN else own] * ways.get(way, 1.0)
            seconds = base_seconds(plan, block) * ratio * plan.pace
            seconds *= plan.variants[block.options.variant] * plan.remat.get(
                block.options.remat, 1.0
            )
            seconds *= np.exp(shared + plan.noise * rng.standard_normal())
            samples.append(
                {
                    "block": block.name,
                    "attempt": tag,
                    "launch": launch,
                    "arm": arm,
                    "round": number,
                    "at": STARTED + 100.0 * launch + number,
                    "steps": 20,
                    "latency_steps": 20,
                    "latency_ns": int(20e9 * seconds + 20 * 30e3),
                    "throughput_ns": int(20e9 * seconds),
                    "wash_out_ns": int(1e9 * seconds),
                    "host": host,
                }
            )
            if way in plan.inputs:
                wait = int(1e9 * seconds * (1 - 1 / plan.inputs[way]))
                samples[-1]["input"] = {"wait_ns": 20 * wait, "starved_ns": 10 * wait}
    row: BlockRow = {
        **block_fields(block, tag, launch),
        "baseline": baseline,
        "rounds": plan.rounds if ok else 0,
        "looks": [
            Look(rounds=(launch + 1) * plan.rounds, alpha=0.008 / plan.launches, spent=0.008)
        ],
        "steps": 20 if ok else 0,
        "started_at": "2026-11-21T14:10:07+00:00",
        "seconds": {
            "start": 2.1,
            "ceilings": 0.8,
            "gate": 4.0,
            "compile": 1.2,
            "measure": 3.0,
            "trace": 0.0,
        },
        "ceilings": None if launch else ceilings(plan, block),
    }
    return samples, cells, row


def checkpoint(block: Block) -> Checkpoint:
    """A state that is replicated."""
    return {
        "reason": "",
        "state_bytes": 10_000_000,
        "stored_bytes": 9_000_000,
        "saves": {
            "sync": {
                "blocking_s": [0.1, 0.09, 0.2], "total_s": [0.1, 0.09, 0.2],
                "steps_before_ns": [], "steps_during_ns": [],
            },
            "async": {
                "blocking_s": [0.05, 0.04, 0.06], "total_s": [0.1, 0.09, 0.2],
                "steps_before_ns": [2_000_000] * 3, "steps_during_ns": [3_000_000] * 3,
            },
        },
        "restores": [
            {"mesh": mesh, "seconds": [0.1, 0.11, 0.12]}
            for mesh in (str(block.mesh), f"{block.mesh}, devices reversed")
        ],
    }  # fmt: skip


def ceilings(plan: Plan, block: Block) -> Ceilings:
    """What the machine can do: 100 GFLOP/s and 10 GB/s per device, and 2 GB/s between several."""
    several = block.mesh.size > 1
    return {
        "matmul_flops": 1e11 * plan.flops_scale,
        "memory_bytes": 1e10,
        "all_reduce_bytes": 2e9 if several else None,
        "all_reduce_s": 50e-6 if several else None,
    }


def traces(plan: Plan, block: Block, cells: list[CellRow]) -> list[TraceRow]:
    """What the traces of a block's cells showed.

    Of the baseline's step a tenth is dispatch, a tenth idle, the rest a matrix product. What others
    take longer is an elementwise update that transposes in them alone, and that is called otherwise
    in each.
    """
    return [_trace(plan, block, row) for row in cells if row["status"] == "ok"]


def _trace(plan: Plan, block: Block, row: CellRow) -> TraceRow:
    name = row["implementation"]
    whole = 1e9 * base_seconds(plan, block)
    update = whole * (plan.ratios[name] - 1) + 0.1 * whole
    part: StepParts = {
        "step": 0,
        "device": 0,
        "total_ns": round(0.9 * whole + update),
        "dispatch_ns": round(0.1 * whole),
        "compute_ns": round(0.7 * whole + update),
        "wait_ns": 0,
        "move_ns": 0,
        "idle_ns": round(0.1 * whole),
        "overlap_ns": 0,
    }
    product: OpTime = {
        "module": "jit_step",
        "op": f"dot_in_{name}",
        "opcode": "dot",
        "category": "matmul",
        "phase": "forward",
        "source": "flax/nnx/nn/linear.py:422",
        "shapes": ["f32[64,256]"],
        "transposes": False,
        "count": 1.0,
        "compute_ns": 0.7 * whole,
        "wait_ns": 0.0,
        "move_ns": 0.0,
    }
    moment = cast("OpTime", {
        **product, "op": f"fusion_in_{name}", "opcode": "fusion", "category": "elementwise",
        "phase": "update", "source": "optax/_src/transform.py:283",
        "shapes": ["f32[256,64]" if name == BASELINE else "f32[64,256]"],
        "transposes": name != BASELINE, "compute_ns": update,
    })  # fmt: skip
    return {
        **block_fields(block, row["attempt"], row["launch"]),
        "cell": row["cell"],
        "implementation": name,
        "profile": f"synthetic/{row['cell']}",
        "host": "process_0",
        "steps": [
            cast("StepParts", {**part, "step": step, "device": device})
            for step in range(3)
            for device in range(block.mesh.size)
        ],
        "counted": [1, 2],
        "ops": [product, moment],
        "untraced_ns": [round(0.9 * whole + update)] * 3,
        "drawn": compressed(_drawn(row, block.mesh.size, part, update)),
    }


def _drawn(row: CellRow, devices: int, part: StepParts, update: float) -> DrawnStep:
    """A step of the trace, in which every device comes later than the one before to a sum."""
    runs: DrawnRuns = {"device": [], "op": [], "start": [], "ns": [], "wait": [], "meeting": []}
    late = part["idle_ns"] // 20
    for device in range(devices):
        begun = part["dispatch_ns"]
        product = part["compute_ns"] - round(update) + device * late
        wait = (devices - 1 - device) * late
        rest = begun + product + wait + late
        for op, (start, ns, waiting) in enumerate((
            (0, begun, 0), (begun, product, 0), (begun + product, wait + late, wait),
            (rest, round(update), 0),
        )):  # fmt: skip
            values = (device, op, start, ns, waiting, 0 if op == 2 else -1)
            for name, value in zip(runs, values, strict=True):
                runs[name].append(value)  # type: ignore[literal-required]
    name = row["implementation"]
    return {
        "step": 1,
        "ns": part["total_ns"],
        "one_clock": True,
        "left_out": 0,
        "ops": {
            "op": ["", f"dot_in_{name}", f"all-reduce_in_{name}", f"fusion_in_{name}"],
            "category": ["dispatch", "matmul", "collective", "elementwise"],
            "source": ["", "flax/nnx/nn/linear.py:422", "", "optax/_src/transform.py:283"],
            "shapes": ["", "f32[64,256]", "f32[256,64]", "f32[256,64]"],
        },
        "runs": runs,
    }


LAYOUT_ROWS = 16
"""Of the divided matrix; larger meshes have no layout."""


def layout(block: Block) -> Inspection:
    """A matrix divided over all devices, and a vector on every one."""
    devices = list(range(block.mesh.size))
    axes = [list(axis) for axis in block.mesh.axes]
    across = block.mesh.axes[-1][1]
    own = LAYOUT_ROWS // len(devices)
    halves = [{"index": [[own * d, own * (d + 1)], [0, 4]], "devices": [d]} for d in devices]
    whole = [{"index": [[0, 8]], "devices": devices}]
    return cast("Inspection", {
        "axes": axes,
        "devices": [devices[at : at + across] for at in range(0, len(devices), across)],
        "unsupported": "",
        "parameters": [
            {"path": f"blocks/{n}/up/kernel", "shape": [LAYOUT_ROWS, 4], "dtype": "float32",
             "bytes": 256, "device_bytes": 256 // len(devices), "parts": halves}
            for n in range(3)
        ] + [{"path": "norm/scale", "shape": [8], "dtype": "float32", "bytes": 32,
              "device_bytes": 32, "parts": whole}],
        "device_bytes": {
            kind: {str(d): size for d in devices}
            for kind, size in (("parameters", 128), ("state", 384), ("batch", 2048))
        },
    })  # fmt: skip


DRIFTS = {IN_PARTS: 1e-8}
"""Of the reference in parts, unless a plan says otherwise."""


def losses(plan: Plan, block: Block, cells: list[CellRow]) -> list[LossRow]:
    """Curves that fall from 2 to 1, and drift off the reference's by as much at every step."""
    steps = np.arange(plan.trained)
    right = 1 + 0.97**steps
    ok = [row["implementation"] for row in cells if row["status"] == "ok"]
    fields = block_fields(block, cells[0]["attempt"], cells[0]["launch"])
    return [
        LossRow(
            **fields,
            arm=arm,
            losses=(right * (1 + drift * (steps + 1))).tolist(),
            reason="",
            tolerance=3.04e-4,
        )
        for arm in (WHOLE_BATCH, IN_PARTS, *ok)
        for drift in [plan.drifts.get(arm, DRIFTS.get(arm, 0.0))]
    ]


def base_seconds(plan: Plan, block: Block) -> float:
    """True seconds per step of the baseline: Amdahl's law, 8 % serial work and 40 us dispatch."""
    if plan.stages:
        return 1e-3 * (block.options.microbatches + plan.stages - 1)
    flops = _flops(plan, block) / plan.flops_scale
    devices = min(block.mesh.size, plan.usable_cores)
    return flops / 5e10 * (0.08 + 0.92 / devices) + 40e-6 * block.mesh.size


def _flops(plan: Plan, block: Block) -> float:
    return FLOPS[f"{block.workload}-{block.size}"] * block.batch / 64 * plan.flops_scale


def _cell(plan: Plan, block: Block, launch: int, tag: str, name: str, *, alone: bool) -> CellRow:
    status, reason = plan.endings.get(
        (name, block.mesh.size), plan.endings.get((name, 0), ("ok", ""))
    )
    row: CellRow = {
        "cell": Cell(block, name).name,
        **block_fields(block, tag, launch),
        "implementation": name,
        "status": status,
        "reason": reason,
        "key": f"{zlib.crc32(f'{block.name}/{name}'.encode()):016x}",
        "sources": {
            "implementation": {f"{name}.py": plan.contents.get(name, "0" * 16), **SHARED},
            "workload": {f"{block.workload}.py": "1" * 16, **SHARED},
        },
    }
    if name in plan.approximate:
        row["approximate"] = f"{name} rounds"
    if status == "ok":
        row["compile"] = {
            "trace_s": 0.21, "lower_s": 0.08, "compile_s": 0.9, "cache_hits": 5 if launch else 0,
        }  # fmt: skip
        row["memory"] = {
            "total_bytes": 3_400_000 + 1000 * block.batch,
            "argument_bytes": 2_000_000,
            "output_bytes": 2_000_000,
            "temporary_bytes": 1_400_000,
            "alias_bytes": 2_000_000,
        }
        if not launch and block.mesh.size <= LAYOUT_ROWS:
            row["layout"] = compressed(layout(block))
        row["high_water_bytes"] = 3_600_000 if name == "pmap" and launch else None
        row["communication"] = []
        if block.mesh.size > 1 and name != "python_loop":
            reduced: Communication = {
                "kind": "all-reduce", "axes": ["data"], "members": block.mesh.size,
                "dtypes": ["f32"], "count": 2, "payload_bytes": 4_000_000, "wire_bytes": 6e6,
            }  # fmt: skip
            scattered = cast("Communication", {
                **reduced, "kind": "reduce-scatter", "axes": [], "dtypes": ["bf16", "f32"],
                "count": 1, "wire_bytes": 1e6,
            })  # fmt: skip
            row["communication"] = [reduced, scattered] if name == "pmap" else [reduced]
        row["traced_flops"] = None if name == "nnx_jit" else _flops(plan, block)
        row["cost"] = {"flops": 1.5 * _flops(plan, block), "accessed_bytes": 1e6}
        row["model_flops"] = _flops(plan, block)
        row["unit"] = "tokens" if block.workload == "gpt2" else "samples"
        row["units_per_step"] = block.batch * (64 if block.workload == "gpt2" else 1)
        row["interleaved"] = not alone
        if name in plan.programs and not launch:
            fingerprint, dispatch, calls = plan.programs[name]
            size = 4 * zlib.crc32(fingerprint.encode()) % 100
            done = [
                Operation("optax/_src/update.py:42", "add", "f32[8]{0}", 2, 32),
                Operation(f"{name}.py:7", "dot", f"f32[{size}]{{0}}", 1, 4 * size),
            ]
            row["program"] = {
                "fingerprint": fingerprint, "dispatch": dispatch, "host_calls": calls,
                "operations": packed(done),
            }  # fmt: skip
        if plan.checkpoints and not launch:
            row["checkpoint"] = checkpoint(block)
        if plan.inputs:
            row["inputs"] = dict.fromkeys(plan.inputs, "")
        if plan.ablations:
            row["ablations"] = dict.fromkeys(plan.ablations, "")
        if plan.stages:
            count = block.options.microbatches
            row["bubble"] = (plan.stages - 1) / (count + plan.stages - 1)
        check: ProofCheck = {
            "name": "fp64 sgd",
            "loss_error": 1e-8,
            "update_error": 3e-7,
            "loss_tolerance": 1e-6,
            "update_tolerance": 2e-5,
        }
        row["proof"] = [check]
    return row


def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this machine processor and memory of synthetic runs: they count as measured here."""
    memory = SimpleNamespace(total=MEMORY_BYTES, available=MEMORY_BYTES)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    monkeypatch.setattr("bench.plan.margins.processor_name", lambda: PROCESSOR)
