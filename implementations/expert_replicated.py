"""Replicated experts: data parallelism over `data` and `expert`, as a baseline.

Every device holds all experts and applies them to its own tokens, as jax.shard_map with one psum
does for any model. No token is communicated. The price is memory for all experts and their
optimizer state, and an all-reduce of all gradients and the loss over both axes (4 bytes per
parameter). Most of these bytes are the experts', which expert_all_to_all reduces only over `data`.
"""

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.contract.expert_layers import compute_experts, expert_parallel_step, why_no_experts


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return why_no_experts(problem, mesh, (("expert", None),), "expert")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    return expert_parallel_step(problem, mesh, compute_experts)
