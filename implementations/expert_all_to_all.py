"""Expert parallelism: each device holds some experts, and all-to-alls route tokens to them.

The batch is split over `data` and `expert`; the experts are divided over `expert`, and everything
else is replicated. A device routes its own tokens into slots, the same number for each expert. One
all-to-all along `expert` sends every expert's slots to the device that holds it, and after the
experts, another sends the outputs back (Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668).
With e devices along `expert`, each all-to-all sends (e - 1) / e of a device's slots (4 bytes per
value), and the backward pass repeats both. Uneven routing wastes slots rather than time.

The point is that the experts' gradients are all-reduced only over `data`; replicated experts take
e times the memory and are all-reduced over both axes, as all other gradients and the loss are here.
"""

from functools import partial

import jax
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.contract.expert_layers import compute_experts, expert_parallel_step, why_no_experts

RULES = (("expert", "expert"),)


def experts(inputs: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Exchange slots (batch, experts, slots, width), so that each device applies its experts."""
    exchange = partial(jax.lax.all_to_all, axis_name="expert", tiled=True)
    own = exchange(inputs, split_axis=1, concat_axis=0)
    return exchange(compute_experts(own, up, down), split_axis=0, concat_axis=1)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return why_no_experts(problem, mesh, RULES, "expert")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    return expert_parallel_step(problem, mesh, experts, RULES)
