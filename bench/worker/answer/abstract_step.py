"""An implementation's step as a program that has not run, on devices that hold nothing.

`build`, `place` and `step` are traced as one function, so that no array is made: a model that is
replicated on 1,024 devices takes no memory. In its jaxpr, what `build` compiles, such as a copy of
the parameters with `out_shardings`, says how its results are divided, and the step is the one
compiled function behind all that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core
from jax.sharding import (
    AbstractMesh,
    Mesh,
    NamedSharding,
    Sharding,
    SingleDeviceSharding,
)

from bench.contract import Implementation, Problem, TrainStep


class NotAbstractError(Exception):
    """The step cannot be had without running something; the message says why."""


@dataclass(frozen=True)
class AbstractStep:
    """A step that is one compiled function, and what it is called with."""

    jaxpr: Any
    """The function, a closed jaxpr."""
    arguments: list[jax.ShapeDtypeStruct]
    """Its arguments: of the state, of the batch, and constants."""
    state: list[jax.ShapeDtypeStruct]
    """All arrays of the state."""
    options: dict[str, Any]
    """Of jax.jit: shardings, donation."""
    mesh: AbstractMesh | None
    """Of explicit axes that it is traced under."""
    bubble: float

    def compile(self) -> Any:
        """The compiled program (jax.stages.Compiled)."""
        return _compiled(self.jaxpr, self.options, self.arguments, self.mesh)

    @property
    def state_bytes(self) -> int:
        """Of the state, on one device."""
        return sum(map(device_bytes, self.state))


def device_bytes(array: jax.ShapeDtypeStruct) -> int:
    """What a device holds of an array."""
    shape = array.sharding.shard_shape(array.shape) if array.sharding else array.shape
    return int(np.prod(shape, dtype=np.int64)) * array.dtype.itemsize


def abstract_step(
    implementation: Implementation, problem: Problem, mesh: Mesh, batch: Any
) -> AbstractStep:
    """Trace an implementation from `build` to the end of its first step.

    Args:
      implementation: one that says that it can run this.
      problem: draws its own parameters.
      mesh: where to.
      batch: arrays of NumPy, or what looks like them, such as `stand_in` makes.

    Raises:
      NotAbstractError: the step is not one compiled function, or an array of the state is made
        outside of any, so that nothing says how it is divided.
      Exception: whatever the implementation raises, also because it wants values that are not there
        while it is traced.
    """
    shardings = _Shardings()
    found: dict[str, Any] = {}

    def whole() -> Any:
        step = implementation.build(problem, mesh)
        placed = step.place(batch)
        found["bubble"] = float(step.bubble)
        found["state"] = _described_state(step, shardings)
        boundary = jax.jit(_boundary)()
        state, loss = step.step(step.state, placed)
        found["program"] = getattr(loss, "parent", None)
        return boundary, state, loss

    with shardings.told():
        equations = jax.make_jaxpr(whole)().jaxpr.eqns
        programs = equations[_place_of_boundary(equations) + 1 :]
        names = [equation.primitive.name for equation in programs]
        if names != ["jit"]:
            shown = ", ".join(dict.fromkeys(names)) or "nothing"
            raise NotAbstractError(
                f"its step is not one compiled function, but {len(names)} operations ({shown})"
            )
        program = found["program"]
        arguments = [shardings.described(argument) for argument in program.in_tracers]
    return AbstractStep(
        jaxpr=program.params["jaxpr"],
        arguments=arguments,
        state=found["state"],
        options=_jit_options(program.params),
        mesh=_explicit_mesh(arguments),
        bubble=found["bubble"],
    )


def stand_in(batch: Any, rows: int) -> Any:
    """Host arrays of a batch's shapes, but with `rows` rows; they take no memory."""
    return jax.tree.map(
        lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), (rows, *leaf.shape[1:])), batch
    )


def _boundary() -> jax.Array:
    """What is traced before it is `build` and `place`, what comes after is the step."""
    return jnp.zeros(())


def _place_of_boundary(equations: Any) -> int:
    return next(
        number
        for number, equation in enumerate(equations)
        if equation.params.get("name") == _boundary.__name__
    )


