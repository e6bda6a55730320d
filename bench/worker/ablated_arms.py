"""Ablated arms: an implementation's step without one of its parts, timed beside the whole step.

The step is built by the implementation's own file, and differs only in what replaces the part. The
compiled program is then compared with that of the whole step, because a part that the compiler
removes together with others, or not at all, would be assigned a wrong cost.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend import core
from jax.interpreters import mlir
from jax.sharding import Mesh

from bench.contract import Implementation, Params, Problem, TrainStep
from bench.records.arms import arm_beside
from bench.records.rows import CellRow
from bench.records.step_programs import Communication
from bench.worker.prove.failures import UnsupportedError
from bench.worker.prove.trajectory import build_step
from bench.worker.read.programs import FirstCall, branch_share, communication, product_flops
from bench.worker.time.clock import Arm

MOST_FORWARD = 0.6
"""Largest share of a step's FLOPs in its forward pass: half in linear models, a third in others."""

TOLERANCE = 0.01
"""Relative difference of FLOPs that the compiler may cause by simplifying around a stand-in."""

LEAST_KEPT = 0.9
"""Least share of the collectives' payload that a step without its update must still move. A norm
that the optimizer computes is no longer reduced, but gradients always are."""


def ablated_arm(
    name: str,
    way: str,
    implementation: Implementation,
    whole: CellRow,
    problem: Problem,
    mesh: Mesh,
) -> Arm:
    """Make an arm of a step without a part, and run it once.

    `way` is a key of bench.records.arms.ABLATIONS, and `whole` is the row of the proved cell.
    Raises UnsupportedError if the part cannot be removed alone.
    """
    collectives, flops = whole.get("communication"), whole.get("product_flops")
    if collectives is None or not flops:
        raise UnsupportedError("the collectives and products of its compiled programs are unknown")
    if way == "local" and not collectives:
        raise UnsupportedError("its compiled programs have no collectives")
    change = {"no-update": without_update, "forward": forward_only}.get(way)
    train_step = build_step(implementation, change(problem) if change else problem, mesh)
    batch = train_step.place(problem.batch(0))
    if way == "local":
        step, programs = localized(train_step, batch)
        state, _ = step(train_step.state, batch)
    else:
        first = FirstCall(step := train_step.step)
        state, _ = first(train_step.state, batch)
        programs = first.programs
    share = branch_share(train_step)
    rest = communication(programs, mesh, share=share)
    check_parts(way, flops, collectives, product_flops(programs, share), rest)
    return Arm(arm_beside(name, way), step, state, batch)


def check_parts(
    way: str,
    whole_flops: float,
    whole: Sequence[Communication],
    flops: float,
    rest: Sequence[Communication],
) -> None:
    """Raise UnsupportedError if the rest of a step lacks more, or less, than the removed part."""
    if way == "local" and rest:
        kinds = ", ".join(sorted({row["kind"] for row in rest}))
        raise UnsupportedError(f"the compiler inserts some of its collectives ({kinds})")
    if way == "forward" and any(row.get("returned") for row in rest):
        raise UnsupportedError("without gradients, it still gathers the parameters that it returns")
    if way == "forward" and flops > MOST_FORWARD * whole_flops:
        raise UnsupportedError(
            "its gradients are computed without the problem's loss: "
            f"{flops / whole_flops:.0%} of the FLOPs stay"
        )
    if way != "forward" and not math.isclose(flops, whole_flops, rel_tol=TOLERANCE):
        change = f"from {whole_flops:.3g} to {flops:.3g}"
        raise UnsupportedError(f"the FLOPs of its products change with the part, {change}")
    if way == "no-update" and _payload(rest) < LEAST_KEPT * _payload(whole):
        raise UnsupportedError("its gradients are not reduced without its update")


def _payload(rows: Sequence[Communication]) -> int:
    """Return the payload bytes of the collectives whose results a step uses, not only returns."""
    return sum(row["payload_bytes"] for row in rows if not row.get("returned"))


