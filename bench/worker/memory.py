"""Memory of one device, from the compiler's own plan of the programs a step runs."""

from __future__ import annotations

from typing import Any

import jax

from bench.rows import MemoryBytes


def live_programs() -> list[Any]:
    """The executables now alive in this process."""
    return list(jax.devices()[0].client.live_executables())


def largest_program(programs: list[Any], known: list[Any]) -> MemoryBytes | None:
    """Planned memory of the largest of `programs` that are not among `known`.

    A step of several programs runs them one after the other on a device, so the largest is what
    the device must hold; state that another program keeps meanwhile is not in it.

    Returns:
      None if there are no new programs or the backend gives no figures.
    """
    old = {id(program) for program in known}
    plans = [memory_bytes(program) for program in programs if id(program) not in old]
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
