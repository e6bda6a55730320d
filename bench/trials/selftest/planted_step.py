"""The planted workload as a jitted JAX step. Runs in the worker of trials alone."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import jax
import jax.numpy as jnp

from bench.trials.selftest.planted_kernel import SEED

Step: TypeAlias = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""step(state, batch) -> (state, loss), all scalars."""


def planted_step(library: Path, iterations: int) -> tuple[Step, jax.Array, jax.Array]:
    """A step that spins `iterations` times on the CPU, in the code that every other tool runs.

    Each call makes a program of its own, but all are alike: how long the step takes is only in its
    batch, which is the number of iterations. Nothing is donated.

    Args:
      library: as `bench.trials.selftest.planted_kernel.build_ffi` makes it.
      iterations: below 2**31.

    Returns:
      The step, its first state (float32) and its batch (int32).
    """
    spin = jax.ffi.ffi_call(_register(library.resolve()), jax.ShapeDtypeStruct((), jnp.float32))

    @jax.jit
    def step(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        # The state is what was computed, so that no step can be left out.
        new = spin(batch, state)
        return new, new - state

    return step, jnp.float32(SEED), jnp.int32(iterations)


@functools.cache
def _register(library: Path) -> str:
    """The name that XLA knows the handler by: its path, as a name cannot be given twice."""
    handler = ctypes.CDLL(str(library)).lockstep_spin_ffi
    jax.ffi.register_ffi_target(str(library), jax.ffi.pycapsule(handler), platform="cpu")
    return str(library)
