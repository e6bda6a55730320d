"""The messages between the supervisor and its worker processes.

A worker (`python -m bench.worker`) reads one Job as a line of JSON from stdin, writes events as
lines of JSON to the file descriptor it was started with as stdout, and exits with 0. After a
LookEvent it waits for a line on stdin: MORE rounds, or ENOUGH. Output of implementations goes to
stderr. `python -m bench.worker.answer.available` reads a CatalogueRequest, writes the path of each
file before it imports it, and then one Catalogue, each as a line of JSON.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from bench.records.cells import BlockText, Cell
from bench.records.rows import BlockRow, CellRow, Communication, LossRow, SampleRow
from bench.records.statuses import Status
from bench.records.trace_rows import TraceRow

MORE = "more"
ENOUGH = "enough"


class BaseFile(TypedDict):
    """Where an arm comes from that is another revision of an implementation."""

    path: str
    """The file, in the worktree."""
    worktree: str
    """Checkout of the other revision: the file's own helper modules come from here."""
    repository: str
    """The checkout whose modules these take the place of."""


class Place(TypedDict):
    """Which of a launch's processes a worker is."""

    rank: int
    processes: int
    coordinator: str
    """`host:port` where the process of rank 0 serves the others: see jax.distributed.initialize."""
    local_devices: NotRequired[list[int]]
    """The accelerators of its host that are its own; all of them if absent."""


class Meeting(TypedDict):
    """What `python -m bench.worker.answer.rendezvous` finds out."""

    rank: int
    processes: int
    address: str
    """Of the host of rank 0."""
    port: int
    """Where its front listens."""
    token: str
    """What the processes have in common, and nobody else has."""


class WorkerSettings(TypedDict):
    """What every worker of a run is told alike: planned once, and part of every Job."""

    rounds: int
    """The most rounds of a launch."""
    seconds: float
    """Wall time that `rounds` rounds should take; sets the steps of a span, never the rounds."""
    inputs: list[str]
    """Ways of bench.records.arms in which each implementation is also given its input."""
    phases: dict[str, dict[str, Any]]
    """Settings of the phases after the rounds, by their names in PHASES_AFTER_ROUNDS."""
    implementation_paths: list[str]
    """Files outside implementations/; their names are their file names without `.py`."""
    workload_paths: list[str]
    base_files: dict[str, BaseFile]
    """Files of arms that are another revision of an implementation, by name."""


PHASES_AFTER_ROUNDS = ("trace", "checkpoint", "train")
"""In their order. They begin when the samples have been sent, so that they cannot cost them."""


class Job(WorkerSettings, BlockText):
    """One block to prove and measure in one worker process."""

    attempt: str
    launch: int
    implementations: list[str]
    baseline: str
    """Arm that ratios are taken against; if it ends other than ok, the worker takes the first
    implementation that is ok instead."""
    proved: list[str]
    """Implementations whose float64 proof an earlier launch of this run has stored."""
    looks: list[int]
    """Rounds after which to send a LookEvent; all below `rounds`."""
    place: NotRequired[Place]
    """Absent where one process has the whole mesh."""
    ceilings: bool
    """Whether to measure what the machine can do."""
    seed: int
    """Of the order of arms. The workload's parameters and data never depend on it."""
    alone: bool
    """True where the cell did not fit beside the others: one implementation and no twin."""
    program_cache: NotRequired[str]
    """Folder of compiled programs that the launches of a run share; one of its own if absent."""


Phase = Literal[
    "start", "ceilings", "truth", "gate", "compile", "measure", "trace", "checkpoint", "train"
]


class PhaseEvent(TypedDict):
    """The worker begins a phase; a crash or deadline after it is blamed on `arm`."""

    event: Literal["phase"]
    phase: Phase
    arm: str
    """Implementation, or empty where the phase is about the whole block."""
    done: int
    of: int
    """Progress within the phase: arms, rounds in `measure`, or steps in `train`."""


class CellEvent(TypedDict):
    """A cell has ended, and how."""

    event: Literal["cell"]
    row: CellRow


class LookEvent(TypedDict):
    """The samples of the launch so far: are these rounds enough?"""

    event: Literal["look"]
    rows: list[SampleRow]


class TellEvent(TypedDict):
    """A process has something to tell the others of its launch.

    Once all have, each gets a line with the list of their values, by rank.
    """

    event: Literal["tell"]
    value: Any


class SamplesEvent(TypedDict):
    """All samples of the block; sent once, after the last round."""

    event: Literal["samples"]
    rows: list[SampleRow]


class TraceEvent(TypedDict):
    """What a cell's trace showed."""

    event: Literal["trace"]
    row: TraceRow


