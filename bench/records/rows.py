"""The rows that a run stores: the only interface between measuring and reporting.

bench.records.store says which file holds them. `_ns` and `_bytes` are integers, `_s` are floats.
"""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

from bench.records.cells import Block
from bench.records.row_parts import BoardState, Check, Energy, ForeignArms, Isolation
from bench.records.statuses import Status
from bench.records.step_programs import ProgramFigures

SCHEMA = 6


class HostSlot(TypedDict):
    """The host during one turn.

    Seconds are CPU time over all cores, in ticks (10 ms): sum them over turns before reading them.
    """

    cores_s: float
    """Available CPU time: wall time times the system's cores."""
    steal_s: float
    """CPU time that the hypervisor gave to other guests."""
    own_s: float
    """CPU time of the measuring processes."""
    foreign_s: float
    """CPU time of others; negative by up to a tick if the kernel books ours late."""
    mhz: float | None
    """Mean frequency of the cores at the end of the turn; None if the system does not show it."""


class InputWait(TypedDict):
    """The time that an input arm waited for its batches in one turn's throughput span.

    A wait begins when the host asks for the next batch, and ends when the step can be launched.
    Devices may be busy with earlier steps meanwhile. Once they are done with the last step, the
    wait for batches that the span still has to prefetch counts as well.
    """

    wait_ns: int
    """Wait over all steps of the span."""
    starved_ns: int
    """Wait at steps whose batch came after the devices were done: a bound on their idle time."""


class Turn(TypedDict):
    """One arm's turn in one round."""

    arm: str
    """Implementation, TWIN, or an arm that takes input or lacks a part: see bench.records.arms."""
    round: int
    at: float
    """Start of the turn: seconds since 1970, UTC."""
    steps: int
    """Steps of the throughput span; the same for every arm of the block."""
    throughput_ns: int
    """Time of `steps` steps with one wait for the devices, after the last."""
    latency_steps: int
    """Steps of the latency span, the same for every arm; 0 if `steps` is 1, which needs none."""
    latency_ns: int
    """Time of `latency_steps` steps with a wait for the devices after each."""
    wash_out_ns: int
    """Time of the one discarded step before the spans."""
    host: HostSlot
    energy: NotRequired[Energy]
    """Energy of the devices; absent without a counter."""
    boards: NotRequired[BoardState]
    """The GPUs right after the turn; absent without NVML."""
    input: NotRequired[InputWait]
    """Waits for input, for an input arm."""
    checked: NotRequired[bool]
    """Present if the arm was checked in this turn, which took longer."""


class SampleRow(Turn):
    """A turn, with its block and launch."""

    block: str
    attempt: str
    launch: int
    process_throughput_ns: NotRequired[list[int]]
    """With several processes, the time of each, by rank; `throughput_ns` is the longest."""


class BlockFields(TypedDict):
    """The fields that identify a block in every row about it."""

    block: str
    """The block's name: see bench.records.cells."""
    attempt: str
    """Id of the worker that measured it, which joins samples, cells and blocks."""
    launch: int
    workload: str
    size: str
    mesh: str
    devices: int
    processes: int
    batch: int
    precision: str
    options: str
    """The precision and all other options of the step: `fp32,microbatches=4,remat,clip=1`."""


def block_fields(block: Block, attempt: str, launch: int) -> BlockFields:
    """Return the fields of one measurement of a block."""
    return BlockFields(
        block=block.name,
        attempt=attempt,
        launch=launch,
        devices=block.mesh.size,
        processes=block.options.processes,
        precision=block.options.precision,
        **block.fields,
    )


class CompileTimes(TypedDict):
    """Time spent in the first call of the timed step before it ran, from jax.monitoring events."""

    trace_s: float
    lower_s: float
    compile_s: float
    cache_hits: int
    """Programs taken from the persistent compilation cache instead of compiled."""


