"""The rows that a run stores: the one interface between measuring and reporting.

bench.records.store says which file holds them. Times carry their unit in their name; `_ns` are
integers (means of them floats), `_s` floats, `_bytes` integers.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from bench.records.cells import Block
from bench.records.statuses import Status

SCHEMA = 6
Category = Literal["matmul", "elementwise", "layout", "collective", "control", "unknown"]
"""What an operation is for: `layout` only arranges data, `control` runs other operations, and
`unknown` is of a program that could not be found."""


class HostSlot(TypedDict):
    """The host during one turn.

    Seconds are of CPU time over all cores, in the kernel's ticks (commonly 10 ms), so they are to
    be summed over turns before they are read.
    """

    cores_s: float
    """What there was: wall time times the system's cores."""
    steal_s: float
    """Taken by the hypervisor for other guests."""
    own_s: float
    """Used by the processes that measure."""
    foreign_s: float
    """Used by others; below 0 by up to a tick where the kernel has not booked ours yet."""
    mhz: float | None
    """Mean frequency of the cores when the turn ended; None where it is not shown."""


class Energy(TypedDict):
    """What the devices used from just before a turn until just after it."""

    joules: float
    """Of all boards or packages in use, each as a whole."""
    seconds: float


class InputWait(TypedDict):
    """How long an arm that takes its input in every step waited for it in one turn.

    Waiting begins when the host asks for the next batch, and ends when the step can be launched.
    Devices may be busy with earlier steps meanwhile.
    """

    wait_ns: int
    """In the throughput span, over all of its steps."""
    starved_ns: int
    """Of that, at steps whose batch came when the devices were done with the step before: for at
    most so long they had nothing to do for want of input."""
    latency_wait_ns: int
    """In the latency span, where the devices are done whenever a batch is asked for."""


class Turn(TypedDict):
    """One arm's turn in one round."""

    arm: str
    """Implementation name, TWIN, or an implementation's arm that takes its input: see
    bench.records.arms."""
    round: int
    position: int
    """Place in its round's order, from 0."""
    predecessor: str
    """Arm that ran just before; empty for the first turn of the process."""
    at: float
    """When the turn began: seconds since 1970, UTC."""
    steps: int
    """Steps of the throughput span; the same for every arm of the block."""
    throughput_ns: int
    """Time of `steps` steps, waiting for the devices once, after the last."""
    latency_steps: int
    """Steps of the latency span; the same for every arm of the block."""
    latency_ns: int
    """Time of `latency_steps` steps, waiting for the devices after every one."""
    wash_out_ns: int
    """Time of the one discarded step before the spans."""
    host: HostSlot | None
    """What the host did meanwhile; None where the system does not tell."""
    energy: NotRequired[Energy]
    """Absent where no counter tells."""
    input: NotRequired[InputWait]
    """Of an arm that takes its input in every step."""


class SampleRow(Turn):
    """A turn, with its block and launch."""

    block: str
    attempt: str
    launch: int
    process_throughput_ns: NotRequired[list[int]]
    """Of several processes, the time that each took, by rank; `throughput_ns` is the longest."""
    process_latency_ns: NotRequired[list[int]]


class BlockFields(TypedDict):
    """What all rows about a block say of it."""

    block: str
    """Its name, as in bench.records.cells."""
    attempt: str
    """Identifies the worker process that measured; joins samples, cells and blocks."""
    launch: int
    workload: str
    size: str
    mesh: str
    devices: int
    processes: int
    batch: int
    precision: str
    options: str
    """The precision, and what else is asked of the step: `fp32,microbatches=4,remat,clip=1`."""


def block_fields(block: Block, attempt: str, launch: int) -> BlockFields:
    """The fields of one measurement of a block."""
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
    """What the first call of the timed step spent before it ran, from jax.monitoring events."""

    trace_s: float
    lower_s: float
    compile_s: float
    cache_hits: int
    """Programs taken from the persistent compilation cache instead of compiled."""


class MemoryBytes(TypedDict):
    """Memory of one device, as the compiler plans it for the step's largest program."""

    total_bytes: int
    """arguments + outputs + temporaries - aliased."""
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    alias_bytes: int
    """Outputs that reuse donated arguments."""


class Communication(TypedDict):
    """What a step's programs communicate in one way, as compiled."""

    kind: str
    """all-reduce, all-gather, reduce-scatter, all-to-all or collective-permute."""
    axes: list[str]
    """Of the mesh, along which it goes; empty if its groups are of another form."""
    members: int
    """Devices that communicate with one another."""
    dtypes: list[str]
    """As HLO names them: f32, bf16."""
    count: int
    """Collectives a step, loops included."""
    times: NotRequired[int]
    """How often the one runs that runs most often: in loops, as over microbatches; 1 in none."""
    payload_bytes: int
    """Of all of them, on one device: what goes in, and what comes out of an all-gather."""
    wire_bytes: float
    """What a device sends for them with a ring algorithm."""
    returned: NotRequired[bool]
    """True of all-gathers of what the step returns, which computes nothing with it: parameters that
    ZeRO-1 has updated in parts."""


