"""Kernels in CUDA graphs, and the instructions that launch them.

XLA puts most of a program into CUDA graphs (command buffers), whose kernels the profiler lists
under their own names. Kernels that XLA generates are called like their instruction, with `_` for
other characters; an instruction may share the kernel of an equal one. Kernels of libraries have
names of their own. One stream runs them in the program's order, so the nth matrix product of
cuBLAS is that of the nth instruction that calls it.
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
        for instruction in module.in_order():
            text = instruction.to_string()
            self._generated[re.sub(r"\W", "_", instruction.name)] = instruction.name
            for number, (_, caller) in enumerate(_LIBRARY):
                if caller.search(text):
                    self._called[number].append(instruction.name)

    def resolved(self, events: Sequence[Event]) -> Iterator[Event]:
        """Name the kernels of one run of the module by their instructions, where these are known.

        Instructions that are outside of graphs have their own names in the trace.
        """
        outside = {event.op for event in events if not event.in_graph}
        called = {
            number: [name for name in names if name not in outside]
            for number, names in self._called.items()
        }
        numbers = [_library(e.op) if self._launched(e) is None else None for e in events]
        seen: Counter[int] = Counter()
        for event, number in zip(events, numbers, strict=True):
            op = self._launched(event) or event.op
            if number is not None and numbers.count(number) == len(called.get(number, ())):
                op = called[number][seen[number]]
                seen[number] += 1
            yield replace(event, op=op)

    def _launched(self, event: Event) -> str | None:
        return self._generated.get(event.op) if event.in_graph else event.op


def _library(kernel: str) -> int | None:
    found = (number for number, (names, _) in enumerate(_LIBRARY) if names.search(kernel))
    return next(found, None)
