"""Functions and settings of the process that users' files could change.

The functions of the clock, of jax and of the harness, and the settings, are recorded before any
implementation is loaded and restored later, so that no file can affect any measurement.
"""

import builtins
import faulthandler
import gc
import json
import logging
import math
import os
import pkgutil
import random
import resource
import secrets
import signal
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from functools import partial
from importlib import import_module
from itertools import chain
from operator import is_, itemgetter
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import jax
import numpy as np
from jaxlib.xla_client import ArrayImpl

import bench.contract
from bench.contract import Problem
from bench.records.host import cores

_SHARED: tuple[ModuleType | type, ...] = (
    *(builtins, gc, json, json.decoder, json.encoder, math, os, random, secrets, statistics, sys),
    *(threading, time, np, np.linalg, json.JSONDecoder, json.JSONEncoder, logging.Handler),
    *(logging.Logger, random.Random, threading.Thread, Path, ArrayImpl),
)
_LIBRARIES = {"flax", "jax", "optax"}
"""Libraries whose public modules are shared too: other steps would be traced with a substitute."""
_OTHERS = {
    *("__import__", "breakpoint", "input", "open", "print"),
    *("breakpointhook", "displayhook", "excepthook", "unraisablehook"),
}
"""Functions that the harness does not call, and that honest code, such as a logger, replaces."""


class HeldFunctions:
    """A snapshot of the functions of shared modules and of all modules of bench.

    It includes their code objects, because a function's code can be replaced in place, and those of
    the functions that `shared` objects hold, such as a problem's optimizer. Modules that a file
    imports first are not held.
    """

    def __init__(self, *shared: Any) -> None:
        for module in pkgutil.iter_modules(bench.contract.__path__, "bench.contract."):
            import_module(module.name)  # otherwise a file could be the first to import it
        self._held: list[Any] = []
        self._codes: list[Any] = []
        for owner in _owners():
            if held := _functions(owner):
                self._hold(owner, held)
        self._hold_codes(_reached(shared, {}).values())

    def hold_contract(self, module: ModuleType) -> None:
        """Hold the functions that a loaded file defines for the contract."""
        found = {n: f for n, f in vars(module).items() if n in ("build", "why_unsupported")}
        if found and all(owner is not module for owner, *_ in self._held):
            self._hold(module, found)

    def _hold(self, owner: ModuleType | type, held: dict[str, Any]) -> None:
        # `__doc__`, which all owners have: an itemgetter of a single name returns no tuple.
        read = itemgetter("__doc__", *held)
        self._held.append((owner, held, read, read(vars(owner))))
        self._hold_codes(map(_bare, held.values()))

    def _hold_codes(self, values: Iterable[Any]) -> None:
        functions = {id(f): f for f in values if isinstance(f, FunctionType)}
        self._codes += [(f, _parts(f), copy(f.__kwdefaults__)) for f in functions.values()]

    def put_back(self, *, codes: bool = True) -> dict[str, str]:
        """Undo all changes since the snapshot; return the file that defines each replacement.

        Files, empty if unknown, are keyed by the name of the replaced object, such as
        `time.perf_counter`. Comparing `codes` as well takes milliseconds.
        """
        replaced = {}
        for owner, held, read, values in self._held:
            now = vars(owner)
            try:
                if read(now) == values:  # quick, because identity is compared first
                    continue
            except Exception:  # noqa: BLE001, S110 - some are missing, or cannot be compared
                pass
            for name, value in held.items():
                if now.get(name) is value:
                    continue
                place = f"{owner.__module__}." if isinstance(owner, type) else ""
                replaced[f"{place}{owner.__name__}.{name}"] = _file_of(now.get(name))
                setattr(owner, name, value)
        for function, parts, named in self._codes if codes else ():
            now = _parts(function)
            if len(now) != len(parts) or not all(map(is_, now, parts)):
                name = f"{function.__module__}.{function.__qualname__}"
                replaced[name] = _file_of(function)
                function.__code__, function.__defaults__ = parts[:2]
                function.__kwdefaults__ = copy(named)
        return replaced


def _parts(function: FunctionType) -> list[Any]:
    """Return a function's code and defaults, and the names and defaults of its keywords."""
    named = (function.__kwdefaults__ or {}).items()
    return [function.__code__, function.__defaults__, *chain.from_iterable(named)]


def _owners() -> Iterator[ModuleType | type]:
    """Yield the modules and classes whose functions are held."""
    yield from _SHARED
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        if package in _LIBRARIES and "._" not in name:
            yield module
        if package == "bench" or (name == "__main__" and module.__spec__):
            yield module
            for value in vars(module).values():
                if isinstance(value, type) and value.__module__ == name:
                    yield value


def _functions(owner: ModuleType | type) -> dict[str, Any]:
    """Return a module's callables, and the harness's constants, or a class's methods, by name."""
    kinds = (FunctionType, classmethod, staticmethod, property)
    constants = (bool, int, float, str, tuple)
    is_own = isinstance(owner, ModuleType) and owner.__name__.startswith(("bench", "__main__"))
    return {
        name: value
        for name, value in vars(owner).items()
        if name not in _OTHERS
        and (
            (callable(value) or isinstance(value, constants)) and not name.startswith("__")
            if is_own
            else callable(value) or isinstance(value, kinds)
        )
    }


