"""The steps of a turn, repeated from the same state in spans as short as those of the checks.

From the time between its calls, a step can tell a long span from a short one, and do less in long
spans than in checked ones. It then reaches another state than as many steps in short spans.
"""

import secrets
import time

import jax

from bench.worker.prove.carried_state import Flat, flat
from bench.worker.prove.relative_errors import ROUNDINGS, distance
from bench.worker.prove.state_reader import StateCopy, is_elsewhere
from bench.worker.time.clock import Arm

LONGEST = 3
"""Most steps of a short span."""
PAUSE_S = 1e-3
"""Seconds between short spans: as long as it takes to copy a small state for a check."""
SHARE = 0.1
"""Largest difference of a repetition, relative to the change that its turn makes: rounding is far
below, and leaving out one of ten updates above."""


def can_be_repeated(arm: Arm) -> bool:
    """Whether an arm's turns can be repeated.

    A step that changes its state in place may hold on to it, a foreign step's state is in another
    process, and accelerators may lack the memory for a second state.
    """
    alone = jax.process_count() == 1 and jax.default_backend() == "cpu"
    is_here = arm.train_step is not None and not is_elsewhere(arm.train_step)
    return alone and arm.rebuilds_state and is_here


def why_other(arm: Arm, start: StateCopy, steps: int) -> str:
    """Say how the steps of an arm since `start` differ from a repetition; empty if they do not."""
    assert arm.train_step is not None, "its turns can be repeated"  # noqa: S101
    params = arm.train_step.params

    def repeated() -> Flat:
        state, left = start.restored(), steps
        while left:
            span = min(left, 1 + secrets.randbelow(LONGEST))
            for _ in range(span):
                state, loss = arm.step(state, arm.batch)
            jax.block_until_ready((state, loss))
            time.sleep(PAUSE_S)
            left -= span
        return flat(params(state))

    before, after, again = flat(params(start.restored())), flat(params(arm.state)), repeated()
    off, moved = distance(again, after), distance(after, before)
    if not off > SHARE * max(moved, distance(again, before)):  # nor if one of them is NaN
        return ""
    if not off > ROUNDINGS * distance(again, repeated()):
        return ""  # its repetitions differ as well, for instance near a minimum
    return (
        "repeated from the same state in short spans, they end in a different state: the step does "
        "less in the long spans that are timed"
    )
