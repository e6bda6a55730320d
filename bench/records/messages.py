"""The messages between the supervisor and its worker processes.

Each message is a line of JSON. A worker (`python -m bench.worker`) reads one Job from stdin, writes
events with the job's `attempt` to its original stdout, and exits with 0. After a LookEvent it waits
for a line on stdin: the list of the arms that need more rounds. Output of implementations goes to
stderr. `python -m bench.worker.answer.available` reads a CatalogueRequest, writes the path of each
file before it imports it, and ends with one Catalogue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

from bench.records.cells import BlockText, Cell
from bench.records.rows import BlockRow, CellRow, Devices, LossRow, SampleRow
from bench.records.statuses import Status
from bench.records.step_programs import Communication, ProgramFigures
from bench.records.trace_rows import TraceRow

GATE = ".gate"
"""Folder of the gate's programs in a Job's program_cache, beside one for each implementation."""

JAX_CHILD = "bench.worker.foreign.jax_child"
"""The module that runs a JAX implementation in a process of its own."""

PACKAGES = {"input": "grain", "checkpoint": "orbax-checkpoint"}
"""Optional packages by the option that needs each, which is also the name of the extra."""

UNFINISHED = "the step returns before its work is done"
"""Beginning of the reason if work goes on after a step: another file's thread may be at work."""

FIRST_LOOK = 16


