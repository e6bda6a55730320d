"""The steps of a profiler's trace, and the operations of each device.

The reader handles three layouts of planes. On CPU, all operations are on threads of `/host:CPU` and
carry their device and launch. On GPU, every device has a plane with a line per stream, where CUDA
graphs are taken apart into kernels; on TPU, one with the lines `XLA Ops` and `Async XLA Ops`. Steps
are annotations on the host on all platforms. The host waits for each step, so whatever runs during
a step belongs to it.
"""

import re
import warnings
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

from jax.profiler import ProfileData

_DEVICE = re.compile(r"/device:(?:GPU|TPU):(\d+)")
_GRAPH = "cuda_graph_id"
_TPU_LINES = ("XLA Ops", "Async XLA Ops")
_EXECUTE = "ThunkExecutor::Execute"
_REGION = "ThreadpoolListener::StartRegion"
_END = "end: "


@dataclass(frozen=True)
class Event:
    """One run of one operation on one device. Times are nanoseconds on a single host clock."""

    device: int
    """The device's ordinal in the process."""
    module: str
    op: str
    """The instruction's name, or the platform's own name for it."""
    launch: int
    """The launch of the program that it belongs to; 0 if unknown."""
    start: int
    end: int
    """Time at which the result was ready, even if one thread started it and others did the work."""
    program: int = 0
    """Id of the program, which distinguishes programs of one name; 0 if unknown."""
    in_graph: bool = False
    """Whether it is a kernel in a CUDA graph, under the kernel's name."""


@dataclass(frozen=True)
class Recording:
    """A trace."""

    steps: list[tuple[int, int]]
    """Start and end of each annotated step, in order."""
    events: list[Event]
    """Events in order of their start."""
    began: int
    """Time at which the trace's clock was 0: nanoseconds since 1970, UTC; 0 if unknown."""


def read(serialized: bytes, step: str) -> Recording:
    """Read a serialized XSpace, whose steps are named `step`; ValueError if it is none."""
    try:
        data = ProfileData.from_serialized_xspace(serialized)
    except RuntimeError as error:
        raise ValueError(f"this is not a profiler's trace: {error}") from error
    with warnings.catch_warnings():
        # The types of jaxlib's binding lack __module__, which Python 3.12 and later deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        planes = list(data.planes)
        hosts = [plane for plane in planes if plane.name.startswith("/host:CPU")][:1]
        events = [event for plane in planes for event in _of_device(plane)]
        stats = {name: value for plane in planes for name, value in plane.stats}
        threads = [_Thread.of(line, step) for host in hosts for line in host.lines]
    events = sorted(events or _of_threads(threads), key=lambda event: event.start)
    steps = sorted(step for thread in threads for step in thread.steps)
    return Recording(steps, events, int(stats.get("profile_start_time", 0)))


def _of_device(plane: Any) -> Iterator[Event]:
    """Yield the operations on an accelerator's own plane."""
    device = _DEVICE.fullmatch(plane.name)
    if not device:
        return
    lines = {line.name: list(line.events) for line in plane.lines}
    # TPU planes show each run of a program as an event named `jit_step(<fingerprint>)`.
    runs = lines.get("XLA Modules", [])
    for name, events in lines.items():
        if not (name.startswith("Stream") or name in _TPU_LINES):
            continue
        for event in events:
            stats, start = dict(event.stats), int(event.start_ns)
            # Of a kernel in a CUDA graph, `hlo_op` is the graph, which is not an instruction.
            own = None if _GRAPH in stats else stats.get("hlo_op")
            # On TPU, an event is named by its instruction's text.
            op = str(own or re.sub(r"%([\w.-]+) = .*", r"\1", event.name, flags=re.DOTALL))
            run = next((run for run in runs if int(run.start_ns) <= start < int(run.end_ns)), None)
            if run is not None:
                stats.setdefault("hlo_module", run.name.partition("(")[0])
                stats.setdefault("run_id", dict(run.stats).get("run_id", 0))
            yield _event(event, stats, int(device[1]), op)


def _event(event: Any, stats: dict[str, Any], device: int, op: str) -> Event:
    return Event(
        device=device,
        module=str(stats.get("hlo_module", "")),
        op=op,
        launch=int(stats.get("run_id", 0)),
        start=int(event.start_ns),
        end=int(event.end_ns),
        program=int(stats.get("program_id", 0)),
        in_graph=_GRAPH in stats,
    )


@dataclass
class _Thread:
    """The records of one host thread."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    started: list[tuple[int, Event]] = field(default_factory=list)
    """Events that the thread started, each with the number by which its completion is recorded."""
    completed: list[tuple[int, int]] = field(default_factory=list)
    """Numbers of operations whose completion this thread recorded, with its time."""
    regions: list[int] = field(default_factory=list)
    """Times at which the thread began a task of its pool."""
    others: list[int] = field(default_factory=list)
    """Times at which the thread began an operation, or a continuation of one."""

    @classmethod
    def of(cls, line: Any, step: str) -> Self:
        thread = cls()
        for event in line.events:
            name, start = event.name, int(event.start_ns)
            if name == _REGION:
                thread.regions.append(start)
            elif name == _EXECUTE:
                thread.others.append(start)
            elif name.startswith(_END):
                thread.completed.append((int(dict(event.stats).get("_c", -1)), start))
            elif name == step:
                thread.steps.append((start, int(event.end_ns)))
            elif "::" not in name:
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    device = int(stats.get("device_ordinal", 0))
                    started = _event(event, stats, device, str(stats["hlo_op"]))
                    thread.started.append((int(stats.get("_p", 0)), started))
        thread.others += [event.start for _, event in thread.started]
        thread.regions.sort()
        thread.others.sort()
        return thread

    def finished(self, noted: int, since: int) -> int:
        """Return the end of an operation whose completion the thread recorded at `noted`.

        Continuations of the operation may run in the same task before that record.
        """
        task = self.regions[bisect_right(self.regions, noted) - 1 :][:1]
        earliest = max([since, *(start for start in task if start <= noted)])
        return min([noted, *self.others[bisect_left(self.others, earliest) :][:1]])


def _of_threads(threads: list[_Thread]) -> Iterator[Event]:
    """Yield the operations of XLA:CPU.

    An operation's event covers the thread that started it. Work handed to other threads, such as
    parts of a matrix product, is done when the last of them records `end: <operation>`.
    """
    notes: defaultdict[int, list[tuple[_Thread, int]]] = defaultdict(list)
    for thread in threads:
        for number, noted in thread.completed:
            notes[number].append((thread, noted))
    for thread in threads:
        for number, event in thread.started:
            end = event.end
            for other, noted in notes.get(number, []):
                since = event.end if other is thread else 0
                end = max(end, other.finished(noted, since))
            yield replace(event, end=end)
