"""The kinds of collective operations, and how much each one sends."""

from __future__ import annotations

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def bus_factor(kind: str, members: int) -> float:
    """Bytes that a device has to send per byte of payload.

    Source: nccl-tests, "Bus bandwidth"
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): 2 (n - 1) / n for an
    all-reduce; (n - 1) / n for a reduce-scatter, an all-gather and an all-to-all. A
    collective-permute sends its whole payload.

    Raises:
      ValueError: `kind` is not in KINDS.
    """
    share = (members - 1) / members
    match kind:
        case "all-reduce":
            return 2 * share
        case "all-gather" | "reduce-scatter" | "all-to-all":
            return share
        case "collective-permute":
            return 1.0
    raise ValueError(f"unknown collective {kind!r}; there are {', '.join(KINDS)}")
