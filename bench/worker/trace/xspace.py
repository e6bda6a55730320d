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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

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
        steps, on_host = _of_threads([line for host in hosts for line in host.lines], step)
    events = sorted(events or on_host, key=lambda event: event.start)
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
    """Times of one host thread."""

    regions: list[int] = field(default_factory=list)
    """When the thread began a task of its pool."""
    others: list[int] = field(default_factory=list)
    """When the thread began an operation, or a continuation of one."""

    def finished(self, noted: int, since: int) -> int:
        """Return the end of an operation whose completion the thread recorded at `noted`.

        Continuations of the operation may run in the same task before that record.
        """
        task = self.regions[bisect_right(self.regions, noted) - 1 :][:1]
        earliest = max([since, *(start for start in task if start <= noted)])
        return min([noted, *self.others[bisect_left(self.others, earliest) :][:1]])


def _of_threads(lines: Iterable[Any], step: str) -> tuple[list[tuple[int, int]], list[Event]]:
    """Return the steps that a host's threads annotate, and the operations of XLA:CPU.

    An operation's event covers the thread that started it. Work handed to other threads, such as
    parts of a matrix product, is done when the last of them records `end: <operation>`.
    """
    steps: list[tuple[int, int]] = []
    begun: list[tuple[_Thread, int, Event]] = []
    notes: defaultdict[int, list[tuple[_Thread, int]]] = defaultdict(list)
    for line in lines:
        thread = _Thread()
        for event in line.events:
            name, start = event.name, int(event.start_ns)
            if name == _REGION:
                thread.regions.append(start)
            elif name == _EXECUTE:
                thread.others.append(start)
            elif name.startswith(_END):
                notes[int(dict(event.stats).get("_c", -1))].append((thread, start))
            elif "::" not in name and "hlo_op" in (stats := dict(event.stats)):
                device = int(stats.get("device_ordinal", 0))
                own = _event(event, stats, device, str(stats["hlo_op"]))
                begun.append((thread, int(stats.get("_p", 0)), own))
                thread.others.append(start)
            elif name == step and "step_num" in dict(event.stats):  # not a file's own annotation
                steps.append((start, int(event.end_ns)))
        thread.regions.sort()
        thread.others.sort()
    events = []
    for thread, number, event in begun:
        ends = [
            other.finished(noted, event.end if other is thread else 0)
            for other, noted in notes.get(number, [])
        ]
        events.append(replace(event, end=max([event.end, *ends])))
    return sorted(steps), events
