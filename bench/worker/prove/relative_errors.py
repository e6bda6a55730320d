"""Distances of losses, updates and model states, relative to their size."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from bench.worker.prove.carried_state import Flat, differing_paths, flat
from bench.worker.prove.failures import FEW, WrongStepError

ROUNDINGS = 16
FEW_ROUNDINGS = 4
"""Roundings that are allowed where ROUNDINGS of them exceed the wider tolerance, as in bfloat16:
there, they would reach the size of an update, and a step that makes none would pass."""
CHUNK = 1 << 18
"""Elements that are subtracted at a time, so that the differences fit in a core's cache: writing
those of a whole model to memory takes longer than summing their squares."""


def update_errors(
    ours: Flat, theirs: Flat, start: Flat, mask: Flat | None, size: float | None = None
) -> dict[str, float]:
    """Return each parameter's update error, relative to the size of the whole update.

    The error is the root mean square, over a parameter's elements, of the difference of the two
    updates, divided by the root mean square of the reference's update over all parameters. The
    common denominator keeps a parameter whose gradient is mathematically zero (a key's bias, which
    softmax ignores) from being compared with its own rounding.

    `ours` and `theirs` are parameters after the steps of the implementation and the reference, and
    `start` those before. `mask` has a bool per element, whether to compare it; `size` is the root
    mean square of the reference's update, if it is known.
    """
    check_alike(ours, theirs)
    scale = (distance(theirs, start) if size is None else size) or 1.0
    compared = {path: mask[path] for path in mask if not mask[path].all()} if mask else {}
    return {
        path: _root_mean_square([(leaf, theirs[path], compared.get(path))]) / scale
        for path, leaf in ours.items()
    }


def allowed(rounding: float, wide: float) -> float:
    """Return the largest error of a right step, by the reference's rounding and `wide`."""
    return min(ROUNDINGS * rounding, max(wide, FEW_ROUNDINGS * rounding))


def rms(values: np.ndarray) -> float:
    """Root mean square; 0 for an empty array."""
    return length({"": values})


def length(arrays: Flat) -> float:
    """Root mean square over the elements of all arrays; 0 without any."""
    return _root_mean_square((leaf, None, None) for leaf in arrays.values())


def distance(ours: Flat, theirs: Flat) -> float:
    """Root mean square of the difference over the elements of all arrays; 0 without any."""
    check_alike(ours, theirs)
    return _root_mean_square((leaf, theirs[path], None) for path, leaf in ours.items())


def check_alike(ours: Flat, theirs: Flat) -> None:
    """Raise WrongStepError if parameters differ in names or shapes."""
    if differing := differing_paths(ours, theirs):
        raise WrongStepError(
            "the parameters differ from the model's in names or shapes: " + ", ".join(differing)
        )


def _root_mean_square(
    trios: Iterable[tuple[np.ndarray, np.ndarray | None, np.ndarray | None]],
) -> float:
    """Root mean square of (array, subtrahend or None, mask or None) trios, over all elements."""
    total, size = 0.0, 0
    for ours, theirs, mask in trios:
        own = ours.ravel()
        other, compared = (None if array is None else array.ravel() for array in (theirs, mask))
        for first in range(0, own.size, CHUNK):
            part = slice(first, first + CHUNK)
            values = own[part] if other is None else own[part] - other[part]
            values = values if compared is None else values[compared[part]]
            total += float(np.einsum("i,i->", values, values, dtype=np.float64))
            size += values.size
    return float(np.sqrt(total / size)) if size else 0.0


def loss_error(ours: np.ndarray, theirs: np.ndarray, least: float = 1e-30) -> float:
    """Largest difference of two loss series (steps,), relative to `theirs`, or to `least`."""
    return float(np.max(np.abs(ours - theirs) / np.maximum(np.abs(theirs), least)))


