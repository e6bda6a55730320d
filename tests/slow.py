"""Parameters with which a test runs only in `nox -s conformance`."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*cases: Any) -> list[Any]:
    """Mark each case as slow. A tuple holds one value for each of the test's parameters."""
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*each, marks=pytest.mark.slow) for each in values]


LIKE_OTHERS = {
    *("context_gathered", "context_ulysses", "expert_replicated", "expert_tensor_parallel"),
    *("owner_computes", "context_ring", "compressed_int8", "zero2"),
    *("shard_map_psum", "shard_map_in_backward", "shard_map_bucketed"),
    "tensor_parallel_spmd_activations",
}
"""Implementations that place their state as another one does, so that fewer tests try them."""
