"""Names of a block's arms besides its implementations; ways to feed, cut and save a step.

An input arm, which takes a new batch in every step, runs the same implementation in the same block
and rounds as the arm that trains on one resident batch. The cost of input is therefore an ordinary
ratio: the input arm's step time over that of the implementation's own arm. An ablated arm, which
lacks a part of the step, is timed in the same way; what it lacks of the whole is the part's share.
"""

from collections.abc import Collection

from bench.records.cells import base_of

TWIN = "twin"
"""The second copy of a block's baseline (the A/A twin)."""
TWINS = 1

WHOLE_BATCH = "whole batch"
"""The reference of loss curves, which computes the whole batch in the timed dtypes."""
IN_PARTS = "whole batch in parts"
"""The same reference with its sums in another order."""

INPUT_WAYS = {
    "loaded": "each batch is made on the host and placed when its step asks for it",
    "prefetched": "batches are made and placed ahead of the steps, a bounded number of them",
}
"""Ways in which a step may get its batch, with their descriptions."""

ABLATIONS = {
    "local": "collectives are replaced by local operations with results of the same shapes",
    "no-update": "gradients are computed and reduced, but the optimizer does nothing",
    "forward": "the loss is computed, and nothing that follows from its gradients",
}
"""Ways in which a step may lack a part, with their descriptions."""

CHECKPOINT_MODES = {
    "sync": "training goes on when the checkpoint is complete",
    "async": "training goes on once the state is copied, while its files are written",
}
"""Modes in which a state may be saved, with their descriptions."""


def arm_beside(implementation: str, way: str) -> str:
    """Name the arm that runs an implementation in a way of its own: `jit_spmd+loaded`."""
    return f"{implementation}+{way}"


def implementation_of(arm: str) -> str:
    """Return the implementation of an arm."""
    return arm.partition("+")[0]


def version_arm(implementation: str, variant: str) -> str:
    """Name an implementation's arm under another version of jax: `jit_spmd@old`."""
    return f"{implementation}@{variant}"


def versions_of(arms: Collection[str]) -> dict[str, str]:
    """Map arms under another version, except bases, to the present one, if `arms` has both."""
    own = {arm: arm.partition("@")[0] for arm in arms if "+" not in arm}
    others = {arm: name for arm, name in own.items() if arm not in (name, base_of(name))}
    return {arm: name for arm, name in others.items() if name in arms}


def is_ablated(arm: str) -> bool:
    """Return whether an arm runs a step that lacks a part."""
    return arm.partition("+")[2] in ABLATIONS


def own_arms(arms: Collection[str], ways: Collection[str]) -> dict[str, str]:
    """Map arms of one of these ways to their implementation's own arm, if both are among `arms`."""
    others = {arm: implementation_of(arm) for arm in arms if arm.partition("+")[2] in ways}
    return {arm: own for arm, own in others.items() if own in arms}
