"""Distances are those of whole arrays, computed in chunks; snapshots survive donation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.worker.prove import relative_errors
from bench.worker.prove.carried_state import flat, snapshot
from bench.worker.prove.failures import WrongStepError
from bench.worker.prove.relative_errors import describe, distance, length, rms, update_errors


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(relative_errors, "CHUNK", 3)


def drawn(seed: int, dtype: type = np.float64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=(4, 5)).astype(dtype), "b": rng.normal(size=7).astype(dtype)}


def vector(tree: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([tree["w"].ravel(), tree["b"]]).astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_distances_and_lengths_are_root_mean_squares(dtype):
    ours, theirs = drawn(0, dtype), drawn(1)
    difference = vector(ours) - vector(theirs)
    assert distance(ours, theirs) == pytest.approx(np.sqrt(np.mean(difference**2)), rel=1e-12)
    assert length(theirs) == pytest.approx(np.sqrt(np.mean(vector(theirs) ** 2)), rel=1e-12)
    assert rms(theirs["w"].T) == pytest.approx(rms(theirs["w"]), rel=1e-12)
    assert distance({}, {}) == rms(np.zeros(0)) == 0


def test_masks_select_elements_across_chunks():
    ours, theirs, start = drawn(0), drawn(1), drawn(2)
    mask = {path: leaf > 0 for path, leaf in drawn(3).items()}
    found = update_errors(ours, theirs, start, mask)
    for path, selected in mask.items():
        difference = (ours[path] - theirs[path])[selected]
        expected = np.sqrt(np.mean(difference**2)) / distance(theirs, start)
        assert found[path] == pytest.approx(expected, rel=1e-12)


def test_nan_is_no_distance_at_all():
    ours = drawn(0)
    ours["w"][3, 4] = np.nan
    assert np.isnan(distance(ours, drawn(1)))
    assert np.isnan(update_errors(ours, drawn(1), drawn(2), None)["w"])


def test_other_parameters_are_refused():
    with pytest.raises(WrongStepError, match="differ from the model's in names or shapes: b"):
        distance({"w": drawn(0)["w"]}, drawn(1))


def test_what_is_copied_survives_a_step_that_donates_it():
    step = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    x = jnp.arange(1024, dtype=jnp.float32) + 0.0
    kept = flat(x, np.float32)
    step(x).block_until_ready()
    assert x.is_deleted()
    assert np.array_equal(kept[""], np.arange(1024))
    assert kept[""].dtype == np.float32


def test_snapshots_keep_their_dtype_down_to_float32():
    tree = {"half": jnp.ones(2, jnp.bfloat16), "single": jnp.ones(2), "count": jnp.zeros(2, int)}
    found = {path: leaf.dtype for path, leaf in snapshot(tree).items()}
    assert found == {"['count']": np.int32, "['half']": np.float32, "['single']": np.float32}
    assert flat(tree)["['half']"].dtype == np.float64


def test_an_error_that_is_nan_is_described_as_too_large():
    check = {"name": "as timed", "loss_error": float("nan"), "loss_tolerance": 1.0}
    assert "relative error of the loss nan, more than the allowed 1.0e+00" in describe(check)
