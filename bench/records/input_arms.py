"""Arms that take their input in every step, beside those that train on one resident batch. No jax.

Such an arm is the same implementation in the same block and rounds, so that what input costs is a
ratio as any other: its step time over that of the implementation's own arm.
"""

from __future__ import annotations

from collections.abc import Collection

WAYS = {
    "loaded": "each batch is made on the host and placed when its step asks for it",
    "prefetched": "batches are made and placed ahead of the steps, a bounded number of them",
}
"""How a step may get its batch, and what that means."""


def fed(implementation: str, way: str) -> str:
    """The name of an implementation's arm that takes its input in a way: `jit_spmd+loaded`."""
    return f"{implementation}+{way}"


def owner(arm: str) -> str:
    """The implementation that an arm is of."""
    return arm.partition("+")[0]


def opponents(arms: Collection[str]) -> dict[str, str]:
    """What each of these arms that takes input is compared with: its implementation's own arm."""
    return {arm: owner(arm) for arm in arms if owner(arm) != arm and owner(arm) in arms}