def _described_state(step: TrainStep, shardings: _Shardings) -> list[jax.ShapeDtypeStruct]:
    """Raises NotAbstractError where nothing says how an array is divided."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(step.state):
        described = shardings.described(leaf)
        if described.shape and described.sharding is None:
            name = jax.tree_util.keystr(path)
            raise NotAbstractError(
                f"nothing says how its state{name} is divided: make it in a function of jax.jit "
                "with out_shardings, or by jax.device_put"
            )
        found.append(described)
    return found


class _Shardings:
    """How arrays are divided that are being traced."""

    def __init__(self) -> None:
        self._decided: dict[int, tuple[Any, list[Sharding | None]]] = {}
        """By the id of an equation, which is kept: what the compiler said of it."""

    def described(self, array: Any) -> jax.ShapeDtypeStruct:
        """An array's shape, dtype and sharding."""
        kind = jax.typeof(array)
        return jax.ShapeDtypeStruct(
            kind.shape, kind.dtype, sharding=self.of(array), weak_type=kind.weak_type
        )

    def of(self, array: Any) -> Sharding | None:
        """An array's sharding; None if it is on no device in particular.

        `parent` is the equation that makes it, whose parameters have the sharding of what jax.jit
        or jax.device_put makes. Of other results, such as those of a jax.jit that was not told one,
        the compiler decides.
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
            asked = equation.params["out_shardings"][number]
            if isinstance(asked, Sharding):
                return asked
        if id(equation) not in self._decided:
            arguments = [self.described(argument) for argument in equation.in_tracers]
            self._decided[id(equation)] = equation, _decided(equation, arguments)
        return self._decided[id(equation)][1][number]

    @contextmanager
    def told(self) -> Iterator[None]:
        """While in here, traced arrays have a `sharding`, and jax.set_mesh may be used for them.

        jax offers neither: an implementation asks what it has just placed, or calls its step in the
        context of a mesh, when it runs, and not when it is traced.
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
    """What the compiler decides for an equation's results.

    Those of a program that uses no argument, such as zeros, are on no device in particular.
    """
    if all(argument.sharding is None for argument in arguments):
        return [None] * len(equation.outvars)
    if equation.primitive.name == "jit":
        jaxpr, options = equation.params["jaxpr"], _jit_options(equation.params)
    else:
        bind = partial(equation.primitive.bind, **equation.params)
        jaxpr, options = jax.make_jaxpr(bind)(*arguments), {}
    compiled = _compiled(jaxpr, options, arguments, _explicit_mesh(arguments))
    shardings = jax.tree.leaves(compiled.output_shardings)
    used = jax.tree.leaves(compiled.input_shardings)
    return shardings if used else [None] * len(shardings)


def _jit_options(params: dict[str, Any]) -> dict[str, Any]:
    """What jax.jit was told of a function, from its equation."""

    def told(shardings: Any) -> tuple[Sharding | None, ...]:
        return tuple(one if isinstance(one, Sharding) else None for one in shardings)

    return {
        "in_shardings": told(params["in_shardings"]),
        "out_shardings": list(told(params["out_shardings"])),
        "donate_argnums": tuple(n for n, one in enumerate(params["donated_invars"]) if one),
        "keep_unused": params["keep_unused"],
        "compiler_options": dict(params["compiler_options_kvs"]) or None,
    }


def _compiled(
    jaxpr: Any,
    options: dict[str, Any],
    arguments: list[jax.ShapeDtypeStruct],
    mesh: AbstractMesh | None,
) -> Any:
    function = jax.jit(core.jaxpr_as_fun(jaxpr), **options)
    if mesh is None:
        return function.lower(*arguments).compile()
    with jax.sharding.use_abstract_mesh(mesh):
        return function.lower(*arguments).compile()


def _explicit_mesh(arguments: list[jax.ShapeDtypeStruct]) -> AbstractMesh | None:
    """The mesh of arrays whose axes are explicit; None if there are none."""
    for argument in arguments:
        sharding = argument.sharding
        if isinstance(sharding, NamedSharding) and not sharding.mesh.are_all_axes_auto:
            return cast("AbstractMesh", sharding.mesh.abstract_mesh)
    return None


def _set_abstract_mesh(mesh: Mesh) -> AbstractContextManager[Any]:
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
