"""Names of a block's arms besides its implementations, and of the ways to feed and save a step.

An input arm, which takes a new batch in every step, runs the same implementation in the same block
and rounds as the arm that trains on one resident batch. The cost of input is therefore an ordinary
ratio: the input arm's step time over that of the implementation's own arm.
"""

from collections.abc import Collection

TWIN = "twin"
"""The second copy of a block's baseline (the A/A twin)."""

WHOLE_BATCH = "whole batch"
"""The reference of loss curves: the whole batch on one device, in the timed dtypes."""
IN_PARTS = "whole batch in parts"
"""The same reference with its batch in the fewest equal parts, whose gradients are averaged."""
EXACT = "whole batch in float64"

INPUT_WAYS = {
    "loaded": "each batch is made on the host and placed when its step asks for it",
    "prefetched": "batches are made and placed ahead of the steps, a bounded number of them",
}
"""Ways in which a step may get its batch, with their descriptions."""

CHECKPOINT_MODES = {
    "sync": "training goes on when the checkpoint is complete",
    "async": "training goes on once the state is copied, while its files are written",
}
"""Modes in which a state may be saved, with their descriptions."""


def input_arm(implementation: str, way: str) -> str:
    """Name the arm of an implementation that takes its input in a way: `jit_spmd+loaded`."""
    return f"{implementation}+{way}"


def implementation_of(arm: str) -> str:
    """Return the implementation of an arm."""
    return arm.partition("+")[0]


def version_arm(implementation: str, variant: str) -> str:
    """Name an implementation's arm under another version of jax: `jit_spmd@old`."""
    return f"{implementation}@{variant}"


def version_opponents(arms: Collection[str]) -> dict[str, str]:
    """Map each arm under another version to the present one's, if both are among `arms`."""
    own = {arm: arm.partition("@")[0] for arm in arms if "+" not in arm}
    return {arm: name for arm, name in own.items() if arm != name and name in arms}


def input_opponents(arms: Collection[str]) -> dict[str, str]:
    """Map each arm that takes input to its implementation's own arm, if both are among `arms`."""
    own = {arm: implementation_of(arm) for arm in arms}
    return {arm: name for arm, name in own.items() if arm != name and name in arms}
