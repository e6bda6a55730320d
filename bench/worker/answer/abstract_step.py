"""Abstract tracing of an implementation's step, without running it or allocating arrays.

`build`, `place` and `step` are traced as one function, so a model replicated on 1,024 devices takes
no memory. In the jaxpr, functions that `build` compiles, such as a copy of the parameters with
`out_shardings`, show the shardings of their results, and the step is the only compiled function
after them.
"""

import math
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.stages import Traced

from bench.contract import Implementation, Problem, TrainStep
from bench.worker.prove.failures import own_copy


class NotAbstractError(Exception):
    """The step cannot be traced without running something; the message says why."""


def abstract_step(
    implementation: Implementation, problem: Problem, mesh: Mesh, batch: Any
) -> tuple[Traced, int, float]:
    """Trace an implementation from `build` to the end of its first step.

    Returns the step, a single compiled function, the bytes of its state on one device, and its
    branch share.

    The implementation must support the problem on this mesh, and the problem must draw its own
    parameters. The batch has NumPy arrays, or those of `stand_in`. Errors are the implementation's
    own, such as those for concrete values that do not exist during tracing, and:

    Raises:
      NotAbstractError: the step is not a single compiled function, or the sharding of an array of
        the state is unknown, because it is made outside any compiled function.
    """
    shardings = _Shardings()
    found: dict[str, Any] = {}

    def whole() -> Any:
        step = implementation.build(own_copy(problem), mesh)
        placed = step.place(batch)
        found["share"], found["state_bytes"] = step.branch_share, _state_bytes(step, shardings)
        boundary = jax.jit(_boundary)()
        state, loss = step.step(step.state, placed)
        found["program"] = getattr(loss, "parent", None)
        return boundary, state, loss

    # Implementations may read the sharding of an array that they have placed, or call their step in
    # the context of a mesh. While tracing, jax offers neither.
    set_mesh = lambda mesh: jax.sharding.use_abstract_mesh(mesh.abstract_mesh)  # noqa: E731
    with (
        patch.object(Tracer, "sharding", property(shardings.of)),
        patch.object(jax, "set_mesh", set_mesh),
    ):
        equations = jax.make_jaxpr(whole)().jaxpr.eqns
        marks = [equation.params.get("name") == _boundary.__name__ for equation in equations]
        names = [equation.primitive.name for equation in equations[marks.index(True) + 1 :]]
        if names != ["jit"]:
            shown = ", ".join(dict.fromkeys(names)) or "nothing"
            raise NotAbstractError(
                f"its step is not one compiled function but {len(names)} operations ({shown})"
            )
        program = found["program"]
        arguments = [shardings.described(argument) for argument in program.in_tracers]
    step = jax.jit(core.jaxpr_as_fun(program.params["jaxpr"]), **_jit_options(program.params))
    return _traced(step, arguments), found["state_bytes"], found["share"]


def stand_in(batch: Any, rows: int) -> Any:
    """Make host arrays with a batch's shapes but `rows` rows, which take no memory."""
    return jax.tree.map(
        lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), (rows, *leaf.shape[1:])), batch
    )


def _boundary() -> jax.Array:
    """Mark the boundary in a trace between `place` and the step."""
    return jnp.zeros(())


def _state_bytes(step: TrainStep, shardings: "_Shardings") -> int:
    """Return the bytes of the state on one device; NotAbstractError if a sharding is unknown."""
    total = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(step.state):
        array = shardings.described(leaf)
        if array.shape and array.sharding is None:
            name = jax.tree_util.keystr(path)
            raise NotAbstractError(
                f"nothing shows how its state{name} is divided: make it in a function of jax.jit "
                "with out_shardings, or by jax.device_put"
            )
        own = array.sharding.shard_shape(array.shape) if array.sharding else array.shape
        total += math.prod(own) * array.dtype.itemsize
    return total


class _Shardings:
    """The shardings of traced arrays."""

    def __init__(self) -> None:
        self._decided: dict[int, tuple[Any, list[Sharding | None]]] = {}
        """The compiler's choices, by the id of an equation, which is kept alive with them."""

    def described(self, array: Any) -> jax.ShapeDtypeStruct:
        """Return an array's shape, dtype and sharding."""
        kind = jax.typeof(array)
        return jax.ShapeDtypeStruct(
            kind.shape, kind.dtype, sharding=self.of(array), weak_type=kind.weak_type
        )

    def of(self, array: Any) -> Sharding | None:
        """Return an array's sharding; None if it is uncommitted.

        The equations of jax.device_put, and of jax.jit with out_shardings, contain it. The sharding
        of any other result is the compiler's choice.
        """
        if not isinstance(array, Tracer):
            return array.sharding if isinstance(array, jax.Array) and array.committed else None
        equation = getattr(array, "parent", None)
        if equation is None:
            return None
        number = [id(out) for out in equation.outvars].index(id(array.val))
        if equation.primitive.name == "device_put":
            place = equation.params["devices"][number]
            if place is None:
                return self.of(equation.in_tracers[number])
            return SingleDeviceSharding(place) if isinstance(place, jax.Device) else place
        if equation.primitive.name == "jit":
            requested = equation.params["out_shardings"][number]
            if isinstance(requested, Sharding):
                return requested
        if id(equation) not in self._decided:
            arguments = [self.described(argument) for argument in equation.in_tracers]
            self._decided[id(equation)] = equation, _decided(equation, arguments)
        return self._decided[id(equation)][1][number]


def _decided(equation: Any, arguments: list[jax.ShapeDtypeStruct]) -> list[Sharding | None]:
    """Compile an equation to get the shardings of its results.

    Results of a program that uses no argument, such as zeros, are uncommitted.
    """
    if all(argument.sharding is None for argument in arguments):
        return [None] * len(equation.outvars)
    operation = jax.jit(partial(equation.primitive.bind, **equation.params))
    compiled = _traced(operation, arguments).lower().compile()
    shardings = jax.tree.leaves(compiled.output_shardings)
    return shardings if jax.tree.leaves(compiled.input_shardings) else [None] * len(shardings)


def _jit_options(params: dict[str, Any]) -> dict[str, Any]:
    """Recover the arguments of jax.jit from its equation."""

    def known(shardings: Any) -> tuple[Sharding | None, ...]:
        return tuple(one if isinstance(one, Sharding) else None for one in shardings)

    return {
        "in_shardings": known(params["in_shardings"]),
        "out_shardings": list(known(params["out_shardings"])),
        "donate_argnums": tuple(n for n, one in enumerate(params["donated_invars"]) if one),
        "keep_unused": params["keep_unused"],
        "compiler_options": dict(params["compiler_options_kvs"]) or None,
    }


def _traced(function: Any, arguments: list[jax.ShapeDtypeStruct]) -> Traced:
    """Trace a compiled function; if its arguments' axes are explicit, under their mesh."""
    shardings = [argument.sharding for argument in arguments]
    explicit = [
        sharding.mesh.abstract_mesh
        for sharding in shardings
        if isinstance(sharding, NamedSharding) and not sharding.mesh.are_all_axes_auto
    ]
    with jax.sharding.use_abstract_mesh(explicit[0]) if explicit else nullcontext():
        traced: Traced = function.trace(*arguments)
    return traced