class SavedCheckpoint(TypedDict):
    """Saving a state in one mode, with one element per repetition."""

    blocking_s: list[float]
    """Seconds until training may continue."""
    total_s: list[float]
    """Seconds until the checkpoint is complete."""
    steps_before_ns: list[int]
    """For an asynchronous save, steps just before it, with a wait after each; otherwise none."""
    steps_during_ns: list[int]
    """Steps that began during a save."""


class RestoredCheckpoint(TypedDict):
    """Restoring the last saved state, with equal values, onto one mesh."""

    mesh: str
    """`data=4`; with `, devices reversed` if the order of devices differs from the saved one."""
    seconds: list[float]
    """Seconds of each repetition. If possible, files are dropped from the page cache first."""


class Checkpoint(TypedDict):
    """A cell's state, saved and restored with Orbax by bench.worker.phases.checkpoints."""

    reason: str
    """Why there are no figures; empty if there are, and the restored state equals the saved one."""
    state_bytes: int
    """Bytes of all arrays of the state, each counted once."""
    stored_bytes: int
    """Bytes of the compressed files."""
    saves: dict[str, SavedCheckpoint]
    restores: list[RestoredCheckpoint]
    """Restores, the one onto the cell's own mesh first."""


Sources = dict[Literal["implementation", "workload"], dict[str, str]]
"""Hashes of the files of an implementation and of its workload: the file itself by its name, and
modules that it imports from the project or beside it by their path relative to the import root."""


class CellRow(BlockFields, ProgramFigures):
    """The outcome of one cell."""

    cell: str
    implementation: str
    status: Status
    reason: str
    """Why there is no time; empty if and only if the status is `ok`."""
    key: NotRequired[str]
    """Hash of all that determines the cell: see bench.plan.content_keys. Set by the engine."""
    sources: NotRequired[Sources]
    """Hashes of the cell's files. Set by the engine."""
    approximate: NotRequired[str]
    """How the step differs from the problem's, in its file's words; absent if it is exact."""
    proof: NotRequired[list[Check]]
    compile: NotRequired[CompileTimes | None]
    """None if the step was compiled before its first call, as by `jax.jit(f).lower().compile()`."""
    proved_in: NotRequired[str]
    compiled_in: NotRequired[str]
    """Earlier runs that `proof` (in float64) and `compile` come from; absent if it is this run."""
    jax_config: NotRequired[list[str]]
    """Settings of the process that its file has changed, and that were restored; absent if none."""
    threads_s: NotRequired[float]
    """CPU seconds of its file's threads in other arms' turns; absent if they were idle."""
    high_water_bytes: NotRequired[int | None]
    """Measured peak memory of a device, or None: see bench.worker.read.device_memory."""
    model_flops: NotRequired[float]
    """FLOPs of one step over all devices, by the workload's formula."""
    unit: NotRequired[str]
    """The unit that the workload counts: `samples` or `tokens`."""
    units_per_step: NotRequired[int]
    interleaved: NotRequired[bool]
    """False if the cell ran alone: it did not fit beside others, or one may have broken it."""
    bubble: NotRequired[float]
    """Fraction of a step in which a device idles, by a pipeline's schedule."""
    inputs: NotRequired[dict[str, str]]
    """By input way of bench.records.arms, why it has no samples with input; empty if it has."""
    ablations: NotRequired[dict[str, str]]
    """Like `inputs`, by ablation of bench.records.arms."""
    foreign: NotRequired[ForeignArms]
    isolation: NotRequired[Isolation]
    """The second measurement in isolation; absent if the cell is not a suspicious winner."""
    checkpoint: NotRequired[Checkpoint]
    """Checkpoint figures of the first launch."""
    profile: NotRequired[str]
    """TensorBoard run name under profiles/."""


Cells = Mapping[str, CellRow]
"""Rows of a block's cells, by implementation."""


class LossRow(BlockFields):
    """The loss curve of one arm: see bench.worker.phases.training.

    All arms of a block start from the same parameters and take the same batches.
    """

    arm: str
    """Implementation, or a reference of bench.records.arms."""
    losses: list[float]
    """Loss of every step's batch before its update; all finite."""
    reason: str
    """Why there are fewer losses than requested; empty if there are not."""
    tolerance: float
    """Largest relative error of a loss that the gate allows in its few steps."""


