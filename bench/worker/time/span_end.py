"""The end of a span: when its last step was done on the devices."""

import time
from typing import Any

import jax
from jaxlib.xla_client import ArrayImpl, batched_block_until_ready

from bench.worker.prove.failures import WrongStepError

now, _leaves, _wait_for_all = time.perf_counter_ns, jax.tree.leaves, batched_block_until_ready
wait_for, _is_ready = ArrayImpl.block_until_ready, ArrayImpl.is_ready
"""Bound before any step is loaded, so that a step cannot replace the clock that times it, not even
for a moment."""


def done_at(state: Any, loss: Any) -> int:
    """Wait until a step's loss and state are ready; return when they were, by `now`.

    Flattening the state is the harness's own work: it does not count if all arrays were ready when
    the loss was, and otherwise overlaps with waiting for them. WrongStepError if the loss is no
    array.
    """
    if type(loss) is not ArrayImpl:
        raise WrongStepError(f"the loss becomes a {type(loss).__name__} while it is timed")
    wait_for(loss)
    end = now()
    leaves = _leaves(state)
    arrays = [leaf for leaf in leaves if type(leaf) is ArrayImpl]
    # Arrays of PRNG keys have no is_ready, but can be waited for.
    keys = [x for x in leaves if type(x) is not ArrayImpl and isinstance(x, jax.Array)]
    if keys or not all(map(_is_ready, arrays)):
        _wait_for_all(arrays)
        for key in keys:
            key.block_until_ready()
        end = now()
    return end