def state_errors(ours: Flat, theirs: Flat, start: Flat) -> dict[str, float]:
    """Return the error of each leaf of a model state, relative to its change since `start`.

    Integers and keys must be equal: their error is 0 or infinite. States that differ in names,
    shapes or kinds of leaves raise WrongStepError.
    """
    if differing := differing_paths(ours, theirs):
        if not ours:
            raise WrongStepError("the step returns no model state: TrainStep has no `model_state`")
        raise WrongStepError(
            f"the model state differs from the model's in names, shapes or dtypes: "
            f"{', '.join(differing[:FEW])}"
        )
    return {path: _leaf_error(ours[path], theirs[path], start[path]) for path in theirs}


def _leaf_error(ours: np.ndarray, theirs: np.ndarray, start: np.ndarray) -> float:
    if theirs.dtype.kind != "f":
        return 0.0 if np.array_equal(ours, theirs) else float("inf")
    size = rms(differences(theirs, start)) or rms(theirs[np.isfinite(theirs)]) or 1.0
    return rms(differences(ours, theirs)) / size


def differences(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return the differences of two leaves; those of equal infinities, as in a mask, are 0."""
    with np.errstate(invalid="ignore"):
        return np.where(ours == theirs, 0.0, ours - theirs)


def named_state(
    ours: Flat, theirs: Flat, start: Flat, allowed: float, other: Callable[[], Any] | None = None
) -> str:
    """Describe what is wrong with the model state after some steps; empty if nothing is.

    ROUNDINGS times the error of the `other` state, which differs by rounding, are allowed as well.
    """
    errors = state_errors(ours, theirs, start)
    if other and not all(error <= allowed for error in errors.values()):
        allowed += ROUNDINGS * max(state_errors(flat(other()), theirs, start).values())
    wrong = [path for path, error in errors.items() if not error <= allowed]
    if not wrong:
        return ""
    still = [path for path in wrong if np.array_equal(ours[path], start[path])]
    if draws := [path for path in still if theirs[path].dtype.kind != "f"]:
        return f"the model state's {unchanged(draws)}: every step draws the same random numbers"
    if still:
        return f"the model state's {unchanged(still)}: statistics are not updated"
    if exact := [path for path in wrong if theirs[path].dtype.kind != "f"]:
        path = exact[0]
        return f"the model state's {path} is {ours[path]} and should be {theirs[path]}"
    worst = max(wrong, key=lambda path: errors[path])
    return (
        f"the model state is wrong in {some(wrong)}, by up to {errors[worst]:.1e} of its change, "
        f"more than the allowed {allowed:.1e}"
    )


def some(paths: list[str]) -> str:
    """List the first few of some paths."""
    more = f" (and {len(paths) - FEW} more)" if len(paths) > FEW else ""
    return f"{', '.join(paths[:FEW])}{more}"


def unchanged(paths: list[str]) -> str:
    """Say that what these paths name does not change."""
    return f"{some(paths)} {'does' if len(paths) == 1 else 'do'} not change"


def close(ours: Any, theirs: Any, match: float) -> bool:
    """Whether two vectors or scalars agree to within `match` of their size."""
    return bool(np.linalg.norm(ours - theirs) <= match * np.linalg.norm(theirs))


def multiple_of(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the factor that brings vector `theirs` nearest to `ours`."""
    return float(ours @ theirs / (theirs @ theirs or 1.0))


def describe(check: Mapping[str, Any]) -> str:
    """State a check's numbers, and which of them are too large."""
    parts, named = [], {"state": "model state"}
    for what in ("loss", "update", "state"):
        if f"{what}_error" not in check:
            continue
        error, tolerance = check[f"{what}_error"], check[f"{what}_tolerance"]
        digits = 1 if f"{error:.1e}" != f"{tolerance:.1e}" else 4
        verdict = "within" if error <= tolerance else "more than"  # NaN is not within
        parts.append(
            f"relative error of the {named.get(what, what)} {error:.{digits}e}, "
            f"{verdict} the allowed {tolerance:.{digits}e}"
        )
    return f"{check['name']}: {'; '.join(parts)}"