class CompilersCost(TypedDict):
    """XLA's own count of a step over all devices. The body of a loop counts once."""

    flops: float
    accessed_bytes: float


class ProofCheck(TypedDict):
    """One trajectory of the gate, compared with the right one."""

    name: str
    """`fp64 sgd`, `fp64 optimizer` or `as timed`: see bench/worker/prove/gate.py."""
    loss_error: float
    """Largest relative difference of a step's loss."""
    loss_tolerance: float
    update_error: float
    """Worst parameter's difference of updates, relative to the size of the whole update."""
    update_tolerance: float


class SavedCheckpoint(TypedDict):
    """Saving a state in one mode of bench.records.arms, an element a repetition."""

    blocking_s: list[float]
    """Until training may go on."""
    total_s: list[float]
    """Until the checkpoint is complete."""
    steps_before_ns: list[int]
    """Of an asynchronous save, steps just before all of them, each waited for; else none."""
    steps_during_ns: list[int]
    """Steps that began while one went on."""


class RestoredCheckpoint(TypedDict):
    """Restoring the state that was saved last, with equal values, onto one mesh."""

    mesh: str
    """`data=4`; with `, devices reversed` where these are in another order than they were saved."""
    seconds: list[float]
    """Of each repetition. The files are dropped from the system's cache before, where it allows."""
    device_bytes: int
    """The most that a device holds of the state afterwards."""
    largest_bytes: int
    """A device's shard of the array of which it is the largest."""
    seen_bytes: int
    """The most that a device was seen to hold of one array meanwhile; never more than that."""


class Checkpoint(TypedDict):
    """A cell's state, saved and restored with Orbax by bench.worker.phases.checkpoints."""

    reason: str
    """Why there are no figures; empty if there are, and what was restored equals what was saved."""
    file_system: str
    """Kind of the one that the files lay on; empty where unknown."""
    state_bytes: int
    """Of all arrays of the state, each once."""
    stored_bytes: int
    """Of the files: compressed."""
    saves: dict[str, SavedCheckpoint]
    """By mode."""
    restores: list[RestoredCheckpoint]
    """On the cell's own mesh first."""


Sources = dict[Literal["implementation", "workload"], dict[str, str]]
"""Hash of each file of an implementation and of its workload: their own, by its name, and what they
import of the project or of their own, by its path from where it is imported."""


class CellRow(BlockFields):
    """How one cell ended."""

    cell: str
    implementation: str
    status: Status
    reason: str
    """Why there is no time; empty if and only if the status is `ok`."""
    key: NotRequired[str]
    """Hash of all that the cell was made of: see bench.plan.content_keys. Filled in by the engine."""
    sources: NotRequired[Sources]
    """Hashes of the files among that. Filled in by the engine."""
    proof: NotRequired[list[ProofCheck]]
    compile: NotRequired[CompileTimes]
    memory: NotRequired[MemoryBytes | None]
    """None where the backend gives no figures."""
    high_water_bytes: NotRequired[int | None]
    """The most that a device was seen to hold for the cell while it ran: see bench.worker.read.program_memory.
    None where the backend does not count."""
    communication: NotRequired[list[Communication] | None]
    """None where the programs could not be read."""
    cost: NotRequired[CompilersCost | None]
    model_flops: NotRequired[float]
    """FLOPs of one step over all devices, by the workload's formula."""
    traced_flops: NotRequired[float | None]
    """FLOPs of the matrix products and convolutions in the step's jaxpr, over all devices. None
    where it cannot be traced as a whole."""
    product_flops: NotRequired[float]
    """As `traced_flops`, but of the compiled programs: what devices compute twice is in it, small
    products may not be."""
    unit: NotRequired[str]
    """What the workload counts: `samples` or `tokens`."""
    units_per_step: NotRequired[int]
    interleaved: NotRequired[bool]
    """False where the cell had to run in a worker of its own (it did not fit beside the others)."""
    bubble: NotRequired[float]
    """Share of a step in which a device has nothing to do, as a pipeline's schedule has it."""
    inputs: NotRequired[dict[str, str]]
    """Why there are no samples of it with input in a way of bench.records.arms; empty where there are."""
    checkpoint: NotRequired[Checkpoint]
    """Of the first launch."""
    profile: NotRequired[str]
    """TensorBoard run name under profiles/."""


class StepParts(TypedDict):
    """Where one traced step's time went on one device; the parts but `overlap_ns` add up to it."""

    step: int
    device: int
    """Place in the mesh, in the order of `mesh.devices.flat`."""
    total_ns: int
    dispatch_ns: int
    """The device had nothing to do until the host launched its next program."""
    compute_ns: int
    wait_ns: int
    """In a collective that not all of its group had arrived at."""
    move_ns: int
    """In a collective, after that."""
    idle_ns: int
    overlap_ns: int
    """Of `compute_ns`, while a collective went on as well."""


