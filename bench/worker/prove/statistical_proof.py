"""The proof of an approximate step: over several seeds, it must train as the reference does.

docs/design/approximate-steps.md describes the proof. Both ends of the mean shortfall's 90 %
interval must lie between -MARGIN and MARGIN: two one-sided tests of 5 % each (Schuirmann, Journal
of Pharmacokinetics and Biopharmaceutics 15 (1987), 657).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np

from bench.contract import Batch, Problem, TrainStep
from bench.records.numbers import count, percent
from bench.records.row_parts import AS_TIMED, STATISTICAL, StatisticalCheck
from bench.worker.prove.carried_state import Flat, flat, model_state_of, on_host
from bench.worker.prove.due_updates import LastCheck
from bench.worker.prove.failures import UnsupportedError, WrongStepError
from bench.worker.prove.gate import Gate
from bench.worker.prove.relative_errors import distance, length, named_state, rms
from bench.worker.prove.replica_drift import find_drifts
from bench.worker.prove.span_records import SpanRecord
from bench.worker.prove.state_reader import HostState, digest_of
from bench.worker.prove.trajectory import by_path, is_part, read_params, take_step, vector
from bench.worker.read.compilation import remembered_programs

Build = Callable[[Problem], TrainStep]
"""Builds the step of a problem."""

SEEDS = 5
STEPS = 48
TAIL = 12
MARGIN = 0.1
"""Largest shortfall or excess of a step's loss, at its own parameters and averaged over the last
TAIL of STEPS steps, as a share of the decrease in loss that the reference achieves."""
ALONE = 2 * MARGIN
"""The same in the single run of the timed step, which has no interval."""
QUANTILE = 2.132
"""95 % quantile of Student's t with SEEDS - 1 degrees of freedom."""
PROBED = 8
"""Fewest steps after which each part of the batch must have influenced the parameters."""
INFLUENCE = 1e-3
"""Least effect of replacing a part's labels, relative to the parameters' whole change."""
DRIFT = 1e-2
"""Largest difference between replicas, relative to the parameters' change over all steps."""

NOTHING_TO_JUDGE_BY = (
    f"it is approximate, and the reference's loss does not reliably fall in {STEPS} steps, so "
    "there is nothing to judge it by"
)