def _reached(value: Any, found: dict[int, Any]) -> dict[int, Any]:
    """Collect a problem, the functions that it holds, and what these hold in closures."""
    if id(value) not in found:
        found[id(value)] = value
        parts: Iterable[Any] = vars(value).values() if isinstance(value, Problem) else ()
        if isinstance(value, FunctionType):
            parts = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        for part in value if isinstance(value, tuple) else parts:
            _reached(part, found)
    return found


def _bare(value: Any) -> Any:
    """Return the function behind a class's method or property."""
    return getattr(value, "__func__", getattr(value, "fget", value))


def _file_of(value: Any) -> str:
    code = getattr(_bare(value), "__code__", None)
    return code.co_filename if isinstance(code, CodeType) else ""


def _pin(to: set[int]) -> None:
    """Let all threads run on these cores."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(int(task.name), to)


def _set_limits(old: dict[int, tuple[int, int]]) -> None:
    for limit, (soft, _) in old.items():
        resource.setrlimit(limit, (soft, resource.getrlimit(limit)[1]))


def _tools() -> list[int]:
    """Return the tools that listen to `sys.monitoring`."""
    return [tool for tool in range(6) if _MONITORING and _MONITORING.get_tool(tool)]


def _free_tools(old: list[int]) -> None:
    for tool in set(_tools()) - {*old}:
        _MONITORING.set_events(tool, 0)
        _MONITORING.free_tool_id(tool)


def _folder() -> str:
    with suppress(FileNotFoundError):
        return str(Path.cwd())
    return ""


_MONITORING: Any = getattr(sys, "monitoring", None)  # Python 3.11 has none
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "gc.callbacks": (gc.callbacks.copy, lambda old: gc.callbacks.__setitem__(slice(None), old)),
    "gc.set_threshold": (gc.get_threshold, lambda old: gc.set_threshold(*old)),
    "jax.set_mesh": (jax.sharding.get_mesh, jax.set_mesh),
    "np.seterr": (np.geterr, lambda old: np.seterr(**old)),
    "os.chdir": (_folder, os.chdir),
    "os.sched_setaffinity": (cores, _pin),
    "os.sched_setscheduler": (
        partial(getattr(os, "sched_getscheduler", int), 0),
        lambda old: os.sched_setscheduler(0, old, os.sched_param(0)),
    ),
    "os.setpriority": (
        partial(os.getpriority, os.PRIO_PROCESS, 0),
        partial(os.setpriority, os.PRIO_PROCESS, 0),
    ),
    "resource.setrlimit": (lambda: {n: resource.getrlimit(n) for n in _LIMITS}, _set_limits),
    "signal.setitimer": (
        lambda: [timer for timer in _TIMERS if any(signal.getitimer(timer))],
        lambda old: [signal.setitimer(timer, 0.0) for timer in _TIMERS if timer not in old],
    ),
    "sys.monitoring": (_tools, _free_tools),
    "sys.setprofile": (sys.getprofile, sys.setprofile),
    "sys.setrecursionlimit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "sys.setswitchinterval": (sys.getswitchinterval, sys.setswitchinterval),
    "sys.settrace": (sys.gettrace, sys.settrace),
}
"""Getter and setter of each setting that is not an option of jax, by its name in messages."""


def _reopen_streams(stderr: int) -> None:
    """Reopen closed output streams and descriptors; `stderr` is a copy of descriptor 2."""
    for number in (1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(stderr, number)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        if stream is None or getattr(stream, "closed", False):
            setattr(sys, name, os.fdopen(2, "w", buffering=1, closefd=False))


class ProcessSettings:
    """A snapshot of the settings, taken before any implementation is loaded."""

    def __init__(self) -> None:
        self._config: dict[str, Any] = dict(jax.config.values)
        self._environment = dict(os.environ)
        self._filters = list(warnings.filters)
        self._stderr = os.dup(2)
        self._settings = {name: read() for name, (read, _) in _SETTINGS.items()}
        self._entered: list[Any] = []
        """Contexts that override those that files have left open, which jax cannot close otherwise.
        References are kept, because some contexts would end if they were collected."""

    def put_back(self) -> set[str]:
        """Undo all changes since the snapshot, so that no file affects other arms.

        Returns the names of the settings and variables that had changed. Output streams that are
        closed or gone are reopened, and warning filters, which many packages add, are restored;
        neither is reported, because it affects no times.
        """
        faulthandler.cancel_dump_traceback_later()  # it could end the process in another's turn
        _reopen_streams(self._stderr)
        if [*map(id, warnings.filters)] != [*map(id, self._filters)]:
            warnings.resetwarnings()  # also forgets which warnings have been shown
            warnings.filters = [*self._filters]
        now = jax.config.values
        changed = {name for name in self._config.keys() & now if now[name] != self._config[name]}
        for name in changed:
            jax.config.update(name, self._config[name])
            context = getattr(jax, name.removeprefix("jax_"), None)
            if jax.config.values[name] != self._config[name] and context is not None:
                self._entered.append(context(self._config[name]))
                self._entered[-1].__enter__()
        for name, (read, write) in _SETTINGS.items():
            if read() != self._settings[name]:
                # A lower priority or limit may be final, and then holds for all arms.
                with suppress(OSError, ValueError):
                    write(self._settings[name])
                self._settings[name] = read()
                changed.add(name)
        if dict(os.environ) != self._environment:  # quick, where nothing has changed
            changed |= {name for name, _ in os.environ.items() ^ self._environment.items()}
            for name in os.environ.keys() - self._environment:
                del os.environ[name]
            os.environ |= self._environment
        return changed
