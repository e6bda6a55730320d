"""Outcomes of cells whose implementation raised an exception of any kind, even SystemExit."""

import math
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from bench.contract import Implementation, Problem
from bench.contract.model_state import SYNCHRONIZED
from bench.contract.placement import batch_axes
from bench.records.messages import JAX_CHILD
from bench.records.paths import ROOT
from bench.records.printable import readable, shortened
from bench.records.statuses import Status
from bench.worker import process_exchange

T = TypeVar("T")
APPROXIMATE = (
    "a file has to follow the dtypes that it is given, which are float64 in some proofs; if it is "
    "meant to be approximate, it can declare `approximate`, and is then judged by how it trains"
)
"""Advice about an update that is near the right one, and not equal to it."""

FEW = 3
"""Most variables or parameters that a message names."""


class WrongStepError(Exception):
    """The implementation does not compute the right step; the message says how it differs."""

    status: Status = "wrong"


class UnsupportedError(Exception):
    """The implementation cannot run this cell; the message is the reason."""

    status: Status = "unsupported"


class ChildError(Exception):
    """A process of a foreign arm failed or broke the protocol; the message says how."""

    status: Status = "crashed"


def in_all_processes(
    action: Callable[[], T], on_failure: Callable[[Status, str], None] = lambda *_: None
) -> T:
    """Run an action that every process of the launch runs at the same point.

    `on_failure` is called as soon as the action fails in this process, because the others may block
    on this process within the action and never reach the exchange of outcomes. Raises EndedError in
    all processes, with the first failure's reason, if the action raised any exception in any.
    """
    try:
        result = action()
    except BaseException as error:  # noqa: BLE001 - a user's file may raise anything
        ended: BaseException | None = error
        while ended is not None and not isinstance(ended, process_exchange.EndedError):
            ended = ended.__context__
        if ended is not None:  # an exchange within the action has ended it in all processes
            raise ended  # noqa: B904 - whatever was raised while it passed
        status, reason = failure(error)
        on_failure(status, reason)
        process_exchange.end_all(status, reason)
    process_exchange.gather(None)
    return result


def own_copy(problem: Problem) -> Problem:
    """Copy a problem for one file, whose changes to fields, dicts and lists affect no other."""
    start, state = jax.tree.map(lambda leaf: leaf, (problem.start, problem.start_state))
    axis_names, outline = map(_unshared, (problem.axis_names, problem.outline))
    return replace(problem, axis_names=axis_names, outline=outline, start=start, start_state=state)


def _unshared(part: Any) -> Any:
    """Copy lists, and mappings of any class as dicts, at any depth."""
    if isinstance(part, Mapping):
        return {key: _unshared(one) for key, one in part.items()}
    return [*map(_unshared, part)] if isinstance(part, list) else part


def why_unsupported(implementation: Implementation, problem: Problem, mesh: Mesh) -> str:
    """Return why an implementation cannot run a problem, or ""; WrongStepError if not as text."""
    reason = implementation.why_unsupported(own_copy(problem), mesh)
    if reason is None:
        return why_state_unsupported(implementation, problem, mesh)
    if not isinstance(reason, str) or not reason.strip():
        raise WrongStepError(
            f"why_unsupported returns {shortened(repr(reason))}; it must return None, or the "
            "reason as text"
        )
    return readable(reason)


def why_state_unsupported(implementation: Any, problem: Problem, mesh: Mesh) -> str:
    """Return why an implementation cannot carry a problem's model state; empty if it can."""
    names = problem.state_names
    if not names:
        return ""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    has = f"this model has {', '.join(names[:FEW])}{more} beside its parameters"
    if hasattr(implementation, "FOREIGN"):
        if JAX_CHILD in implementation.FOREIGN.get("command", ()):
            return ""  # the child has asked the same of the implementation
        return f"it runs in a process of its own, which is given only parameters, and {has}"
    known = getattr(implementation, "STATISTICS", ())
    if not known:
        return f"it carries no model state, and {has}"
    shards = math.prod(mesh.shape.get(axis, 1) for axis in batch_axes(mesh))
    if shards > 1 and problem.statistics not in known:
        declared = "of the global batch" if problem.statistics == SYNCHRONIZED else "of each shard"
        return (
            f"the workload declares {problem.statistics} statistics, {declared}, and this step "
            f"computes only {' and '.join(known)} ones"
        )
    return ""


def approximation(module: object) -> str:
    """Return how a step differs from the exact one, or ""; WrongStepError if that is no text."""
    why = getattr(module, "approximate", None)
    if not hasattr(module, "approximate"):
        return ""
    if not isinstance(why, str) or not why.strip():
        raise WrongStepError(
            f"approximate is {why!r}; it must say, as text, how the step differs from the exact one"
        )
    return why.strip()


def failure(error: BaseException) -> tuple[Status, str]:
    """Translate an exception into a status and a reason of one or a few lines."""
    text = readable(_text_of(error))
    if isinstance(error, WrongStepError | UnsupportedError | ChildError):
        return error.status, text
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        return "oom", text.splitlines()[0] if text else "out of memory"
    # The loops that call a timed step, `Arm.launch`, unpack what it returns.
    last = [f for f in traceback.extract_tb(error.__traceback__)[-1:] if f.name == "launch"]
    if "unpack" in text and any(ROOT / "bench" in Path(frame.filename).parents for frame in last):
        return "wrong", f"a later step does not return the pair (state, loss): {text}"
    return "crashed", f"{readable(name_and_text(error))}{_place(error)}"


def _place(error: BaseException) -> str:
    """Return ` (FILE.py:LINE)`, where the user's code raised an exception or called what did.

    The statement stands before it if the exception has no message, as some assertions of jax.
    """
    frames = [
        (Path(frame.filename), frame.lineno, frame.line)
        for frame in traceback.extract_tb(error.__traceback__)
        if not {ROOT / "bench", ROOT / "lockstep"} & {*Path(frame.filename).parents}
        and not frame.filename.startswith("<frozen")  # Python's own, of imports
    ]
    stdlib, packages = Path(sysconfig.get_path("stdlib")), {"site-packages", "dist-packages"}
    own = [f for f in frames if stdlib not in f[0].parents and not packages & {*f[0].parts}]
    for path, line, code in (own or frames)[-1:]:
        return f"{f' in `{code}`' if code and not _text_of(error) else ''} ({path.name}:{line})"
    return ""


def _text_of(error: BaseException) -> str:
    """Return an exception's message; empty if its class fails to make one."""
    with suppress(BaseException):
        return str(error).strip()
    return ""


def name_and_text(error: BaseException) -> str:
    """Describe an exception by type and message, and a SystemExit by the call that raises it."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r})"
    text = _text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
