"""Tokens reach the experts they chose, as long as these have slots."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.contract.expert_layers import compute_experts, mixture
from bench.contract.workloads import mlp, moe
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh
from implementations import expert_all_to_all, expert_replicated, expert_tensor_parallel

mix = jax.jit(mixture, static_argnums=4)
one_expert = jax.jit(compute_experts)


def drawn(experts=4, tokens=8, width=6, hidden=10):
    keys = jax.random.split(jax.random.key(0), 4)
    return (
        jax.random.normal(keys[0], (2, tokens, width)),
        jax.random.normal(keys[1], (2, tokens, experts)),
        jax.random.normal(keys[2], (experts, width, hidden)),
        jax.random.normal(keys[3], (experts, hidden, width)),
    )


def by_token(x, logits, up, down, choices):
    """The same, a sequence, a choice and a token after the other."""
    x, share, up, down = map(np.asarray, (x, jax.nn.softmax(logits), up, down))
    slots = choices * x.shape[1] // logits.shape[2]
    outputs = np.zeros(x.shape, np.float32)
    for sequence, own in enumerate(share):
        chosen = np.argsort(-own, axis=-1, kind="stable")[:, :choices]
        used = np.zeros(own.shape[-1], int)
        for choice in range(choices):
            for token, expert in enumerate(chosen[:, choice]):
                used[expert] += 1
                if used[expert] <= slots:
                    weight = own[token, expert] / own[token, chosen[token]].sum()
                    inputs = x[sequence, token][None, None, None]
                    output = one_expert(inputs, up[expert][None], down[expert][None])
                    outputs[sequence, token] += weight * np.asarray(output)[0, 0, 0]
    return outputs


def test_a_mixture_is_the_weighted_sum_of_the_chosen_experts():
    x, logits, up, down = drawn()
    mixed, _ = mix(x, logits, up, down, 2)
    expected = by_token(x, logits, up, down, 2)
    assert (np.abs(expected).max(-1) > 0).all(), "some choice of each token found a slot"
    np.testing.assert_allclose(mixed, expected, rtol=1e-4, atol=1e-5)


def test_who_finds_no_slot_gets_nothing():
    """All tokens choose the first expert, which has a slot for every second."""
    x, _, up, down = drawn(experts=2)
    logits = jnp.tile(jnp.array([9.0, 0.0]), (2, 8, 1))
    mixed, balance = mix(x, logits, up, down, 1)
    assert (np.abs(mixed[:, :4]).max(-1) > 0).all()
    assert not np.asarray(mixed[:, 4:]).any()
    assert balance == pytest.approx(2 / (1 + np.exp(-9)), rel=1e-5)


def test_an_even_load_is_balanced():
    x, _, up, down = drawn(experts=2)
    logits = jnp.tile(9.0 * jnp.eye(2), (2, 4, 1))
    assert mix(x, logits, up, down, 1)[1] == pytest.approx(1)


@pytest.mark.parametrize(
    "implementation", [expert_all_to_all, expert_replicated, expert_tensor_parallel]
)
def test_what_has_no_experts_says_so(implementation):
    mesh = make_mesh(MeshShape.parse("data=2,expert=2"))
    problem = mlp.problem(mlp.SIZES["tiny"](), 8, "fp32")
    reason = implementation.why_unsupported(problem, mesh)
    assert reason is not None
    assert "expert" in reason


def test_experts_that_do_not_divide_say_so():
    mesh = make_mesh(MeshShape.parse("data=1,expert=3"))
    reason = expert_all_to_all.why_unsupported(moe.problem(moe.SIZES["tiny"](), 9, "fp32"), mesh)
    assert reason == "the dimension `expert` has size 8, which is not divisible by expert=3"