class StatisticalProof:
    """Proves the approximate steps of a gate's block."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._curve = cache(self._reference_losses)
        """The reference's losses by seed, as `_reference_losses` returns them."""

    def prove(self, build: Build, progress: Callable[[], None]) -> StatisticalCheck:
        """Prove the step that `build` builds, over all seeds; `progress` is called before each run.

        UnsupportedError if the reference does not train enough to judge a step by it;
        WrongStepError if the step does not train as the reference does, or hides what it does.
        """
        with remembered_programs(self._gate.programs):
            seeds = range(1, SEEDS + 1)
            decreases = []
            for seed in seeds:
                progress()
                decreases.append(self._decrease(seed))
            if (decrease := float(np.mean(decreases))) <= _half_width(decreases):
                raise UnsupportedError(NOTHING_TO_JUDGE_BY)
            shortfalls = []
            for seed in seeds:
                progress()
                shortfalls.append(self._run(seed, build, decrease)[0])
            self._check_influence(build, progress)
        middle, half = float(np.mean(shortfalls)), _half_width(shortfalls)
        return _checked(STATISTICAL, middle - half, middle + half, MARGIN, SEEDS)

    def prove_timed(self, train_step: TrainStep) -> tuple[StatisticalCheck, Any]:
        """Prove the step that will be timed in one run, as `prove` does; return its state too."""
        shortfall, state = self._run(0, lambda _: train_step, self._decrease(0))
        return _checked(AS_TIMED, shortfall, shortfall, ALONE, 1), state

    def _problem(self, seed: int) -> Problem:
        """Return the timed problem with other initial parameters and batches; seed 0 keeps them."""
        timed, chance = self._gate.timed, np.random.default_rng(seed)
        start = jax.tree.map(np.asarray, self._gate.reference.start)
        if seed:
            start = jax.tree.map(lambda x: chance.permutation(x.ravel()).reshape(x.shape), start)
        return replace(timed, start=start, batch=lambda n: timed.batch(seed * STEPS + n))

    def _reference_losses(self, seed: int) -> tuple[float, float]:
        """Return the reference's mean loss on the last TAIL batches, before and during training."""
        problem, reference = self._problem(seed), self._gate.reference
        start, model_state, before, losses = problem.start, reference.start_state, [], []
        at = HostState(start, problem.optimizer.init(start), model_state)
        for number in range(STEPS):
            batch = problem.batch(number)
            if number >= STEPS - TAIL:
                before.append(float(reference.gradients(start, model_state, batch)[0][0]))
            loss, at = reference.run([batch], at)
            losses.append(loss)
        return float(np.mean(before)), float(np.mean(losses[-TAIL:]))

    def _decrease(self, seed: int) -> float:
        """Return by how much the reference's loss falls; UnsupportedError if it does not."""
        before, after = self._curve(seed)
        if not before - after > 0:  # NaN is not
            raise UnsupportedError(NOTHING_TO_JUDGE_BY)
        return before - after

    def _judged_step(self, train_step: TrainStep, state: Any, batch: Batch) -> tuple[Any, ...]:
        """Take a step; return the reference's loss at its own parameters, its state and its loss.

        WrongStepError if its model state is not the one that the reference makes of its own.
        """
        gate, gradients = self._gate, self._gate.reference.gradients
        with remembered_programs(gate.programs):
            before = model_state_of(gate.timed, train_step, state)
            params, before = on_host((train_step.params(state), before))
            (judged, due), _ = gradients(params, before, batch)
        state, loss = take_step(train_step, state, batch)
        if due:
            now, most = model_state_of(gate.timed, train_step, state), gate.expected(AS_TIMED).state
            other = lambda: gradients(params, before, batch, apart=True)[0][1]  # noqa: E731
            if why := named_state(flat(now), flat(due), flat(before), most, other):
                raise WrongStepError(why)
        return float(judged), state, loss

    def _run(self, seed: int, build: Build, decrease: float) -> tuple[float, Any]:
        """Train a step; return its shortfall in units of a decrease in loss, and its last state.

        Raises WrongStepError if parameters or losses are not as they have to be.
        """
        problem = self._problem(seed)
        train_step = build(problem)
        state = train_step.state
        check_parameters(train_step, state)
        start = last = read_params(train_step.params(state))
        returned, judged, changes = [], [], 0
        for number in range(STEPS):
            batch = problem.batch(number)
            if number < STEPS - TAIL:
                state, loss = take_step(train_step, state, batch)
            else:
                own, state, loss = self._judged_step(train_step, state, batch)
                judged.append(own)
            returned.append(float(loss))
            if train_step.period > 1:
                now = read_params(train_step.params(state))
                changes, last = changes + bool(vector(now, last).any()), now
        way = vector(read_params(train_step.params(state)), start)
        if not np.isfinite([*returned, *judged, way.sum()]).all():
            raise WrongStepError("the loss or a parameter is not finite (it is infinite or NaN)")
        if not way.any():
            raise WrongStepError(f"the parameters do not change in {STEPS} steps")
        if changes > STEPS // train_step.period:
            raise WrongStepError(
                f"the parameters change in {changes} of {STEPS} steps, more often than once in a "
                f"period of {train_step.period}"
            )
        for drift in find_drifts(by_path(train_step.params(state))).values():
            if not drift.size <= DRIFT * rms(way):
                raise WrongStepError(drift.where)
        gap = float(np.abs(np.subtract(returned[-TAIL:], judged)).mean())
        # Between two of its averages, a step may return losses of parameters that are further on.
        allowed = self._gate.loss_tolerance * float(np.abs(judged).mean())
        allowed += 8 * self._gate.timed_eps * abs(self._gate.first_loss)
        if gap > allowed + (MARGIN * decrease if train_step.period > 1 else 0.0):
            raise WrongStepError(
                f"the losses that it returns are not those of its parameters: after {STEPS} steps, "
                f"it returns {np.mean(returned[-TAIL:]):.4g} on average, and the loss is "
                f"{np.mean(judged):.4g}"
            )
        return (float(np.mean(judged)) - self._curve(seed)[1]) / decrease, state

    def _check_influence(self, build: Build, progress: Callable[[], None]) -> None:
        """Raise WrongStepError if the labels of some rows move no parameters.

        Labels, the last array that moves the reference's gradients, enter no layer's statistics.
        """
        problem, gate = self._problem(1), self._gate
        half, parts = max(1, problem.batch_size // (2 * gate.shards)), gate.timed.microbatches
        probes = {f"first {half} rows": slice(half), f"last {half} rows": slice(-half, None)}
        for at in (0, parts - 1) if parts > 1 else ():
            probes[f"rows of microbatch {at}"] = slice(at, None, parts)

        def batch(number: int, at: int, rows: slice) -> Batch:
            return with_rows(problem.batch(number), problem.batch(number + SEEDS * STEPS), at, rows)

        def gradients(array: int, rows: slice) -> Flat:
            given = problem.start, gate.reference.start_state, batch(0, array, rows)
            return flat(gate.reference.gradients(*given)[1])

        def after(array: int, rows: slice) -> Flat:
            progress()
            train_step = build(problem)
            state = train_step.state
            for number in range(max(PROBED, train_step.period)):
                state, _ = take_step(train_step, state, batch(number, array, rows))
            return read_params(train_step.params(state))

        right, whole = gradients(0, slice(0)), after(0, slice(0))
        least = INFLUENCE * length(right), INFLUENCE * distance(whole, flat(problem.start))
        arrays = range(len(jax.tree.leaves(problem.batch(0))))[::-1]
        for name, rows in probes.items():
            moving = (at for at in arrays if distance(gradients(at, rows), right) > least[0])
            labels = next(moving, None)
            if labels is not None and not distance(after(labels, rows), whole) > least[1]:
                raise WrongStepError(
                    f"the labels of the {name} of the batch have no influence on the parameters: "
                    "their gradients are left out, or are not reduced"
                )


statistical_proof = cache(StatisticalProof)
"""Returns the statistical proof of a gate's block, made once for all approximate steps."""


def check_parameters(train_step: TrainStep, state: Any) -> None:
    """Raise WrongStepError if `params` computes the parameters, or if the period is too long.

    A step whose parameters are computed need not reduce anything itself.
    """
    if not is_part(train_step.params(state), state):
        raise WrongStepError(
            "`params` computes the parameters. Those of an approximate step must be arrays of its "
            "state, because the mean of replicas that have drifted apart looks as if they had not"
        )
    if not 1 <= train_step.period <= TAIL:
        raise WrongStepError(f"its period is {train_step.period}; it must be from 1 to {TAIL}")


def with_rows(batch: Batch, other: Batch, array: int, rows: slice) -> Batch:
    """Return a batch with some rows of one of its arrays taken from another batch."""
    leaves, tree = jax.tree.flatten(batch)
    leaves[array] = np.array(leaves[array])
    leaves[array][rows] = jax.tree.leaves(other)[array][rows]
    return jax.tree.unflatten(tree, leaves)


def why_not_training(kept: SpanRecord, left: LastCheck) -> str:
    """Check a span of one approximate step in the rounds; empty if nothing is wrong.

    Its parameters must have moved if the last check is STEPS or more steps ago, its loss must be
    that of its parameters, and this loss must not have risen above that of the initial parameters.
    """
    gate, before, steps = kept.gate, kept.before, kept.first_step - 1 - left.step
    if steps >= STEPS and digest_of(before.params) == left.digest:
        return f"the parameters do not change in the {count(steps, 'step')} before"
    batch, start = gate.timed_batches[0], gate.first_loss
    loss = float(gate.reference.gradients(before.params, before.model_state, batch)[0][0])
    allowed = MARGIN * abs(start)
    if not loss <= start + allowed:
        return f"the loss has risen from {start:.6g} to {loss:.6g}, at the step's own parameters"
    if not abs(kept.loss - loss) <= allowed:
        return f"the loss is {kept.loss:.6g} and should be {loss:.6g}, at the step's own parameters"
    return ""


def _half_width(values: Sequence[float]) -> float:
    return float(QUANTILE * np.std(values, ddof=1) / len(values) ** 0.5)


def _checked(name: str, low: float, high: float, margin: float, seeds: int) -> StatisticalCheck:
    """Return the check of a shortfall's interval; WrongStepError if it exceeds the margin."""
    if (worst := max(high, -low)) <= margin:
        return StatisticalCheck(
            name=name, loss_error=worst, loss_tolerance=margin, low=low, high=high,
            seeds=seeds, steps=STEPS,
        )  # fmt: skip
    ends = dict.fromkeys((percent(1 - high), percent(1 - low)))
    why = "it does not train as well" if high >= -low else (
        "it trains better than an approximation of the step can, as a higher learning rate would"
    )  # fmt: skip
    if -margin <= (low + high) / 2 <= margin:
        why = "its scatter is too large to tell whether it trains as well"
    raise WrongStepError(
        f"{why}: in {STEPS} steps, its loss falls by {' to '.join(ends)} of what the reference's "
        f"does ({name}, {count(seeds, 'seed')}; allowed are {percent(1 - margin)} to "
        f"{percent(1 + margin)})"
    )
