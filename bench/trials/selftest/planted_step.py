"""The planted workload as a jitted JAX step, which runs in the worker of `own_trials`."""

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
    """Create a step that spins on the CPU, in the machine code that every other tool runs.

    Each call creates a program of its own, but all programs are identical: the duration of the step
    depends only on its batch, which is the number of iterations. Nothing is donated.

    Args:
      library: path of the library that `planted_kernel.build_ffi` compiles.
      iterations: below 2**31.

    Returns:
      The step, its first state (float32 scalar) and its batch (int32 scalar).
    """
    spin = jax.ffi.ffi_call(_register(library.resolve()), jax.ShapeDtypeStruct((), jnp.float32))

    @jax.jit
    def step(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        # The new state depends on the computation, so that no step can be skipped.
        new = spin(batch, state)
        return new, new - state

    return step, jnp.float32(SEED), jnp.int32(iterations)


@functools.cache
def _register(library: Path) -> str:
    """Register the handler under its path, as XLA accepts a name only once; return the name."""
    handler = ctypes.CDLL(str(library)).lockstep_spin_ffi
    jax.ffi.register_ffi_target(str(library), jax.ffi.pycapsule(handler), platform="cpu")
    return str(library)
