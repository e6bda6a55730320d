"""FLOPs of a step as it was traced: of its matrix products and convolutions, with their loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core


def traced_flops(step: Callable[..., Any], *arguments: Any) -> float:
    """FLOPs of one call over all devices, recomputation and every device's own work included.

    A product of (m, k) and (k, n) matrices has 2 m k n; of a convolution, every output element has
    2 for each element of the kernel that it is made of. Additions and functions of single elements
    are not counted. Of a branch, the largest side counts, as if it were always taken: in a
    pipeline's idle ticks too, where nothing is computed. A loop whose length is unknown while it is
    traced counts once.

    Raises:
      Exception: whatever the step raises when it is traced. One that is no JAX program as a whole,
        such as a loop over devices, cannot be.
    """
    return flops_of(jax.make_jaxpr(step)(*arguments))


def flops_of(jaxpr: Any) -> float:
    """As `traced_flops`, of a jaxpr, closed or not."""
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
    within = [flops_of(jaxpr) for jaxpr in _jaxprs(params.values())]
    if name == "cond":
        return max(within)
    times = 1
    if name == "scan":
        times = params["length"]
    elif name == "shard_map":
        times = math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
    return times * math.fsum(within)


def _jaxprs(values: Any) -> Iterator[core.Jaxpr]:
    for value in values:
        inner = getattr(value, "jaxpr", value)  # of a closed one
        if isinstance(inner, core.Jaxpr):
            yield inner
        elif isinstance(value, list | tuple):
            yield from _jaxprs(value)