class Look(TypedDict):
    """An interim look at the samples, which may end a launch early."""

    rounds: int
    """Rounds of the block in all its launches so far."""
    alpha: float
    """Probability that any verdict of the block at this look is wrong."""
    spent: float
    """Probability that any verdict of the block is wrong at this look or one before."""
    settled: NotRequired[list[str]]
    """Settled arms, which leave the rounds."""
    decided: NotRequired[list[str]]
    """Arms with a verdict; absent in early runs."""


class EnergyMeter(TypedDict):
    """The counter of energy: see bench.worker.time.energy_counters."""

    counted: list[str]
    """Kinds of the boards or packages in use: `CPU package`, or a GPU's name."""
    period_s: float
    """Longest observed time between two updates of a counter."""
    reason: str
    """Why the energy is unknown; empty if it is known."""


class Ceilings(TypedDict):
    """The machine's best rates, on all devices at once: see bench.worker.time.ceilings."""

    matmul_flops: float
    """FLOP/s of a device in matrix products, at the block's precision."""
    memory_bytes: float
    """Bytes per second that a device reads and writes."""
    all_reduce_bytes: float | None
    """Bytes per second that a device sends in ring all-reduces over the mesh, if it has several."""
    all_reduce_s: float | None
    """Seconds of an all-reduce of one number; None on one device."""


class BlockRow(BlockFields):
    """One worker process's measurement of one block."""

    baseline: str
    """Implementation that ratios are taken against and that the twin copies; empty if none ran."""
    rounds: int
    looks: list[Look]
    """Looks during this launch and at its end. Set by the engine."""
    steps: int
    """Steps of a throughput span, shared by all arms; 0 if nothing was timed."""
    started_at: str
    """UTC, ISO 8601."""
    seconds: dict[str, float]
    """Wall seconds by phase of messages.Phase; `process`: the start and end of the worker."""
    ceilings: Ceilings | None
    """The machine's ceilings; None in later launches, and if measuring them failed."""
    energy: NotRequired[EnergyMeter]
    """The energy counter; absent if nothing was timed."""
    ended: NotRequired[str]
    """Why the worker ended before its phases after the rounds were done; absent if it did not."""
    optimizer_bytes: NotRequired[int]
    """Bytes of the optimizer's state, each array counted once."""


class Devices(TypedDict):
    """The devices of a run, and the versions of packages."""

    platform: str
    """`cpu`, `gpu` or `tpu`."""
    device_kind: str
    device_count: int
    """Number of accelerators; 1 on CPU, whose virtual devices are created as needed."""
    device_memory_bytes: int | None
    versions: dict[str, str]
    """python, jax, jaxlib, flax, optax, numpy."""
    processes: int
    """Number of processes that a launcher has started; 1 if the run starts its own."""


class Manifest(Devices):
    """The description of a run, written once, when it starts."""

    schema: int
    run: str
    started_at: str
    argv: list[str]
    preset: str
    config: dict[str, Any]
    """The resolved options: workloads, implementations, meshes, batches, precisions, scaling ..."""
    host: dict[str, Any]
    """os, cpu, physical_cores, memory_bytes, load (1 minute) of rank 0; usable_cores of all."""
    environment: dict[str, str]
    """Variables that change how XLA runs, where set: XLA_FLAGS, JAX_*, NPROC ..."""
    git: dict[str, Any]
    """commit (str or None) and dirty (bool)."""


def is_race(manifest: Manifest) -> bool:
    """Return whether a run is a race of functions: a call of lockstep.compare."""
    return "functions" in manifest["config"]


def is_resumable(manifest: Manifest) -> bool:
    """Return whether `--resume` can continue a run: neither a race nor a gate."""
    return not is_race(manifest) and "regress" not in manifest["config"]
