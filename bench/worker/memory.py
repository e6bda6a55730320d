"""Memory of one device, from the compiler's own plan of the programs a step runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from bench.rows import MemoryBytes


def largest_program(programs: Sequence[Any]) -> MemoryBytes | None:
    """Planned memory of the largest of the programs.

    A step of several programs runs them one after the other on a device, so the largest is what
    the device must hold; state that another program keeps meanwhile is not in it.

    Returns:
      None if there are no programs or the backend gives no figures.
    """
    plans = map(memory_bytes, programs)
    return max((plan for plan in plans if plan), key=lambda plan: plan["total_bytes"], default=None)


def memory_bytes(program: Any) -> MemoryBytes | None:
    """One program's plan, per device; None if the backend has no figures."""
    try:
        stats = program.get_compiled_memory_stats()
    except jax.errors.JaxRuntimeError:  # unimplemented by this backend
        return None
    return MemoryBytes(
        total_bytes=stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        + stats.temp_size_in_bytes
        - stats.alias_size_in_bytes,
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        temporary_bytes=stats.temp_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
    )
