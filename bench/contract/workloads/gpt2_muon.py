"""gpt2 with Muon: the update of a kernel is its momentum, orthogonalized as a whole matrix.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces the singular values
of a momentum matrix by about 1, with five Newton-Schulz iterations. Queries, keys and values are
one matrix each, which includes all heads. Embeddings, biases and norms keep Adam. With
`consistent_rms`, Muon's updates are as large as Adam's (Liu et al. 2025,
https://arxiv.org/abs/2502.16982), so both take one learning rate. A device that holds a shard of a
matrix cannot update it by itself: see `Problem.elementwise`.
"""

from dataclasses import replace
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, muon

from bench.contract import Params, Problem
from bench.contract.clipping import clip_by_global_norm
from bench.contract.logical_axes import path_of
from bench.contract.workloads import gpt2

SIZES = {name: gpt2.SIZES[name] for name in ("tiny", "nano", "124m")}
DEFAULT_SIZE = gpt2.DEFAULT_SIZE

MATRICES = {
    "qkv/kernel": MuonDimensionNumbers(-4, (-2, -1)),
    "out/product/kernel": MuonDimensionNumbers((-3, -2), -1),
    "up/kernel": MuonDimensionNumbers(-2, -1),
    "down/product/kernel": MuonDimensionNumbers(-2, -1),
}
"""Dimensions of inputs and of outputs, by the end of a kernel's path. Further dimensions, such as
that of stacked layers, number separate matrices."""


def matrices(params: Params) -> Params:
    """Return each kernel's MuonDimensionNumbers, and None for other parameters."""

    def of(path: Any, _: Any) -> MuonDimensionNumbers | None:
        name = path_of(path).removesuffix("/value")  # nnx.Optimizer passes nnx.Params at first
        return next((own for end, own in MATRICES.items() if name.endswith(f"/{end}")), None)

    return jax.tree_util.tree_map_with_path(of, params)


def problem(
    config: gpt2.Config, batch_size: int, precision: str, remat: str = "", scan_layers: bool = False
) -> Problem:
    """Return gpt2's problem with clipped Muon."""
    optimizer = muon(
        1e-3,
        weight_decay=0.1,
        adam_b2=0.95,
        muon_weight_dimension_numbers=matrices,
        consistent_rms=0.2,
    )
    return replace(
        gpt2.problem(config, batch_size, precision, remat, scan_layers),
        optimizer=optax.chain(clip_by_global_norm(1.0), optimizer),
        elementwise=False,
        outline={},
    )