class LossEvent(TypedDict):
    """An arm's loss curve, or a reference's."""

    event: Literal["losses"]
    row: LossRow


class BlockEvent(TypedDict):
    """The block is measured. Sent again once it has been traced, with its cells, and trained.

    The supervisor adds the host's load.
    """

    event: Literal["block"]
    row: BlockRow


Event = PhaseEvent | CellEvent | LookEvent | SamplesEvent | TraceEvent | LossEvent | BlockEvent


class CellRequest(BlockText):
    """One cell that a process of its own is asked about."""

    implementation: str
    implementation_paths: list[str]
    workload_paths: list[str]


class CompileRequest(CellRequest):
    """One cell whose step is to be compiled."""

    elsewhere: bool
    """Whether what is read is to stand for other devices than those that it is compiled for."""


def cell_request(cell: Cell, catalogue: Catalogue) -> CellRequest:
    """The request for a cell of a catalogue."""
    return CellRequest(
        **cell.block.fields,
        implementation=cell.implementation,
        implementation_paths=catalogue.get("implementation_paths", []),
        workload_paths=catalogue.get("workload_paths", []),
    )


class ArrayPart(TypedDict):
    """Which devices hold one part of an array."""

    index: list[list[int]]
    """First and last but one of each dimension."""
    devices: list[int]


class ArrayLayout(TypedDict):
    """Where a parameter lies."""

    path: str
    shape: list[int]
    dtype: str
    bytes: int
    """Of the whole array, once."""
    device_bytes: int
    """Most that a device holds of it."""
    parts: list[ArrayPart]


class Inspection(TypedDict):
    """Where a cell's arrays lie."""

    axes: list[list[str | int]]
    """Names and sizes of the mesh's axes, outermost first."""
    devices: list[list[int]]
    """Ids of the mesh's devices; the last axis goes across."""
    unsupported: str
    """Why there is nothing else; empty if there is."""
    parameters: list[ArrayLayout]
    device_bytes: dict[str, dict[str, int]]
    """Of `parameters`, the whole `state` and a `batch`: bytes by device id."""


class Fit(TypedDict):
    """Whether some steps of a cell ran."""

    status: Status
    reason: str
    """Empty if they did."""
    peak_bytes: int | None
    """The most that a device held; None where the backend does not count."""


class CompiledRow(TypedDict):
    """What one device does in a step that was compiled, and not run."""

    flops: float
    """Of matrix products and convolutions, with every iteration of a loop counted."""
    accessed_bytes: float
    """XLA's count, of the body of a loop once."""
    memory_bytes: int
    state_bytes: int
    communication: list[Communication]
    model_flops: float
    """Of the whole step."""
    units: int
    unit: str
    bubble: float


Lack = Literal["", "unsupported", "unreadable", "oom", "failed"]
"""Why a step's program is not there: it is; its implementation says that it cannot run this; it
cannot be had without running it; its compiler says that there is too little memory for it, as XLA's
for TPU does; or something failed. The last two may go well another time."""


class CompiledAnswer(TypedDict):
    """To one CellRequest that `python -m bench.worker.answer.compile_only` was sent."""

    row: CompiledRow | None
    reason: str
    """Why there is no row; empty if there is."""
    lack: Lack
    """What kind of reason it is."""


class CatalogueRequest(TypedDict):
    """Paths from the command line, to be listed beside the built-in ones."""

    implementation_paths: list[str]
    workload_paths: list[str]
    fatal: dict[str, str]
    """Files that are not to be imported, and why: they ended a process that was asked before."""


class ImplementationEntry(TypedDict):
    """One implementation file."""

    name: str
    path: str
    summary: str
    """First line of the docstring."""
    error: str
    """Why it cannot be imported; empty if it can."""


class WorkloadEntry(TypedDict):
    """One workload file."""

    name: str
    path: str
    summary: str
    sizes: list[str]
    """From the smallest, which is the one for tests."""
    default: str
    error: str


class Catalogue(TypedDict):
    """What there is to run, and on what."""

    platform: str
    device_kind: str
    device_count: int
    """Devices of an accelerator. Without one, 1: CPU devices are virtual and made to measure."""
    device_memory_bytes: int | None
    usable_cores: int
    processes: int
    """Processes that the run has been given; 1 where it starts as many as it is asked for."""
    versions: dict[str, str]
    optional: dict[str, str]
    """Versions of those packages of bench.records.optional_packages that are there."""
    implementations: list[ImplementationEntry]
    workloads: list[WorkloadEntry]
    implementation_paths: NotRequired[list[str]]
    """Absolute paths of implementation files outside implementations/; none if absent."""
    workload_paths: NotRequired[list[str]]
    """Absolute paths of workload files outside bench/contract/workloads/; none if absent."""
