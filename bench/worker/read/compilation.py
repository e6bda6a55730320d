"""Compilation: a log of its events, and the persistent compilation cache."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from bench.records.rows import CompileTimes
from bench.worker.prove.failures import WrongStepError

_COMPILE = "/jax/core/compile/backend_compile_duration"
_ASKED = "/lockstep/asked"
UNHEARD = "it removes the listeners of jax.monitoring, by which compilation is noticed"

_remembered: Any = jax.jit(lambda x: x)
"""A function whose program jax remembers until its caches are cleared."""


@contextmanager
def jax_options(**values: Any) -> Iterator[None]:
    """Set options of jax in all threads, because a step may run in another thread."""
    before = {name: jax.config.values[name] for name in values}
    for name, value in values.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@contextmanager
def remembered_programs(folder: Path) -> Iterator[None]:
    """Use a folder as the persistent compilation cache in this context; contexts may be nested.

    Each arm has its own folder. Otherwise, if two arms lower to the same program, only the first
    would be charged for compiling it.
    """
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        # XLA's own caches would be in this folder, whose path jax 0.10 would include in a program's
        # cache key.
        "jax_persistent_cache_enable_xla_caches": "none",
    }
    try:
        with jax_options(**settings):
            reset_cache()
            yield
    finally:
        reset_cache()


class CompilationLog:
    """A log of jax.monitoring's compilation events while it is open.

    Unlike timing `.lower()` and `.compile()`, it needs no cooperation from an implementation, and
    sees every program, whatever code compiles it.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)

    def __enter__(self) -> Self:
        _remembered(0)
        jax.monitoring.register_event_duration_secs_listener(self._note)
        jax.monitoring.register_event_listener(self._note)
        return self

    def __exit__(self, error: object, *_: object) -> None:
        try:
            jax.monitoring.unregister_event_duration_listener(self._note)
            jax.monitoring.unregister_event_listener(self._note)
        except AssertionError:
            if error is None:
                raise WrongStepError(UNHEARD) from None

    def check(self) -> None:
        """Raise WrongStepError if a step has silenced this log, or made jax forget all programs."""
        heard = self._counts[_ASKED]
        jax.monitoring.record_event_duration_secs(_ASKED, 0.0)
        if self._counts[_ASKED] == heard:
            raise WrongStepError(UNHEARD)
        if not _remembered._cache_size():  # noqa: SLF001 - jax has no public name
            raise WrongStepError("it clears jax's caches, so that all other arms compile again")

    def _note(self, event: str, duration_secs: Any = 0.0, **_: Any) -> None:
        self._seconds[event] += duration_secs
        self._counts[event] += 1

    @property
    def programs(self) -> int:
        """Number of programs compiled or taken from the persistent cache so far."""
        return self._counts[_COMPILE]

    def times(self) -> CompileTimes:
        """Return the totals so far."""
        return CompileTimes(
            trace_s=self._seconds["/jax/core/compile/jaxpr_trace_duration"],
            lower_s=self._seconds["/jax/core/compile/jaxpr_to_mlir_module_duration"],
            compile_s=self._seconds[_COMPILE],
            cache_hits=self._counts["/jax/compilation_cache/cache_hits"],
        )
