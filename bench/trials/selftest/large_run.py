"""A large run with synthetic times, for measuring the cost of its report."""

import time
from itertools import product
from pathlib import Path

import numpy as np

from bench.records import rows as stored
from bench.records import store
from bench.records.arms import TWIN
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape

ARMS = [f"implementation_{number:02}" for number in range(20)]
WORKLOADS = ("one", "two")
DEVICES = (1, 2, 4, 8, 16, 32, 64, 128)
ROUNDS = 16
_STARTED_AT = "2026-01-01T00:00:00+00:00"
_QUIET = stored.HostSlot(cores_s=0.2, steal_s=0.0, own_s=0.19, foreign_s=0.01, mhz=None)
_MANIFEST: stored.Manifest = {
    "schema": stored.SCHEMA, "run": "large", "started_at": _STARTED_AT, "argv": ["run"],
    "preset": "full", "processes": 1, "config": {"margin": 0.02, "options": {}},
    "platform": "cpu", "device_kind": "cpu", "device_count": 1, "device_memory_bytes": None,
    "host": {"os": "", "cpu": "", "physical_cores": 8, "usable_cores": 8, "memory_bytes": 0,
             "load": 0.0},
    "versions": {"python": "", "jax": ""}, "environment": {}, "git": {"commit": "", "dirty": False},
}  # fmt: skip


def write(reports: Path, cells: int) -> tuple[Path, int]:
    """Store a run of at least this many cells; return its folder and the number of cells.

    Every workload is measured on every number of devices, with as many batch sizes as needed.
    """
    directory, rng = store.create(reports, _MANIFEST), np.random.default_rng(0)
    batches = -(-cells // (len(WORKLOADS) * len(DEVICES) * len(ARMS)))
    blocks = list(product(WORKLOADS, DEVICES, range(1, batches + 1)))
    for number, (workload, devices, batch) in enumerate(blocks):
        mesh, attempt = MeshShape.parse(f"data={devices}"), f"{number:08}"
        block = Block(workload, "base", mesh, 128 * batch, StepOptions())
        row: stored.BlockRow = {
            **stored.block_fields(block, attempt, 0),
            "baseline": ARMS[0],
            "rounds": ROUNDS,
            "looks": [{"rounds": ROUNDS, "alpha": 0.008, "spent": 0.008}],
            "steps": 10,
            "started_at": _STARTED_AT,
            "seconds": {"measure": 2.0},
            "ceilings": {
                "matmul_flops": 1e11, "memory_bytes": 1e10,
                "all_reduce_bytes": 1e9, "all_reduce_s": 1e-4,
            },
        }  # fmt: skip
        rows = [_cell(block, attempt, arm) for arm in ARMS]
        store.add_launch(directory, _samples(block, attempt, rng), rows, [row])
    return directory, len(blocks) * len(ARMS)


def rebuild(directory: Path) -> tuple[float, int]:
    """Build the report of a stored run; return its duration and the size of the page in bytes."""
    from bench.present.report_files import build  # noqa: PLC0415 (it is slow to load)

    start = time.perf_counter()
    page = build(store.load(directory))
    return time.perf_counter() - start, page.stat().st_size


def _samples(block: Block, attempt: str, rng: np.random.Generator) -> list[stored.SampleRow]:
    arms = [*ARMS, TWIN]
    truth = 1 + 0.02 * np.arange(len(arms))
    truth[-1] = truth[0]
    shared = 0.05 * rng.standard_normal((ROUNDS, 1))
    times = 1e7 * truth * np.exp(shared + 0.005 * rng.standard_normal((ROUNDS, len(arms))))
    rows: list[stored.SampleRow] = []
    for number in range(ROUNDS):
        for index in rng.permutation(len(arms)):
            nanoseconds = int(times[number, index] / block.mesh.size)
            rows.append(
                {
                    "block": block.name, "attempt": attempt, "launch": 0, "arm": arms[index],
                    "round": number, "at": 1.7e9 + number, "steps": 10,
                    "throughput_ns": 10 * nanoseconds, "latency_steps": 2,
                    "latency_ns": 2 * nanoseconds, "wash_out_ns": nanoseconds, "host": _QUIET,
                }
            )  # fmt: skip
    return rows


def _cell(block: Block, attempt: str, arm: str) -> stored.CellRow:
    return {
        "cell": Cell(block, arm).name,
        **stored.block_fields(block, attempt, 0),
        "implementation": arm, "status": "ok", "reason": "", "proof": [],
        "compile": {"trace_s": 0.1, "lower_s": 0.1, "compile_s": 0.5, "cache_hits": 0},
        "memory": {
            "total_bytes": 3000, "argument_bytes": 1000, "output_bytes": 1000,
            "temporary_bytes": 1000, "alias_bytes": 0,
        },
        "model_flops": 1e9, "unit": "samples", "units_per_step": block.batch,
        "interleaved": True, "bubble": 0.0,
    }  # fmt: skip
