"""A step's programs: their compilation, communication, FLOPs and bytes, compiled or only traced."""

import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations
from typing import Any, TypeVar

import jax
import numpy as np
from jax.extend import core
from jax.sharding import Mesh

from bench.records.collective_kinds import bus_factor
from bench.records.rows import CompileTimes
from bench.records.step_programs import Communication, CompilersCost, ProgramFigures
from bench.worker.prove.trajectory import state_and_loss
from bench.worker.read import hlo
from bench.worker.read.collectives import Collective, bytes_of, collectives, groups_along
from bench.worker.read.compilation import CompilationLog
from bench.worker.read.device_memory import largest_program

T = TypeVar("T")

_CALL_TARGET = re.compile(r'\bcustom_call_target="([^"]+)"')
_CONTRACTED = re.compile(r'\blhs_contracting_dim(?:s=\{[\d,]*\}|ensions":\[[\d",]*\])')
"""The contracted dimensions of the left operand of a `dot`, or of a call of cuBLAS."""
_MATRIX_PRODUCTS = {"__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"}
_ATTENTION_PRODUCTS = {"__cudnn$fmhaSoftmax": 2, "__cudnn$fmhaSoftmaxBackward": 5}
"""Matrix products in a call of fused attention: the backward pass computes the scores once more."""


def if_readable(read: Callable[[], T]) -> T | None:
    """Return the result of `read`; None if it raises ValueError, and the cell keeps its time."""
    try:
        return read()
    except ValueError:
        traceback.print_exc()
        return None


def live_programs() -> list[Any]:
    """Return the executables that are alive in this process."""
    return jax.devices()[0].client.live_executables()


