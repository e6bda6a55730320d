"""The proof's arithmetic: float64, in programs that compile quickly because they are not timed."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bench.contract.logical_axes import traced_with
from bench.contract.model_state import is_float
from bench.worker.prove.carried_state import is_key
from bench.worker.read.compilation import jax_options, remembered_programs

is_proving: ContextVar[bool] = ContextVar("is_proving", default=False)
"""Whether programs are built for a proof, and never timed."""


@contextmanager
def cheap_programs(programs: Path) -> Iterator[None]:
    """Compile for a proof: on CPU with few optimizations, which would save no time on GPUs."""
    little = jax_options(jax_disable_most_optimizations=jax.default_backend() == "cpu")
    with traced_with(is_proving, True), little, remembered_programs(programs):
        yield


@contextmanager
def exact_arithmetic(programs: Path) -> Iterator[None]:
    """Compute in float64, and compile as `cheap_programs` does."""
    with jax_options(jax_enable_x64=True), jax.enable_x64(True), cheap_programs(programs):
        yield


def widened(tree: Any) -> Any:
    """Convert the floats of a tree to float64 on the host; integers and keys stay as they are."""

    def widen(leaf: Any) -> Any:
        array = leaf if is_key(leaf) else np.asarray(leaf)
        return array.astype(np.float64) if is_float(array) else array

    return jax.tree.map(widen, tree)


def rounding(precision: str, platform: str) -> float:
    """Return 2^-bits for the shortest significand, in bits, between batch and update.

    On GPUs and TPUs, JAX's default for float32 matrix products is TensorFloat-32 (10 bits) and
    bfloat16 (7 bits), unless `jax_default_matmul_precision` asks for more.
    """
    bits = {"fp64": 52, "fp32": 23, "fp16": 10, "bf16": 7}[precision]
    config: Any = jax.config  # its flags are not in its stubs in every version
    if precision == "fp32" and config.jax_default_matmul_precision in (None, "default"):
        bits = {"gpu": 10, "tpu": 7}.get(platform, bits)
    return float(2.0**-bits)