def is_look(rounds: int) -> bool:
    """Whether there is a look at the samples after this many rounds of a launch: 16, 32, 64 ..."""
    return rounds % FIRST_LOOK == 0 and (rounds // FIRST_LOOK).bit_count() == 1


class BaseFile(TypedDict):
    """The source of an arm that runs another revision of an implementation."""

    path: str
    """The implementation file in the worktree."""
    worktree: str
    """Checkout of the other revision, from which the file imports its helper modules."""
    repository: str
    """The checkout whose modules those of the worktree replace."""


class Place(TypedDict):
    """The place of a worker process among those of its launch."""

    rank: int
    processes: int
    coordinator: str
    """`host:port` for jax.distributed.initialize; the process of rank 0 listens there."""
    local_devices: NotRequired[list[int]]
    """Indices of the host's accelerators that it uses; all if absent."""


class FilePaths(TypedDict):
    """Absolute paths of files outside the usual folders; a file's stem is its name."""

    implementation_paths: list[str]
    workload_paths: list[str]


class WorkerSettings(FilePaths):
    """The settings that all workers of a run share; every Job contains them."""

    rounds: int
    """Rounds of a launch in which every arm takes part. Turns of arms that leave the rounds go to
    the others, which then take more."""
    seconds: float
    """Planned wall time of `rounds` rounds; it sets the steps of a span, never the rounds."""
    inputs: list[str]
    """Input modes of bench.records.arms in which each implementation is measured as well."""
    ablations: list[str]
    """Ablations of bench.records.arms in which each implementation is measured as well."""
    phases: dict[str, dict[str, Any]]
    """Settings of the phases after the rounds, by their names in bench.worker.block."""
    base_files: dict[str, BaseFile]
    """Files of the arms that run another revision, by arm."""
    isolated: list[str]
    """Implementations that run in processes of their own."""


class Job(WorkerSettings, BlockText):
    """One block to prove and measure in one worker process."""

    attempt: str
    launch: int
    implementations: list[str]
    baseline: str
    """Arm that ratios are taken against; if it fails, the first implementation that is ok."""
    proved: dict[str, ProgramFigures]
    """Implementations whose float64 proof an earlier launch has stored, of this run or another,
    with the figures of their programs; these are empty if they are to be read again."""
    place: NotRequired[Place]
    """This process's place; absent if one process has the whole mesh."""
    ceilings: bool
    """Whether to measure the machine's ceilings."""
    seed: int
    """Seed of the order of arms. The workload's parameters and data never depend on it."""
    interleaved: bool
    """Whether arms are compared: there is a twin, and LookEvents ask which arms need more rounds.

    False for a cell that runs without the others, and for winners in processes of their own.
    """
    program_cache: NotRequired[str]
    """Folder of compiled programs, shared by a block's launches; private if absent."""


HOST_LOST = "the connection to its host was lost"
"""In the reason of a cell whose worker was lost with its host; resuming measures it again."""

Phase = Literal["start", "ceilings", "truth", "gate", "compile", "measure"]
"""The phases of every job. Those of `WorkerSettings.phases` follow, after the samples have been
sent, so that a failure there loses none."""

STAGE_OF = {
    **dict.fromkeys(("start", "ceilings", "process"), "start"),
    **dict.fromkeys(("truth", "gate", "compile", "spot checks"), "arms"),
    "measure": "measure",
}
"""The part of a launch to which a phase belongs; all other phases come `after` the rounds."""


def repeated_s(seconds: Mapping[str, float]) -> float:
    """Add up a launch's seconds by phase, without phases that only a first launch has."""
    return sum(seconds[phase] for phase in seconds.keys() & STAGE_OF.keys() - {"ceilings"})


class PhaseEvent(TypedDict):
    """The beginning of a phase; a later crash or timeout is blamed on `arm`."""

    event: Literal["phase"]
    phase: str
    """A Phase, or one of the job's phases after the rounds."""
    arm: str
    """An implementation, or empty if the phase concerns the whole block."""
    done: int
    of: int
    """Progress within the phase: arms, rounds in `measure`, or steps in `train`."""


class RowEvent(TypedDict):
    """A row of a cell, a trace, a loss curve, or the block.

    The block's row is sent after the rounds, and again with its cells after each later phase.
    """

    event: Literal["cell", "trace", "losses", "block"]
    row: CellRow | TraceRow | LossRow | BlockRow


class SamplesEvent(TypedDict):
    """All samples of the block; sent once, after the last round."""

    event: Literal["samples"]
    rows: list[SampleRow]


class LookEvent(TypedDict):
    """The samples of the launch so far; the supervisor answers which arms need more rounds."""

    event: Literal["look"]
    rows: list[SampleRow]
    progress: float
    """Completed share of the launch's planned turns; above 1 beyond the plan."""
    programs: NotRequired[dict[str, str]]
    """Identities of the implementations' programs, if this launch has read them: see
    bench.records.step_programs.identity."""


class TellEvent(TypedDict):
    """One process's value in an all-gather; once all have sent one, each receives all, by rank."""

    event: Literal["tell"]
    value: Any


Event = PhaseEvent | RowEvent | SamplesEvent | LookEvent | TellEvent


def is_event(sent: Any) -> bool:
    """Whether an object is an Event, as far as the supervisor relies on its form."""
    match sent:
        case {"event": "phase", "phase": str(), "arm": str()} | {"event": "tell", "value": _}:
            return True
        case {"event": "cell", "row": {"implementation": str(), "status": str(), "reason": str()}}:
            return True
        case {"event": "trace" | "losses" | "block", "row": {"block": str()}}:
            return True
        case {"event": "samples", "rows": [*rows]} | {
            "event": "look",
            "rows": [*rows],
            "progress": int() | float(),
        }:
            return all(
                isinstance(row, dict) and row.keys() >= SampleRow.__required_keys__ for row in rows
            )
    return False


class CellRequest(BlockText, FilePaths):
    """A request about one cell to a separate process."""

    implementation: str


class CompileRequest(CellRequest):
    """A request to compile the step of one cell."""

    elsewhere: bool
    """Whether the results are meant for other devices than those it is compiled for."""


class ArrayPart(TypedDict):
    """One shard of an array and the devices that hold it."""

    index: list[list[int]]
    """Start and stop in each dimension; the stop is exclusive."""
    devices: list[int]


class ArrayLayout(TypedDict):
    """The sharding of a parameter."""

    path: str
    shape: list[int]
    dtype: str
    bytes: int
    """Size of the whole array, counted once."""
    device_bytes: int
    """Maximum over the devices of the bytes that one holds."""
    parts: list[ArrayPart]


class Inspection(TypedDict):
    """The sharding of a cell's arrays."""

    axes: list[list[str | int]]
    """Names and sizes of the mesh's axes, outermost first."""
    devices: list[list[int]]
    """Ids of the mesh's devices; the last axis varies within a row."""
    unsupported: str
    """Why the implementation cannot run the cell, so that all else is empty; empty if it can."""
    parameters: list[ArrayLayout]
    device_bytes: dict[str, dict[str, int]]
    """Bytes by device id, for `parameters`, the whole `state` and a `batch`."""


class Fit(TypedDict):
    """The result of running a few steps of a cell."""

    status: Status
    reason: str
    """Empty if the status is ok."""
    peak_bytes: int | None
    """Peak memory of a device; None where the backend does not report it."""


@dataclass(frozen=True, kw_only=True)
class CompiledFigures:
    """The work of one device in a step that was compiled but not run."""

    flops: float
    """FLOPs of matrix products and convolutions, with every iteration of a loop counted."""
    memory_bytes: float
    """Arguments, outputs and temporaries, less donated buffers."""
    state_bytes: float
    """Bytes of parameters and optimizer state."""
    communication: Sequence[Communication]
    """Collectives of one step."""
    model_flops: float
    """FLOPs of the whole step on all devices, by the workload's formula."""
    units: float
    """Samples or tokens per step."""
    unit: str


Lack = Literal["", "unsupported", "unreadable", "oom", "failed"]
"""Why a step has no compiled program. Empty: it has one. `unsupported`: the implementation cannot
run the cell. `unreadable`: the program is known only after running it. `oom`: the compiler, such as
XLA's for TPU, found too little memory. `failed`: all else. A retry may help with the last two."""


class CompiledAnswer(TypedDict):
    """The answer of `python -m bench.worker.answer.compile_only` to one CellRequest."""

    row: dict[str, Any] | None
    """CompiledFigures, by name."""
    reason: str
    """Why there is no row; empty if there is one."""
    lack: Lack


class CatalogueRequest(FilePaths):
    """Files from the command line to list in addition to the built-in ones."""

    fatal: dict[str, str]
    """Files not to import, with the reason: importing them ended an earlier process."""


class FileEntry(TypedDict):
    """A file of an implementation or a workload."""

    name: str
    path: str
    error: str
    """Why the file cannot be imported; empty if it can."""


class ImplementationEntry(FileEntry):
    """An implementation file."""

    foreign: NotRequired[dict[str, str]]
    """For a step in its own processes: versions of the packages that its file names, empty if not
    installed; and `isolated`, if an option gives the step its processes."""
    approximate: NotRequired[str]
    """How the step differs from the problem's; absent if it is exact."""


class WorkloadEntry(FileEntry):
    """A workload file."""

    sizes: list[str]
    """Names of sizes; the smallest, which tests use, comes first."""
    default: str
    scans: NotRequired[bool]
    """Whether its layers can be stacked for a loop."""


class SupportRequest(FilePaths):
    """The cells of a plan: every implementation in every block."""

    blocks: list[BlockText]
    implementations: list[str]


class SupportAnswer(TypedDict):
    """The answer of `python -m bench.worker.answer.cell_requests support`."""

    unsupported: dict[str, dict[str, str]]
    """Known reasons, by block and implementation, why it cannot run there; empty if it can."""
    faults: list[str]
    """Workloads that fail to make a problem; implementations with neither None nor a reason."""


class Catalogue(Devices, FilePaths):
    """The devices, versions, implementations and workloads that are available."""

    usable_cores: int
    optional: dict[str, str]
    """Versions of those of PACKAGES that are installed."""
    implementations: list[ImplementationEntry]
    workloads: list[WorkloadEntry]


def cell_request(cell: Cell, catalogue: Catalogue) -> CellRequest:
    """Make the request for a cell of a catalogue."""
    return CellRequest(
        **cell.block.fields,
        implementation=cell.implementation,
        implementation_paths=catalogue["implementation_paths"],
        workload_paths=catalogue["workload_paths"],
    )
