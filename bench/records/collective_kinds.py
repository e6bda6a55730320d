"""The kinds of collectives, by their HLO names, and the bytes that each sends."""

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def bus_factor(kind: str, members: int) -> float:
    """Return the bytes that a device has to send per byte of payload, as on a ring.

    Patarasuk and Yuan, Journal of Parallel and Distributed Computing 69 (2009), 117, and nccl-tests
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): 2 (n - 1) / n for an
    all-reduce, (n - 1) / n for a reduce-scatter, all-gather or all-to-all. A collective-permute
    sends the whole payload. ValueError if the kind is not one of KINDS.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown collective {kind!r}; choose from: {', '.join(KINDS)}")
    share = (members - 1) / members
    return {"all-reduce": 2 * share, "collective-permute": 1.0}.get(kind, share)
