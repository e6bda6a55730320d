"""An implementation's step as a program that has not run, on devices that hold nothing.

`build`, `place` and `step` are traced as one function, so that no array is made: a model that is
replicated on 1,024 devices takes no memory. In the jaxpr, functions that `build` compiles, such as
a copy of the parameters with `out_shardings`, show how their results are divided, and the step is
the one compiled function after them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from bench.contract import Implementation, Problem, TrainStep


class NotAbstractError(Exception):
    """The step cannot be read without running something; the message says why."""


@dataclass(frozen=True)
class AbstractStep:
    """A step that is one compiled function."""

    jaxpr: Any
    """The function, a closed jaxpr."""
    lower: Callable[..., Any]
    """Lowers it (to a jax.stages.Lowered); `lower(("cuda",))` for another platform than this."""
    state_bytes: int
    """Bytes of the state on one device."""
    bubble: float


def abstract_step(
    implementation: Implementation, problem: Problem, mesh: Mesh, batch: Any
) -> AbstractStep:
    """Trace an implementation from `build` to the end of its first step.

    Args:
      implementation: supports the problem on this mesh.
      problem: draws its own parameters.
      mesh: to build the step on.
      batch: NumPy arrays, or stand-ins for them as `stand_in` makes.

    Raises:
      NotAbstractError: the step is not one compiled function, or nothing shows how an array of the
        state is divided, because it is made outside of any compiled function.
      Exception: whatever the implementation raises, also if it needs values, which do not exist
        while it is traced.
    """
    shardings = _Shardings()
    found: dict[str, Any] = {}

    def whole() -> Any:
        step = implementation.build(problem, mesh)
        placed = step.place(batch)
        found["bubble"] = float(step.bubble)
        found["state_bytes"] = _state_bytes(step, shardings)
        boundary = jax.jit(_boundary)()
        state, loss = step.step(step.state, placed)
        found["program"] = getattr(loss, "parent", None)
        return boundary, state, loss

    with shardings.visible():
        equations = jax.make_jaxpr(whole)().jaxpr.eqns
        marks = [equation.params.get("name") == _boundary.__name__ for equation in equations]
        names = [equation.primitive.name for equation in equations[marks.index(True) + 1 :]]
        if names != ["jit"]:
            shown = ", ".join(dict.fromkeys(names)) or "nothing"
            raise NotAbstractError(
                f"its step is not one compiled function but {len(names)} operations ({shown})"
            )
        program = found.pop("program")
        arguments = [shardings.described(argument) for argument in program.in_tracers]
    jaxpr, options = program.params["jaxpr"], _jit_options(program.params)
    return AbstractStep(jaxpr, partial(_lowered, jaxpr, options, arguments), **found)


def stand_in(batch: Any, rows: int) -> Any:
    """Make host arrays of a batch's shapes, but with `rows` rows; they take no memory."""
    return jax.tree.map(
        lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), (rows, *leaf.shape[1:])), batch
    )


def _boundary() -> jax.Array:
    """Mark the boundary in a trace between `build` and `place`, and the step."""
    return jnp.zeros(())


def _state_bytes(step: TrainStep, shardings: _Shardings) -> int:
    """Bytes of the state on one device; NotAbstractError if nothing shows how it is divided."""
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
    """The shardings of arrays that are being traced."""

    def __init__(self) -> None:
        self._decided: dict[int, tuple[Any, list[Sharding | None]]] = {}
        """The compiler's decisions, by the id of an equation, which is kept alive with them."""

    def described(self, array: Any) -> jax.ShapeDtypeStruct:
        """An array's shape, dtype and sharding."""
        kind = jax.typeof(array)
        return jax.ShapeDtypeStruct(
            kind.shape, kind.dtype, sharding=self.of(array), weak_type=kind.weak_type
        )

    def of(self, array: Any) -> Sharding | None:
        """An array's sharding; None if it is on no device in particular.

        `parent` is the equation that makes it. The parameters of jax.jit's and jax.device_put's
        equations have the sharding; about other results, such as those of a jax.jit without
        out_shardings, the compiler decides.
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

    @contextmanager
    def visible(self) -> Iterator[None]:
        """Give traced arrays a `sharding`, and let jax.set_mesh be used for them, while in here.

        jax offers neither: implementations look at the sharding of an array that they have placed,
        or call their step in the context of a mesh, when they run, and not when they are traced.
        """
        sharding, set_mesh = Tracer.sharding, jax.set_mesh
        Tracer.sharding = property(self.of)  # type: ignore[method-assign, assignment]
        jax.set_mesh = _set_abstract_mesh  # type: ignore[assignment, misc]
        try:
            yield
        finally:
            Tracer.sharding = sharding  # type: ignore[method-assign]
            jax.set_mesh = set_mesh  # type: ignore[misc]


def _decided(equation: Any, arguments: list[jax.ShapeDtypeStruct]) -> list[Sharding | None]:
    """Compile an equation to see the shardings of its results.

    Results of a program that uses no argument, such as zeros, are on no device in particular.
    """
    if all(argument.sharding is None for argument in arguments):
        return [None] * len(equation.outvars)
    if equation.primitive.name == "jit":
        jaxpr, options = equation.params["jaxpr"], _jit_options(equation.params)
    else:
        bind = partial(equation.primitive.bind, **equation.params)
        jaxpr, options = jax.make_jaxpr(bind)(*arguments), {}
    compiled = _lowered(jaxpr, options, arguments).compile()
    shardings = jax.tree.leaves(compiled.output_shardings)
    used = jax.tree.leaves(compiled.input_shardings)
    return shardings if used else [None] * len(shardings)


def _jit_options(params: dict[str, Any]) -> dict[str, Any]:
    """The arguments that jax.jit was called with, from its equation."""

    def known(shardings: Any) -> tuple[Sharding | None, ...]:
        return tuple(one if isinstance(one, Sharding) else None for one in shardings)

    return {
        "in_shardings": known(params["in_shardings"]),
        "out_shardings": list(known(params["out_shardings"])),
        "donate_argnums": tuple(n for n, one in enumerate(params["donated_invars"]) if one),
        "keep_unused": params["keep_unused"],
        "compiler_options": dict(params["compiler_options_kvs"]) or None,
    }


def _lowered(
    jaxpr: Any,
    options: dict[str, Any],
    arguments: list[jax.ShapeDtypeStruct],
    platforms: tuple[str, ...] | None = None,
) -> Any:
    shardings = [argument.sharding for argument in arguments]
    # Arrays whose axes are explicit are traced under their mesh.
    explicit = [
        sharding.mesh.abstract_mesh
        for sharding in shardings
        if isinstance(sharding, NamedSharding) and not sharding.mesh.are_all_axes_auto
    ]
    function = jax.jit(core.jaxpr_as_fun(jaxpr), **options)
    with jax.sharding.use_abstract_mesh(explicit[0]) if explicit else nullcontext():
        return function.trace(*arguments).lower(lowering_platforms=platforms)


def _set_abstract_mesh(mesh: Mesh) -> AbstractContextManager[Any]:
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
