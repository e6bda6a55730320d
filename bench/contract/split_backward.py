"""A backward pass in two parts: the gradient of a function's input, and later its parameters'.

jax.vjp computes both at once. Here its program is traced and divided by equation, as PyTorch's
pipelines divide autograd's graph.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from bench.contract import Params

Saved = list[jax.Array]


class Passes(NamedTuple):
    """The passes of `function(params, x)`, in the order in which they run."""

    forward: Callable[[Params, jax.Array], tuple[jax.Array, Saved]]
    """Maps parameters and input to the output and the residuals for the backward passes."""
    backward_input: Callable[[Params, Saved, jax.Array], tuple[jax.Array, Saved]]
    """Maps parameters, the residuals of `forward` and the output's gradient to the input's gradient
    and further residuals for `backward_weights`."""
    backward_weights: Callable[[Params, Saved, Saved], Params]
    """Maps parameters and the residuals of both other passes to the parameters' gradients."""


def split_backward(
    function: Callable[[Params, jax.Array], jax.Array], params: Params, x: jax.Array
) -> Passes:
    """Split `function(params, x)`, which returns an array like `x`, and its gradients into passes.

    An equation runs in the first pass that needs its result. One that depends only on parameters,
    such as a cast, runs again in each pass, because saving it would copy the parameters. What
    jax.checkpoint recomputes is computed once, in the first backward pass that needs it. Only the
    shapes, dtypes and mesh axes of `params` and `x` matter here.
    """
    leaves, structure = jax.tree.flatten(params)

    def whole(*arrays: jax.Array) -> Any:
        *leaves, x, d_y = arrays
        y, transposed = jax.vjp(function, jax.tree.unflatten(structure, leaves), x)
        d_params, d_x = transposed(d_y)
        return y, d_x, *jax.tree.leaves(d_params)

    given = (*leaves, x, x)
    traced = jax.make_jaxpr(_without_checkpoints(jax.make_jaxpr(whole)(*given)))(*given)
    program, equations = traced.jaxpr, traced.jaxpr.eqns
    inputs: list[Var] = [*program.constvars, *program.invars]
    *weights, entering, arriving = inputs
    y, d_x, *d_params = program.outvars

    first = _needed(equations, [y], [*weights, entering])
    made = [entering, *_results(first, weights)]
    second = _needed(equations, [d_x], [*weights, *made, arriving])
    made_later = [arriving, *_results(second, weights)]
    third = _needed(equations, d_params, [*weights, *made, *made_later])
    read = _reads(third, d_params)
    saved = [var for var in made if var in read | _reads(second, [d_x])]
    saved_later = [var for var in made_later if var in read]

    def run(part: Sequence[JaxprEqn], given: Any, wanted: Any, params: Params, *values: Any) -> Any:
        called = _program(program, part, [*weights, *given], wanted)
        return called(*traced.consts, *jax.tree.leaves(params), *values)

    def forward(params: Params, x: jax.Array) -> tuple[jax.Array, Saved]:
        output, *residuals = run(first, [entering], [y, *saved], params, x)
        return output, residuals

    def backward_input(params: Params, residuals: Saved, d_y: jax.Array) -> tuple[jax.Array, Saved]:
        given, wanted = [*saved, arriving], [d_x, *saved_later]
        gradient, *more_residuals = run(second, given, wanted, params, *residuals, d_y)
        return gradient, more_residuals

    def backward_weights(params: Params, residuals: Saved, more: Saved) -> Params:
        given = [*saved, *saved_later]
        return jax.tree.unflatten(structure, run(third, given, d_params, params, *residuals, *more))

    return Passes(forward, backward_input, backward_weights)


def _reads(equations: Sequence[JaxprEqn], wanted: Iterable[Any] = ()) -> set[Var]:
    atoms = [atom for equation in equations for atom in equation.invars]
    return {atom for atom in [*atoms, *wanted] if isinstance(atom, Var)}


def _needed(
    equations: Sequence[JaxprEqn], wanted: Iterable[Any], given: Iterable[Var]
) -> list[JaxprEqn]:
    """Return the equations that compute `wanted` from `given`, in order."""
    found, given = [], set(given)
    missing = _reads([], wanted) - given
    for equation in reversed(equations):
        if missing.intersection(equation.outvars):
            found.append(equation)
            missing |= _reads([equation]) - given
    return found[::-1]


def _results(equations: Sequence[JaxprEqn], params: Iterable[Var]) -> list[Var]:
    """Return what equations compute, except what depends only on parameters."""
    from_params, results = set(params), []
    for equation in equations:
        if from_params.issuperset(_reads([equation])):
            from_params.update(equation.outvars)
        else:
            results += equation.outvars
    return results


def _program(
    whole: Any, equations: Sequence[JaxprEqn], given: Sequence[Var], wanted: Sequence[Any]
) -> Callable[..., list[Any]]:
    """Return some equations of a program as a function of `given` that returns `wanted`."""
    names = whole.debug_info._replace(arg_names=None, result_paths=None)
    part = whole.replace(
        constvars=[], invars=given, outvars=wanted, eqns=equations, debug_info=names
    )
    called: Callable[..., list[Any]] = jaxpr_as_fun(ClosedJaxpr(part, []))
    return called


def _without_checkpoints(traced: ClosedJaxpr) -> Callable[..., Any]:
    """Return a program as a function, in which the bodies of jax.checkpoint are inlined."""
    whole = traced.jaxpr

    def run(*arrays: jax.Array) -> list[Any]:
        variables = [*whole.constvars, *whole.invars]
        values: dict[Any, Any] = dict(zip(variables, [*traced.consts, *arrays], strict=True))
        for equation in whole.eqns:
            given = list(dict.fromkeys(a for a in equation.invars if isinstance(a, Var)))
            if equation.primitive.name == "remat2":
                inside = equation.params["jaxpr"]
                called = _program(whole, inside.eqns, inside.invars, inside.outvars)
            else:
                called = _program(whole, [equation], given, equation.outvars)
            values |= zip(equation.outvars, called(*(values[a] for a in given)), strict=True)
        return [a.val if isinstance(a, Literal) else values[a] for a in whole.outvars]

    return run


def over_run(block: Passes) -> Passes:
    """Return the passes of a run of blocks whose parameters are stacked as (length, ...)."""
    return Passes(
        lambda params, x: jax.lax.scan(lambda x, own: block.forward(own, x), x, params),
        lambda params, residuals, d_y: jax.lax.scan(
            lambda d_y, own: block.backward_input(*own, d_y), d_y, (params, residuals),
            reverse=True,
        ),
        lambda *own: jax.lax.map(lambda own: block.backward_weights(*own), own),
    )  # fmt: skip