def without_update(problem: Problem) -> Problem:
    """Return the problem with an optimizer that changes no parameter and none of its own state.

    The optimizer keeps one element of each gradient, in an array of the parameter's shape. That is
    enough for the compiler to compute and reduce whole gradients. To keep all of them would add a
    write, and for some implementations a change of layout, which the whole step does not have.
    """
    inner = problem.optimizer

    def init(params: Params) -> Any:
        return inner.init(params), jax.tree.map(jnp.zeros_like, params)

    def update(grads: Params, state: Any, *_: Any, **__: Any) -> tuple[Params, Any]:
        own, kept = state
        return jax.tree.map(jnp.zeros_like, grads), (own, jax.tree.map(_keep, kept, grads))

    return replace(problem, optimizer=optax.GradientTransformationExtraArgs(init, update))


def _keep(kept: jax.Array, gradient: jax.Array) -> jax.Array:
    """Replace the first element of an array by that of a gradient, in place."""
    first = [0] * gradient.ndim
    element = jax.lax.slice(gradient, first, [1] * gradient.ndim)
    return jax.lax.dynamic_update_slice(kept, element, first)


def forward_only(problem: Problem) -> Problem:
    """Return the problem with a loss whose gradient is 0, so that no backward pass is compiled."""
    sequence, make_stages = problem.sequence, problem.make_stages
    zeros = optax.with_extra_args_support(optax.set_to_zero())
    return replace(
        problem,
        loss=_stopped(problem.loss),
        sequence=sequence and _with_stopped(sequence, "loss"),
        make_stages=make_stages
        and (lambda axis: _with_stopped(make_stages(axis), "first", "block", "last")),
        optimizer=zeros._replace(init=problem.optimizer.init),
    )


def _with_stopped(parts: Any, *names: str) -> Any:
    """Replace the named functions of a dataclass with versions that have no gradients."""
    return replace(parts, **{name: _stopped(getattr(parts, name)) for name in names})


def _stopped(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda *arguments: jax.lax.stop_gradient(function(*arguments))


_COLLECTIVES = {
    *("psum", "psum_invariant", "unreduced_psum", "pmax", "pmin", "ppermute", "all_to_all"),
    *("all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter"),
    "unreduced_reduce_scatter",
}
"""Names of the primitives that a stand-in replaces; others remain, and make the arm unsupported."""


def localized(train_step: TrainStep, batch: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Compile a step with local stand-ins for the collectives that its file, or jax, has written.

    Returns the compiled step and its executables. The stand-ins are lowering rules of this
    compilation alone: tracing, differentiation and jax.shard_map's types see real collectives.
    UnsupportedError if the step is not one traceable program, or writes no collectives.
    """
    try:
        traced = jax.jit(train_step.step).trace(train_step.state, batch)
        # Only the outermost program can donate.
        if any(any(one.params.get("donated_invars", ())) for one in traced.jaxpr.eqns):
            traced = jax.jit(train_step.step, donate_argnums=0).trace(train_step.state, batch)
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise UnsupportedError(f"its step cannot be traced as one program: {text}") from error
    found = {equation.primitive for equation in _equations(traced.jaxpr)}
    rules = tuple((one, _stand_in) for one in found if one.name in _COLLECTIVES)
    if not rules:
        raise UnsupportedError("the compiler inserts its collectives")
    parameters = mlir.LoweringParameters(override_lowering_rules=rules)  # type: ignore[arg-type]
    compiled = traced.lower(_private_parameters=parameters).compile()
    return compiled, [compiled.runtime_executable()]


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr, closed or not, at any depth."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from _equations(inner)


def _stand_in(context: Any, *operands: Any, **_: Any) -> Any:
    """Lower a collective to a local operation with results of the same shapes and dtypes."""

    def local(*arrays: jax.Array) -> list[jax.Array]:
        shapes = [aval.shape for aval in context.avals_out]
        return [in_shape(array, shape) for array, shape in zip(arrays, shapes, strict=True)]

    return mlir.lower_fun(local, multiple_results=True)(context, *operands)


def in_shape(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return an array of another shape to which every element of `array` contributes.

    The array is repeated, as an all-gather of equal parts would, or its parts are summed, as in a
    reduce-scatter; if the number of elements is the same, it is only reshaped. Without the sum, the
    compiler could drop the computation of the other parts.
    """
    size = math.prod(shape)
    copies = jnp.broadcast_to(array.ravel(), (max(size // array.size, 1), array.size))
    return copies.reshape(-1, size).sum(0, dtype=array.dtype).reshape(shape)
