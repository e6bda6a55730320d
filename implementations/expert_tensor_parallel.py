"""Tensor-parallel experts: each device holds a shard of every expert and processes all tokens.

The batch is split over `data` and `expert`; the hidden layer of every expert is divided over
`expert`, and everything else is replicated. An all-gather along `expert` brings all devices' slots
together; each device applies its shard of all experts, and a reduce-scatter sums the partial
results and returns each device's own slots. The backward pass swaps the two. With e devices, each
collective moves e - 1 times a device's slots (4 bytes per value), e times as much as in
expert_all_to_all. In return, work is equal for any routing, and e need not divide the experts.

The experts' gradients are all-reduced over `data`; all others, and the loss, over both axes.
"""

import jax
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.contract.expert_layers import compute_experts, expert_parallel_step, why_no_experts

RULES = (("mlp", "expert"),)


def experts(inputs: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Apply this device's shard of each expert to all slots (batch, experts, slots, width)."""
    everyones = jax.lax.all_gather(inputs, "expert", axis=0, tiled=True)
    partial_sums = compute_experts(everyones, up, down)
    return jax.lax.psum_scatter(partial_sums, "expert", scatter_dimension=0, tiled=True)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    if reason := why_no_experts(problem, mesh, RULES, "mlp"):
        return reason
    names = {name for names in problem.axis_names.values() for name in names}
    return None if "expert" in names else "the model has no experts"


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    return expert_parallel_step(problem, mesh, experts, RULES)