class OpTime(TypedDict):
    """An operation's part of a traced step: means over devices and over the steps looked at."""

    module: str
    op: str
    """Its HLO instruction."""
    opcode: str
    category: Category
    phase: str
    """`forward`, `backward`, `recomputed`, `update` (by optax) or `other`."""
    source: str
    """Innermost source line that it is from; empty if unknown."""
    shapes: list[str]
    """Of what it makes: `f32[256,1024]`."""
    transposes: bool
    """Whether it moves elements to another layout, alone or beside computing."""
    count: float
    """Runs a step and device."""
    compute_ns: float
    """Of a control operation: idle time while it ran."""
    wait_ns: float
    move_ns: float


class TraceRow(BlockFields):
    """What the trace of one cell showed."""

    cell: str
    implementation: str
    profile: str
    """TensorBoard run name under profiles/."""
    host: str
    """What TensorBoard calls the process that was traced."""
    steps: list[StepParts]
    """Of every traced step and device."""
    counted: list[int]
    """Steps whose means `ops` are: the middle half by length."""
    ops: list[OpTime]
    untraced_ns: list[int]
    """Lengths of as many steps without a profiler, waited for as well, taken just before the traced
    ones of every pass."""
    cores: int | None
    """Cores that the process might use, where its devices are made of them; else None."""


class LossRow(BlockFields):
    """The loss curve of one arm: see bench.worker.phases.training.

    All arms of a block start from the same parameters and take the same batches.
    """

    arm: str
    """Implementation name, WHOLE_BATCH, IN_PARTS or EXACT."""
    losses: list[float]
    """Of every step's batch, before its update; all finite."""
    reason: str
    """Why there are fewer than were asked for; empty if there are not."""
    tolerance: float
    """Largest relative difference from the right loss that the gate allows its few steps."""


class Look(TypedDict):
    """A look at the samples to see whether they are enough, and what it may be wrong by."""

    rounds: int
    """Rounds of the block, all its launches so far together."""
    alpha: float
    """Probability that any verdict of the block at this look is wrong: see bench.analyse.verdicts."""


class EnergyMeter(TypedDict):
    """What counted energy: see bench.worker.time.energy_counters."""

    counted: list[str]
    """Kinds of the boards or packages in use: `CPU package`, or a GPU's name."""
    period_s: float
    """Longest time seen between two moves of a counter."""
    reason: str
    """Why the energy is unknown; empty if it is not."""


class Ceilings(TypedDict):
    """What the machine can do at best, measured on all devices at once by bench.worker.time.ceilings."""

    matmul_flops: float
    """FLOP/s of a device in products of matrices, in the block's precision."""
    memory_bytes: float
    """Bytes a second that a device reads and writes."""
    all_reduce_bytes: float | None
    """Bytes a second that a device sends in all-reduces over the mesh, with a ring algorithm; None
    on one device."""
    all_reduce_s: float | None
    """Seconds of an all-reduce of one number; None on one device."""


class BlockRow(BlockFields):
    """One worker process's measurement of one block."""

    baseline: str
    """Implementation that ratios are taken against and that the twin copies; empty if none ran."""
    rounds: int
    """Rounds that were measured."""
    looks: list[Look]
    """Where the block was looked at during this launch and at its end. Filled in by the engine."""
    steps: int
    """Steps of a throughput span, shared by all arms; 0 if nothing was timed."""
    started_at: str
    """UTC, ISO 8601."""
    seconds: dict[str, float]
    """Wall seconds by phase: `start`, `ceilings`, `gate`, `compile`, `measure`, `trace`,
    `checkpoint`, `train`."""
    ceilings: Ceilings | None
    """None in later launches, and where measuring them failed."""
    energy: NotRequired[EnergyMeter]
    """Absent where nothing was timed."""
    load_before: float
    """1-minute load average of the host when the worker started."""
    load_after: float


class Manifest(TypedDict):
    """`manifest.json`: written once, when the run starts."""

    schema: int
    run: str
    started_at: str
    argv: list[str]
    preset: str
    config: dict[str, Any]
    """The resolved options: workloads, implementations, meshes, batches, precisions, scaling ..."""
    platform: str
    """`cpu`, `gpu` or `tpu`."""
    device_kind: str
    device_count: int
    device_memory_bytes: int | None
    host: dict[str, Any]
    """os, cpu, physical_cores, memory_bytes and load (1 minute) of rank 0's host; usable_cores of
    all hosts."""
    versions: dict[str, str]
    """python, jax, jaxlib, flax, optax, numpy."""
    environment: dict[str, str]
    """Variables that change how XLA runs, where set: XLA_FLAGS, JAX_*, NPROC ..."""
    git: dict[str, Any]
    """commit (str or None) and dirty (bool)."""
