"""Diagnosis of losses and gradients that are averages over the steps so far."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy  # which loads scipy.optimize, for 0.3 s, only where it is used

from bench.worker.prove.altered_optimizers import LESS, REPLAYS
from bench.worker.prove.carried_state import flat
from bench.worker.prove.known_mistakes import Observed
from bench.worker.prove.optimizer_numbers import few_digits
from bench.worker.prove.trajectory import vector

AVERAGES: tuple[tuple[str, Callable[[float, int, int], float]], ...] = (
    ("averaged", lambda decay, age, _: (1 - decay) * decay**age),
    ("averaged", lambda decay, age, now: (1 - decay) * decay**age / (1 - decay ** (now + 1))),
    ("averaged", lambda decay, age, now: decay**age * (1 if age == now else 1 - decay)),
    ("summed", lambda decay, age, _: decay**age),
)
"""Weights, in step `now`, of a value that is `age` steps old: in moving averages that begin with 0,
are corrected for that or begin with the first value, and in momentum."""
START = 0.9
"""The first decay that is tried."""


def averaged_loss(seen: Observed) -> str:
    """Name the moving average that the losses are, if the updates are right; else empty."""
    ours, right = seen.ours.losses, seen.truth.losses
    for what, weight in AVERAGES if seen.ends_at(seen.truth) else ():
        decay, far = _nearest(weight, len(right), lambda weights: weights @ right - ours)
        if far <= seen.match * np.linalg.norm(right):
            return f"the loss is {what} over the steps, with a decay of {few_digits(decay)}"
    return ""


def averaged_gradients(seen: Observed) -> str:
    """Name the moving average of gradients that reproduces the steps; empty if none does.

    Later gradients depend a little on the decay, so the two are computed in turn.
    """
    later, steps = vector(seen.ours.last, seen.ours.first) / -seen.rate, len(seen.batches)
    for what, weight in AVERAGES:
        decay, before = START, np.inf
        for _ in range(REPLAYS):
            kept: list[Any] = []
            gradients = weighted(seen, _weights(weight, decay, steps), kept)
            if seen.ends_at(seen.steps(gradients)):
                why = f"the gradients are {what} over the steps"
                return f"{why}, with a decay of {few_digits(decay)}"
            each = np.stack([vector(flat(grads)) for grads in kept], axis=1)
            off = lambda weights, of=each: of @ weights[1:].sum(0) - later  # noqa: E731 - one line
            decay, far = _nearest(weight, steps, off)
            if far > LESS * before:
                break
            before = far
    return ""


def weighted(seen: Observed, weights: Any, kept: list[Any]) -> Callable[..., Any]:
    """Return a function that adds gradients to `kept` and sums these by weights (steps, steps)."""

    def gradients(*given: Any) -> Any:
        of_loss, grads = seen.gradients(*given)
        kept.append(grads)
        own = np.asarray(weights, float)[len(kept) - 1, : len(kept)]
        return of_loss, jax.tree.map(lambda *each: np.tensordot(own, each, 1), *kept)

    return gradients


def _weights(of: Callable[[float, int, int], float], decay: float, steps: int) -> np.ndarray:
    """Return the weights (steps, steps): for each step, those of every step's value."""
    of_steps = range(steps)
    return np.array(
        [[of(decay, now - at, now) if at <= now else 0 for at in of_steps] for now in of_steps]
    )


def _nearest(
    of: Callable[[float, int, int], float], steps: int, off: Callable[[np.ndarray], Any]
) -> tuple[float, float]:
    """Return the decay whose weights are the least `off`, and by how much."""
    found = scipy.optimize.minimize_scalar(
        lambda decay: np.linalg.norm(off(_weights(of, decay, steps))),
        bounds=(0, 1),
        method="bounded",
        options={"xatol": 1e-13},
    )
    return float(found.x), float(found.fun)