def new_programs(programs: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """Return the programs that are not among `known`, by identity."""
    old = {id(program) for program in known}
    return [program for program in programs if id(program) not in old]


class FirstCall:
    """A step that records what its first call compiles, or the program compiled ahead of time."""

    def __init__(self, step: Callable[[Any, Any], tuple[Any, jax.Array]]) -> None:
        self._step = step
        self._called = False
        self.compile: CompileTimes | None
        self.programs: list[Any]
        """Executables that the first call created; none if they are unknown."""

    def __call__(self, state: Any, batch: Any) -> tuple[Any, jax.Array]:
        """Run the step; the first time, record its compilation."""
        if self._called:
            return self._step(state, batch)
        self._called = True
        with CompilationLog() as log:
            before = live_programs()
            state, loss = state_and_loss(self._step(state, batch))
        self.programs = new_programs(live_programs(), before)
        if ahead := isinstance(self._step, jax.stages.Compiled):
            self.programs = [self._step.runtime_executable()]
        self.compile = log.times() if log.programs and not ahead else None
        return state, loss


def communication(
    programs: Sequence[Any], mesh: Mesh, *, scatter: bool = False, share: float = 1
) -> list[Communication]:
    """Sum the collectives of a step's programs by kind, axes and dtypes; see `collectives`."""
    found: dict[tuple[Any, ...], Communication] = {}
    for program in programs:
        for one in collectives(program, mesh.size, scatter=scatter, share=share):
            members = len(one.groups[0])
            axes = axes_of(one, mesh)
            empty = Communication(
                kind=one.kind, axes=list(axes), members=members, dtypes=list(one.dtypes),
                count=0, times=0, payload_bytes=0, wire_bytes=0.0,
            )  # fmt: skip
            row = found.setdefault((one.kind, axes, members, one.dtypes, one.returned), empty)
            if one.returned:
                row["returned"] = True
            row["count"] += one.count
            row["times"] = max(row["times"], one.count)
            row["payload_bytes"] += round(one.count * one.bytes)
            row["wire_bytes"] += one.count * one.bytes * bus_factor(one.kind, members)
    return list(found.values())


def axes_of(collective: Collective, mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes along which a collective communicates; empty if its groups match none.

    A collective-permute runs along axes if each of its pairs lies within one group of those axes.
    """
    places = np.arange(mesh.size).reshape(mesh.devices.shape)
    own = set(map(frozenset, collective.groups))
    for count in range(1, len(mesh.axis_names) + 1):
        for along in combinations(mesh.axis_names, count):
            groups = set(map(frozenset, groups_along(places, mesh.axis_names, along)))
            if own == groups or (
                collective.kind == "collective-permute"
                and all(any(pair <= group for group in groups) for pair in own)
            ):
                return along
    return ()


def compilers_cost(programs: Sequence[Any]) -> CompilersCost | None:
    """Return XLA's count of a step's work over all devices; None if the backend has none.

    XLA counts the body of a loop once. It counts nothing for calls of cuBLAS and of cuDNN's
    attention, where a GPU spends most of its time: such calls are added, as often as they run,
    unless XLA's FLOPs already cover all products of the program.
    """
    flops = moved = 0.0
    for program in programs:
        try:
            cost = program.cost_analysis()
        except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError):
            return None
        devices = _devices_of(program)
        compiled = max(0.0, cost.get("flops", 0.0))
        flops += devices * compiled
        moved += devices * max(0.0, cost.get("bytes accessed", 0.0))
        products = [(one, n, done) for one, n in _executed([program]) if (done := _flops(one))]
        if compiled < math.fsum(count * done for _, count, done in products):
            for one, count, done in products:
                if hlo.opcode(one) == "custom-call":
                    flops += devices * count * done
                    moved += devices * count * _accessed(one)
    return CompilersCost(flops=flops, accessed_bytes=moved) if programs else None


def library_kernels(programs: Sequence[Any]) -> list[str]:
    """Return the targets of custom calls in compiled programs, such as `__cudnn$fmhaSoftmax`."""
    texts = (instruction.to_string() for instruction, _ in _executed(programs))
    return sorted({target for text in texts for target in _CALL_TARGET.findall(text)})


def product_flops(programs: Sequence[Any], share: float = 1) -> float:
    """Return the FLOPs of products and convolutions in compiled programs, over all devices.

    Unlike `flops_of`, this counts work that the compiler duplicates on several devices. It
    misses products that became other operations, as small ones do on XLA:CPU.
    """
    return math.fsum(
        _devices_of(program) * count * _flops(instruction)
        for program in programs
        for instruction, count in _executed([program], share)
    )


def _devices_of(program: Any) -> int:
    """Count a program's devices: every process compiles it, and lists only its own devices."""
    return len(program.local_devices()) * jax.process_count()


def _executed(programs: Sequence[Any], share: float = 1) -> Iterator[tuple[Any, float]]:
    """Yield every instruction with the number of its executions."""
    return chain.from_iterable(module.executed(share) for module in hlo.modules_of(programs))


def _accessed(instruction: Any) -> int:
    """Return the bytes of operands and results, without the workspace of a library's call."""
    arrays = [*hlo.arrays(instruction)]
    if len(arrays) > 1 and len(arrays[-1][1]) == 1:
        arrays.pop()
    for operand in instruction.operands():
        arrays += hlo.arrays(operand)
    return bytes_of(arrays)


def _flops(instruction: Any) -> float:
    """Return the FLOPs of a product or convolution, or of a library's call that computes them.

    Attention's products count as if there were no causal mask.
    """
    kind = hlo.opcode(instruction)
    if kind not in {"dot", "convolution", "custom-call"}:
        return 0.0
    text = instruction.to_string()
    target = found[1] if (found := _CALL_TARGET.search(text)) else ""
    known = target in _MATRIX_PRODUCTS | _ATTENTION_PRODUCTS.keys() or "__cudnn$conv" in target
    if kind == "custom-call" and not known:
        return 0.0
    _, made = next(hlo.arrays(instruction))
    (_, left), (_, right) = (next(hlo.arrays(operand)) for operand in instruction.operands()[:2])
    if products := _ATTENTION_PRODUCTS.get(target):
        return 2.0 * products * math.prod(made) * right[1]  # keys (batch, length, heads, width)
    if "BackwardInput" in target:  # a call of cuDNN has the labels of the forward convolution
        made = left
    elif "BackwardFilter" in target:
        made, right = right, made
    if kind == "convolution" or "$conv" in target:
        # Labels such as b01f_01io->b01f: o is the kernel's output dimension.
        labels = re.search(r"\bdim_labels=\w+_(\w+)->", text)
        out = labels[1].index("o") if labels else 0
        inserted = re.search(r"\blhs_dilate=([\dx]+)", text)
        spread = math.prod(map(int, inserted[1].split("x"))) if inserted else 1
        made_of = math.prod(right) / right[out] / spread
    else:
        contracted = _CONTRACTED.search(text)
        dimensions = re.findall(r"\d+", contracted[0]) if contracted else ()
        made_of = math.prod(left[int(dimension)] for dimension in dimensions)
    return 2.0 * math.prod(made) * made_of


def program_figures(programs: Sequence[Any], mesh: Mesh, share: float = 1) -> ProgramFigures:
    """Read memory, communication and work of a step from its programs; none are unknown ones."""
    if not programs:
        return ProgramFigures()
    return ProgramFigures(
        memory=largest_program(programs),
        communication=if_readable(lambda: communication(programs, mesh, share=share)),
        cost=compilers_cost(programs),
        product_flops=product_flops(programs, share),
        kernels=library_kernels(programs),
    )


def flops_if_traceable(step: Callable[..., Any], *arguments: Any, share: float = 1) -> float | None:
    """Return `flops_of` a step; None if it cannot be traced, like a Python loop over devices."""
    try:
        return flops_of(jax.make_jaxpr(step)(*arguments), share)
    except Exception as error:  # noqa: BLE001 - a user's file may raise anything
        print(f"the step's FLOPs cannot be counted: {error}", file=sys.stderr)  # noqa: T201
        return None


def flops_of(jaxpr: Any, share: float = 1) -> float:
    """Return the FLOPs of a jaxpr over all devices, including recomputation and duplicates.

    A product of (m, k) and (k, n) matrices counts 2 m k n; a convolution counts 2 per output
    element and kernel element that contributes to it, with padding, but without the zeros between
    the inputs of a dilated one. Elementwise operations do not count. The largest branch of a
    conditional counts as taken in a `share` of its runs, and a conditional inside it as often. A
    Pallas kernel counts once per cell of its grid; loops and grids of unknown length count once.
    """
    return math.fsum(_of_equation(equation, share) for equation in jaxpr.eqns)


def _of_equation(equation: Any, share: float) -> float:
    name, params = equation.primitive.name, equation.params
    ragged = params.get("ragged_dot_dimension_numbers")
    if name == "dot_general" or ragged:
        (contracted, _), _ = ragged.dot_dimension_numbers if ragged else params["dimension_numbers"]
        left, made = equation.invars[0].aval.shape, math.prod(equation.outvars[0].aval.shape)
        if ragged and ragged.lhs_ragged_dimensions[0] in contracted:
            made /= equation.invars[2].aval.shape[-1]  # every product belongs to one group
        return 2.0 * made * math.prod(left[dimension] for dimension in contracted)
    if name == "conv_general_dilated":
        kernel, numbers = equation.invars[1].aval.shape, params["dimension_numbers"]
        spread = math.prod(params["lhs_dilation"])
        made_of = math.prod(kernel) / kernel[numbers.rhs_spec[0]] / spread
        return 2.0 * math.prod(equation.outvars[0].aval.shape) * made_of
    inner = 1 if name == "cond" else share
    within = [flops_of(jaxpr, inner) for jaxpr in core.jaxprs_in_params(params)]
    if name == "cond":
        return share * max(within)
    times = params["length"] if name == "scan" else 1
    if name == "shard_map":
        times = math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
    if name == "pallas_call":
        times = math.prod(size for size in params["grid_mapping"].grid if isinstance(size, int))
    return times * math.fsum(within)
