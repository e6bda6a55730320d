"""Kernels in CUDA graphs, and the instructions that launch them.

XLA puts most of a program into CUDA graphs (command buffers), whose kernels the profiler lists
under their own names. Kernels that XLA generates are named after their instruction, with `_` for
other characters; an instruction may share the kernel of an equal one. Kernels of libraries have
names of their own. They are assumed to start in the program's order, as on a single stream, so that
the nth matrix product of cuBLAS is that of the nth instruction that calls it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.records.collective_kinds import KINDS
from bench.records.trace_rows import Category
from bench.worker.read import hlo
from bench.worker.trace.xspace import Event

_GEMM = r"nvjet|cutlass|xmma|gemm|Cijk_"
_FORWARD, _BACKWARD = r"\$fmhaSoftmax\"", r"\$fmhaSoftmaxBackward\""
_LIBRARY = (
    (re.compile(_GEMM), re.compile(r"__cublas\$")),
    (re.compile("sdpa.*fprop"), re.compile(_FORWARD)),
    (re.compile("sdpa.*bprop"), re.compile(_BACKWARD)),
    (re.compile("compute_dot_do_o"), re.compile(_BACKWARD)),
    (re.compile("convert_dq"), re.compile(_BACKWARD)),
    *(
        (re.compile(f"nccl.*_{kind.title().replace('-', '')}_"), re.compile(rf" {kind}(-start)?\("))
        for kind in KINDS
    ),
)
"""Names of kernels, and the text of the instructions that launch exactly one each."""

_KINDS: tuple[tuple[str, Category], ...] = (
    (rf"{_GEMM}|splitK|sdpa|cudnn::fusion", "matmul"),
    ("nccl", "collective"),
    ("Memset|[Mm]emcpy", "layout"),
)


def kind_of(kernel: str) -> Category:
    """Return the category of a kernel whose instruction is not known, by its name."""
    return next((kind for names, kind in _KINDS if re.search(names, kernel)), "unknown")


class GraphKernels:
    """The instructions of one module by the kernels that they launch."""

    def __init__(self, module: hlo.Module) -> None:
        self._generated: dict[str, str] = {}
        self._called: defaultdict[int, list[str]] = defaultdict(list)
        """Instructions that launch a library's kernels, by place in _LIBRARY, in program order."""
        places: dict[str, list[int]] = {}
        for instruction in module.in_order():
            name = instruction.name
            if name not in places:
                text = instruction.to_string()
                places[name] = [at for at, (_, call) in enumerate(_LIBRARY) if call.search(text)]
                self._generated[re.sub(r"\W", "_", name)] = name
            for place in places[name]:
                self._called[place].append(name)

    def resolved(self, events: Sequence[Event]) -> Iterator[Event]:
        """Name the kernels of a step by their instructions, where these are known.

        The step runs the module once; otherwise, a library's kernels keep their names. Instructions
        that are outside of graphs have their own names in the trace.
        """
        outside = {event.op for event in events if not event.in_graph}
        launched = [self._generated.get(e.op) if e.in_graph else e.op for e in events]
        places = [
            next((at for at, (kernel, _) in enumerate(_LIBRARY) if kernel.search(event.op)), None)
            if op is None
            else None
            for event, op in zip(events, launched, strict=True)
        ]
        counts = Counter(places)
        names: dict[int | None, Iterator[str]] = {}
        for place, called in self._called.items():
            inside = [name for name in called if name not in outside]
            if counts[place] == len(inside):
                names[place] = iter(inside)
        for event, op, at in zip(events, launched, places, strict=True):
            yield replace(event, op=op or next(names.get(at, iter(())), event.op))
