"""FLOPs of the matrix products and convolutions in a traced step, loops included."""

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core


def traced_flops(step: Callable[..., Any], *arguments: Any) -> float:
    """Return the FLOPs of one call over all devices, including recomputation and duplicates.

    A product of (m, k) and (k, n) matrices counts 2 m k n; a convolution counts 2 per output
    element and kernel element that contributes to it. Elementwise operations do not count. The
    largest branch of a conditional counts as always taken, even in a pipeline's idle ticks. A loop
    of unknown length counts once.

    Raises:
      Exception: whatever tracing the step raises; a Python loop over devices cannot be traced.
    """
    return flops_of(jax.make_jaxpr(step)(*arguments))


def flops_if_traceable(step: Callable[..., Any], *arguments: Any) -> float | None:
    """Return `traced_flops`, or None if the step cannot be traced."""
    try:
        return traced_flops(step, *arguments)
    except Exception as error:  # noqa: BLE001 - a user's file may raise anything
        print(f"the step's FLOPs cannot be counted: {error}", file=sys.stderr)  # noqa: T201
        return None


def flops_of(jaxpr: Any) -> float:
    """Return the FLOPs of a jaxpr, closed or not, as `traced_flops` counts them."""
    return math.fsum(map(_of_equation, getattr(jaxpr, "jaxpr", jaxpr).eqns))


def _of_equation(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        products = math.prod(left[dimension] for dimension in contracted)
        return 2.0 * math.prod(equation.outvars[0].aval.shape) * products
    if name == "conv_general_dilated":
        kernel, numbers = equation.invars[1].aval.shape, params["dimension_numbers"]
        made_of = math.prod(kernel) / kernel[numbers.rhs_spec[0]]
        return 2.0 * math.prod(equation.outvars[0].aval.shape) * made_of
    within = [flops_of(jaxpr) for jaxpr in inner_jaxprs(params.values())]
    if name == "cond":
        return max(within)
    times = 1
    if name == "scan":
        times = params["length"]
    elif name == "shard_map":
        times = math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
    return times * math.fsum(within)


def inner_jaxprs(values: Any) -> Iterator[core.Jaxpr]:
    """Yield the jaxprs among the parameters of an equation."""
    for value in values:
        inner = getattr(value, "jaxpr", value)  # the jaxpr inside a closed one
        if isinstance(inner, core.Jaxpr):
            yield inner
        elif isinstance(value, list | tuple):
            yield from inner_jaxprs(value)
