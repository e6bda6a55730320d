"""Races of given functions: what is proved, what is refused, and what the results say."""

from __future__ import annotations

import json
import platform
import re
import sys
import traceback
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import lockstep
from bench.present.cell_columns import collectives
from bench.records.paths import REPORTS
from bench.worker.prove.carried_state import flat
from bench.worker.prove.exact_arithmetic import rounding
from bench.worker.prove.failures import WrongStepError, failure
from lockstep import agreement as agreement_module
from lockstep.agreement import Agreement, copied, trace
from tests.slow import slow

OPTIMIZER = optax.adam(1e-2)
QUICK = {"rounds": 8, "seconds": 0.02}


def loss_fn(params, batch, key):
    x, y = batch
    hidden = jnp.tanh(x @ params["up"])
    hidden = hidden * jax.random.bernoulli(key, 0.9, hidden.shape)
    return jnp.mean((hidden @ params["down"] - y) ** 2)


def make(scale=1.0):
    """A train step with Adam, dropout and a count of steps; `scale` spoils its gradients."""

    def step(state, batch):
        params, moments, key, count = state
        key, own = jax.random.split(key)
        loss, grads = jax.value_and_grad(loss_fn)(params, batch, own)
        grads = jax.tree.map(lambda grad: grad * scale, grads)
        updates, moments = OPTIMIZER.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments, key, count + 1), loss

    return step


@pytest.fixture(scope="module")
def start():
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "up": jax.random.normal(keys[0], (8, 16)),
        "down": jax.random.normal(keys[1], (16, 2)),
    }
    batch = jax.random.normal(keys[2], (32, 8)), jax.random.normal(keys[3], (32, 2))
    return (params, OPTIMIZER.init(params), jax.random.key(7), jnp.zeros((), jnp.int32)), batch


@pytest.fixture(scope="module")
def raced(start):
    steps = {
        "plain": jax.jit(make()),
        "donating": jax.jit(make(), donate_argnums=0),
        "scaled": jax.jit(make(scale=0.99)),
        "failing": lambda _state, _batch: 1 // 0,
    }
    return lockstep.compare(steps, *start, **QUICK)


def test_equal_functions_are_raced_and_others_have_a_reason(raced):
    cells = raced.verdicts.set_index("implementation")
    assert cells["status"].to_dict() == {
        "plain": "ok", "donating": "ok", "scaled": "wrong", "failing": "crashed",
    }  # fmt: skip
    assert cells["step_s"].notna().to_dict() == {
        "plain": True, "donating": True, "scaled": False, "failing": False,
    }  # fmt: skip
    assert cells["ratio"]["plain"] == 1
    assert 0 < cells["ratio"]["donating"] < np.inf
    assert set(raced.samples["arm"]) == {"plain", "donating", "twin"}
    assert re.match(
        r"the update of state\S+ differs .* \(allowed: .*\s%\)", cells["reason"]["scaled"]
    )
    leaves = re.findall(r"state[^\s,;]+", cells["reason"]["scaled"])
    assert len(leaves) == len(set(leaves)) > 1
    assert "ZeroDivisionError" in cells["reason"]["failing"]


def test_the_given_state_and_batch_stay_as_they_are(raced, start):
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(start))


def test_results_are_printed_and_shown_in_a_notebook(raced):
    text, page = repr(raced), raced._repr_html_()
    for name in ("plain", "donating", "scaled", "failing"):
        assert name in text
        assert name in page
    assert "<svg" in page
    assert "baseline" in text


def test_a_notebook_prints_results_as_text(raced, monkeypatch):
    text = repr(raced)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert text
    assert repr(raced) == text


def test_frames_have_the_columns_that_are_explained(raced):
    known = {*raced.cells, *raced.samples, *raced.verdicts}
    assert not set(lockstep.COLUMNS) - known
    assert set(raced.cells) <= set(lockstep.COLUMNS)
    vague = r"^its |\bof (that|those|them)\b|\bthat (span|interval)\b"
    assert not [name for name, text in lockstep.COLUMNS.items() if re.search(vague, text)]


@pytest.mark.slow
def test_a_report_says_what_was_proved_and_can_be_loaded(raced, start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    steps = {"a": jax.jit(make()), "b": jax.jit(make())}
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "cache"))
    try:
        found = lockstep.compare(steps, *start, update_tolerance=0.07, name="mine", **QUICK)
        assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "cache")
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
    before = found.to_frame()
    page = found.report("given")
    assert page == REPORTS / "given" / "report.html"
    text = (REPORTS / "given" / "report.md").read_text(encoding="utf-8")
    assert "to 0.07" in text
    assert "Nothing was proved in float64" in text
    assert "lockstep.compare(...)" in text
    assert "python -m bench" not in text
    loaded = lockstep.load("given")
    assert loaded.to_frame().equals(before)
    for other in ("other", "../bad"):
        with pytest.raises(ValueError, match="the run is already stored as 'given'"):
            found.report(other)
    assert found.report("given") == page
    with pytest.raises(ValueError, match=r"^report: given exists in reports/; choose another"):
        raced.report("given")
    manifest = json.loads((REPORTS / "given" / "manifest.json").read_text())
    assert manifest["run"] == "given"
    assert manifest["versions"]["python"] == platform.python_version()
    with pytest.raises(ValueError, match="there is no run 'givn'"):
        lockstep.load("givn")


def test_a_step_that_was_compiled_before_has_no_compile_time_of_zero():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, shards = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("data",)))
    state = jax.device_put(jnp.ones(4), whole)
    batch = jax.device_put(jnp.ones((8, 4)), shards)

    def jitted():  # a function of its own, whose program jit does not know yet
        def step(state, batch):
            loss, slope = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(state)
            return state - 0.01 * slope, loss

        return jax.jit(step)

    ahead = jitted().lower(state, batch).compile()
    steps = {"hidden": partial(ahead), "ahead": ahead, "usual": jitted()}
    found = lockstep.compare(steps, state, batch, **QUICK)
    cells = found.cells.set_index("implementation")
    assert cells["compile_s"].notna().to_dict() == {"hidden": False, "ahead": False, "usual": True}
    sends = cells["wire_bytes"]
    assert sends["ahead"] == sends["usual"] > 0
    assert np.isnan(sends["hidden"])
    told = {row["implementation"]: collectives(row) for row in found.tables.rows}
    assert told["ahead"] == told["usual"]
    assert "all-reduce" in told["ahead"]
    assert not told["hidden"], "not that it has no collective"


def test_the_reference_has_the_figures_of_its_program_too():
    """Although it is compiled before the others, for their proof."""
    steps = {name: jax.jit(lambda w, x, name=name: (w - 0.1 * x, w.sum())) for name in ("a", "b")}
    cells = lockstep.compare(steps, jnp.ones(64), jnp.ones(64), **QUICK).cells
    assert (cells["compile_s"] > 0).all()
    assert cells["argument_bytes"].tolist() == [512, 512]


def test_a_reference_need_not_be_raced(start):
    steps = {"scaled": jax.jit(make(scale=0.5))}
    numbers = {"margin": np.float32(0.05), "rounds": np.int64(2)}  # of NumPy, as well as Python's
    found = lockstep.compare(steps, *start, reference=jax.jit(make()), **QUICK | numbers)
    assert list(found.verdicts["status"]) == ["wrong"]


def small_step(state, batch):
    loss = jnp.mean((state["w"] - batch) ** 2)
    return {"w": 0.9 * state["w"], "key": state["key"], "count": state["count"] + 1}, loss


SMALL = {"w": jnp.ones(4), "key": jax.random.key(2), "count": jnp.zeros((), jnp.int32)}


@pytest.mark.parametrize(
    ("twist", "reason"),
    [
        (lambda s, x: ({**s, "key": jax.random.fold_in(s["key"], 1)}, x), r"or keys .*\['key'\]"),
        (lambda s, x: ({**s, "count": s["count"] + 1}, x), r"integers or keys .*\['count'\]"),
        (
            lambda s, x: ({**s, "w": s["w"] * 1.001}, x),
            r"update of state\['w'\] .* by [\d.]+\s% of",
        ),
        (
            lambda s, x: (s, x * (1 + 0.01 * (s["count"] > 1))),
            r"a later step .* by 1\.0\s% \(a",
        ),
        (lambda s, x: (list(s.values()), x), r"of another structure; .* state\['count'\]"),
        (lambda s, x: ({**s, "more": x}, x), r"of another structure; .* state\['more'\]"),
        (lambda s, x: (s, 2 * x), "the loss of the first step differs"),
        (lambda s, x: ({**s, "w": s["w"][:2]}, x), r"of another structure; .* state\['w'\]"),
        (lambda s, x: (s, jnp.stack([x, x])), r"the loss has shape \(2,\)"),
        (lambda s, x: (s, x + 0j), "the loss is of dtype complex64; it must be a real number"),
        (lambda s, x: ({**s, "w": s["w"] * jnp.nan}, x), "not finite"),
        (lambda s, x: (s, float(x)), "not a jax.Array"),
        (
            lambda s, x: (x, s),
            r"the step returns \(loss, state\), not the pair \(state, loss\)",
        ),
    ],
)
def test_a_wrong_function_is_told_from_a_right_one(twist, reason):
    batch = jnp.arange(4.0)
    agreement = Agreement(small_step, SMALL, batch, "fp32")
    agreement.check(trace(jax.jit(small_step), SMALL, batch)[0])
    with pytest.raises(WrongStepError, match=reason):
        agreement.check(trace(lambda s, b: twist(*small_step(s, b)), SMALL, batch)[0])


def test_a_leaf_that_rounding_alone_decides_may_differ():
    """Adam turns a gradient that is zero but for rounding into a whole step of any sign."""

    def step(state, batch):
        noise = jnp.sign(state["w"] * 3 / 3 - state["w"]) + jnp.sign(state["w"] % 1e-6 - 5e-7)
        return {"w": state["w"] * batch, "zero": state["zero"] + noise}, state["w"].sum()

    state, batch = {"w": jnp.linspace(1, 2, 99), "zero": jnp.zeros(99)}, jnp.asarray(0.9)
    agreement = Agreement(step, state, batch, "fp32")
    assert agreement.allowed["['w']"] == agreement.update_tolerance
    assert agreement.allowed["['zero']"] > agreement.update_tolerance


@pytest.mark.parametrize(("make", "precision"), [(np.asarray, "fp32"), (np.float64, "fp64")])
def test_a_numpy_state_is_rounded_as_well_and_in_its_own_dtype(make, precision):
    """Terms that nearly cancel depend on the order of summation."""
    with jax.enable_x64(precision == "fp64"):
        start = {"c": make(np.float32([3.0, 1.0, 0.7]))}
        moved = agreement_module._rounded(start, rounding(precision, "cpu"))
    assert moved["c"].dtype == start["c"].dtype
    assert not np.array_equal(moved["c"], start["c"])
    np.testing.assert_allclose(moved["c"], start["c"], rtol=2 * rounding(precision, "cpu"))


@pytest.mark.parametrize("precision", ["bf16", *slow("fp32")])
@pytest.mark.parametrize(
    ("reason", "grads", "rate"),
    [
        ("", 1.0, 1e-3),
        (r"the update of state.*\['w1'\]", 0.0, 1e-3),
        (r"the update of state\[0\]", 1.0, 0.0),
        (r"the update of state\[0\]", 1.0, -1e-3),
        (r"the update of state\[0\]", 1.0, 8e-3),
    ],
)
@pytest.mark.parametrize("rule", [optax.sgd, *slow(optax.adam)])
def test_small_updates_are_told_apart_although_the_steps_compute_in_16_bits(
    rule, reason, grads, rate, precision
):
    """They are small beside the rounding of bfloat16, and large beside that of their own dtype."""
    keys, narrow = (
        jax.random.split(jax.random.key(0), 3),
        {"fp32": jnp.float32, "bf16": jnp.bfloat16}[precision],
    )
    inputs = jax.random.normal(keys[0], (32, 16))
    batch = inputs, jnp.sin(inputs @ jnp.ones((16, 4)))
    params = {
        "w1": jax.random.normal(keys[1], (16, 64)) / 4,
        "w2": jax.random.normal(keys[2], (64, 4)) / 8,
    }

    def loss_fn(params, batch):
        x, y = batch
        hidden = jax.nn.relu(x.astype(narrow) @ params["w1"].astype(narrow))
        return jnp.mean(((hidden @ params["w2"].astype(narrow)).astype(jnp.float32) - y) ** 2)

    def made(rate, of_w1=1.0):
        @jax.jit
        def step(state, batch):
            params, opt_state = state
            loss, grads = jax.value_and_grad(loss_fn)(params, batch)
            grads["w1"] *= of_w1
            updates, opt_state = rule(rate).update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), loss

        return step

    state = params, rule(1e-3).init(params)
    agreement = Agreement(made(1e-3), state, batch, precision)
    with pytest.raises(WrongStepError, match=reason) if reason else nullcontext():
        agreement.check(trace(made(rate, grads), state, batch)[0])


def test_equal_updates_may_differ_by_the_rounding_of_a_state():
    def made(decayed):
        return jax.jit(lambda w, x: (decayed(w, 1e-6 * x), jnp.mean((w - x) ** 2)))

    start, batch = jax.random.normal(jax.random.key(0), (64,)), jnp.arange(64.0)
    agreement = Agreement(made(lambda w, g: w - 1e-7 * w - g), start, batch, "fp32")
    for other in (lambda w, g: w * (1 - 1e-7) - g, lambda w, g: w / 3 * 3 - (1e-7 * w + g)):
        agreement.check(trace(made(other), start, batch)[0])


def test_complex_states_are_compared_as_floats_are():
    keys = jax.random.split(jax.random.key(0))
    batch = jax.lax.complex(*(jax.random.normal(key, (16, 16)) for key in keys))

    def made(product, rate=1e-3):
        def step(state, batch):
            new = state - rate * product(batch, state)
            return new, jnp.mean(jnp.abs(batch))

        return jax.jit(step)

    agreement = Agreement(made(lambda b, s: b @ (b.conj().T @ s)), batch, batch, "fp32")
    other = made(lambda b, s: (b @ b.conj().T) @ s)
    agreement.check(trace(other, batch, batch)[0])
    with pytest.raises(WrongStepError, match="the update of state differs"):
        agreement.check(trace(made(lambda b, s: b @ (b.conj().T @ s), 9e-4), batch, batch)[0])


def test_infinities_of_a_state_may_stay_and_have_to_be_where_the_reference_has_them():
    start = {"mask": jnp.array([0.0, -jnp.inf]), "best": jnp.float32(jnp.inf), "w": jnp.ones(4)}

    def made(twist=lambda state: state):
        def step(state, batch):
            loss = jnp.mean((state["w"] - batch) ** 2)
            best = jnp.minimum(state["best"], loss)
            return twist({**state, "w": 0.9 * state["w"], "best": best}), loss

        return jax.jit(step)

    agreement = Agreement(made(), start, jnp.arange(4.0), "fp32")
    agreement.check(trace(made(), start, jnp.arange(4.0))[0])
    for name, wrong in (("best", jnp.inf), ("best", 7.0), ("mask", jnp.zeros(2))):
        twist = lambda state, n=name, w=wrong: {**state, n: jnp.asarray(w, "f4")}  # noqa: E731
        with pytest.raises(WrongStepError, match=rf"the update of state\['{name}'\]"):
            agreement.check(trace(made(twist), start, jnp.arange(4.0))[0])


def test_numbers_that_xla_flushes_to_zero_are_equal():
    tiny = jnp.full(4, 1e-39)
    agreement = Agreement(lambda s, _: (0 * s, jnp.ones(())), tiny, None, "fp32")
    agreement.check(trace(lambda s, _: (np.asarray(s) / 2, jnp.ones(())), tiny, None)[0])
    with pytest.raises(WrongStepError, match="the update of state differs"):
        agreement.check(trace(lambda s, _: (s + 1e-30, jnp.ones(())), tiny, None)[0])


def test_equal_steps_are_raced_without_any_tolerance():
    step = jax.jit(small_step)
    more = {**QUICK, "rounds": 2, "loss_tolerance": 0, "update_tolerance": 0}
    found = lockstep.compare({"a": step, "b": step}, SMALL, jnp.arange(4.0), **more)
    assert found.cells["status"].tolist() == ["ok", "ok"]
    agreement = Agreement(small_step, SMALL, jnp.arange(4.0), "fp32", 0.0, 0.0)
    agreement.check(agreement.truth)
    other = trace(lambda s, b: small_step({**s, "w": s["w"] * 1.5}, b), SMALL, agreement.batch)[0]
    with pytest.raises(WrongStepError, match=r"the update of state\['w'\].* \(allowed: 0 %\)"):
        agreement.check(replace(other, losses=agreement.truth.losses))


def test_a_state_in_8_bits_is_compared():
    start = jnp.ones(4, jnp.float8_e4m3fn)

    def made(factor):
        return jax.jit(
            lambda s, _: ((s.astype("f4") * factor).astype(s.dtype), jnp.mean(s.astype("f4")))
        )

    agreement = Agreement(made(0.5), start, None, "fp32", loss_tolerance=1.0)
    agreement.check(trace(made(0.5), start, None)[0])
    with pytest.raises(WrongStepError, match="the update of state differs"):
        agreement.check(trace(made(0.25), start, None)[0])


def test_functions_in_a_state_stay_as_they_are():
    """As those of an Equinox module, whose fields are leaves."""
    state, batch = {"w": jnp.ones(4), "act": jnp.tanh}, jnp.arange(4.0)

    def step(state, batch):
        w = state["w"] - 0.1 * state["act"](batch)
        return {**state, "w": w}, jnp.mean(w)

    agreement = Agreement(step, state, batch, "fp32")
    agreement.check(trace(step, state, batch)[0])
    with pytest.raises(WrongStepError, match=r"the state holds a .* at \['act'\]"):
        trace(lambda s, b: ({**step(s, b)[0], "act": lambda x: x}, jnp.mean(b)), state, batch)


class Lazy:
    """A step that does nothing from its 13th call on, after the proof and the warm-up."""

    calls = 0

    def __call__(self, state, batch):
        self.calls += 1
        made, loss = jax.jit(small_step)(state, batch)
        return (state if self.calls > 12 else made), loss


def lazy_once_trained(state, batch):
    made, loss = small_step(state, batch)
    w = jnp.where(state["count"] > 12, state["w"], made["w"])
    return {**made, "w": w}, loss


@pytest.mark.parametrize("lazy", [Lazy(), jax.jit(lazy_once_trained)], ids=["calls", "state"])
def test_a_function_that_changes_in_the_rounds_gets_no_time(lazy):
    steps = {"right": jax.jit(small_step), "lazy": lazy}
    found = lockstep.compare(steps, SMALL, jnp.arange(4.0), rounds=8, seconds=0.02)
    right, wrong = found.verdicts.to_dict("records")
    assert (right["status"], wrong["status"]) == ("ok", "wrong")
    assert wrong["reason"].startswith("after the rounds: ")
    assert set(found.samples["arm"]) == {"right", "twin"}


FEW = {"rounds": 3, "seconds": 0.02}
"""Too few turns to convict a function that a busy host delays."""


class FailsIn:
    """A step that fails once it is called within a function of Lockstep, and from then on."""

    failed = False

    def __init__(self, place, error=RuntimeError):
        self.place, self.error = place, error

    def __call__(self, state, batch):
        frames = traceback.walk_stack(sys._getframe())
        self.failed |= self.place in {frame.f_code.co_name for frame, _ in frames}
        if self.failed:
            raise self.error("no more")
        return jax.jit(small_step)(state, batch)


@pytest.mark.parametrize("place", ["measure", "why_changed"])
def test_a_function_that_fails_in_the_rounds_costs_the_others_no_result(place):
    steps = {"right": jax.jit(small_step), "fails": FailsIn(place), "other": jax.jit(small_step)}
    found = lockstep.compare(steps, SMALL, jnp.arange(4.0), **FEW)
    cells = found.verdicts.set_index("implementation")
    assert cells["status"].to_dict() == {"right": "ok", "other": "ok", "fails": "crashed"}
    assert cells["reason"]["fails"].startswith("RuntimeError: no more (test_function_race.py:")
    assert set(found.samples["arm"]) == {"right", "other", "twin"}
    assert cells["baseline"]["other"] == "right"


@pytest.mark.parametrize("place", ["measure", "add_twin"])
def test_a_baseline_that_fails_in_the_rounds_is_replaced(place):
    steps = {"fails": FailsIn(place), "right": jax.jit(small_step)}
    found = lockstep.compare(steps, SMALL, jnp.arange(4.0), reference="right", **FEW)
    cells = found.verdicts.set_index("implementation")
    assert cells["status"].to_dict() == {"right": "ok", "fails": "crashed"}
    assert cells["baseline"]["right"] == "right"


@pytest.mark.parametrize("place", ["measure", "why_changed", "add_twin"])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_the_reference_raises_in_the_rounds_is_raised(place, error):
    steps = {"fails": FailsIn(place, error), "right": jax.jit(small_step)}
    with pytest.raises(error, match="no more"):
        lockstep.compare(steps, SMALL, jnp.arange(4.0), **FEW)


def test_a_reference_that_changes_in_the_rounds_is_refused():
    with pytest.raises(
        ValueError,
        match=r"after many calls, .* it changes from one call to the next: integers or keys",
    ):
        lockstep.compare({"a": Lazy(), "b": jax.jit(small_step)}, SMALL, jnp.arange(4.0), **QUICK)


def test_a_reference_that_does_nothing_is_refused():
    steps = {"a": lambda state, _batch: (state, jnp.zeros(())), "b": small_step}
    with pytest.raises(ValueError, match="'a' is not a train step: it leaves the state as it is"):
        lockstep.compare(steps, SMALL, jnp.arange(4.0), **QUICK)


@pytest.mark.parametrize(("noise", "frozen"), [("grads", 0), ("grads", 10_000), ("loss", 0)])
def test_a_reference_that_draws_new_numbers_in_each_call_is_refused(noise, frozen):
    """Although its noise also looks like the effect of rounding, which loosens tolerances."""
    draws = np.random.default_rng(0)

    def step(state, batch):
        loss, grads = jax.value_and_grad(lambda w: 1 + 1e-6 * jnp.mean((w * batch) ** 2))(state[0])
        own = 1 + jnp.asarray(draws.normal(size=16), jnp.float32)
        state = state[0] - 100 * (grads * own if noise == "grads" else grads), state[1]
        return state, loss * own[0] if noise == "loss" else loss

    state = jnp.ones(16), jnp.ones(frozen)
    with pytest.raises(ValueError, match=r"'a' is not .*: it changes from one call to the next: "):
        lockstep.compare({"a": step, "b": step}, state, jnp.arange(1.0, 17.0), **QUICK)


def test_a_reference_may_differ_from_call_to_call_within_the_tolerance():
    """As steps in bfloat16 do on float32 parameters where their sums have no fixed order."""
    draws = np.random.default_rng(0)

    def step(state, batch):
        loss, grads = jax.value_and_grad(lambda w: jnp.mean((w * batch) ** 2))(state)
        return state - 0.1 * grads * (1 + jnp.asarray(draws.normal(size=16) * 6e-4)), loss

    Agreement(step, jnp.ones(16), jnp.ones(16), "fp32").check_reference()


def test_python_numbers_in_a_state_may_become_arrays():
    state, batch = {"w": jnp.ones(4), "rate": 0.1, "count": 0}, jnp.arange(4.0)

    def step(state, batch):
        w = state["w"] - state["rate"] * batch
        return {"w": w, "rate": state["rate"], "count": state["count"] + 1}, jnp.mean(w)

    def other(state, batch):
        (made, loss) = step(state, batch)
        return {**made, "rate": made["rate"] * 1.01}, loss

    agreement = Agreement(jax.jit(step), state, batch, "fp32", loss_tolerance=1.0)
    agreement.check(trace(step, state, batch)[0])
    with pytest.raises(WrongStepError, match=r"the update of .*\['rate'\]"):
        agreement.check(trace(other, state, batch)[0])


@pytest.mark.parametrize("returned", [3, jnp.ones(4), (jnp.ones(4), 1.0)])
def test_a_reference_that_is_no_step_is_named(start, returned):
    with pytest.raises(ValueError, match=r"the reference 'a' is not a train step: the (step|loss)"):
        lockstep.compare({"a": lambda _s, _b: returned, "b": make()}, *start)


def test_a_call_that_fails_names_no_file_of_lockstep():
    with pytest.raises(TypeError) as caught:
        trace(lambda _state: None, {}, None)
    status, reason = failure(caught.value)
    assert status == "crashed"
    assert "test_function_race.py:" in reason


def test_copies_keep_shardings_and_keys():
    mesh = jax.make_mesh((8,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    tree = {"a": jax.device_put(jnp.arange(8.0), sharding), "key": jax.random.key(1), "n": 3}
    copy = copied(tree)
    assert copy["a"].sharding == sharding
    assert copy["a"] is not tree["a"]
    assert flat(copy).keys() == flat(tree).keys()
    assert all((a == b).all() for a, b in zip(*map(leaves_values, (copy, tree)), strict=True))


def leaves_values(tree):
    return flat(tree).values()


def test_a_sharded_state_is_raced_on_its_mesh():
    mesh = jax.make_mesh((2,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    state = jax.device_put(jnp.ones(8), sharding)

    def step(state, batch):
        return state * batch, jnp.mean(state)

    found = lockstep.compare({"a": jax.jit(step), "b": step}, state, jnp.asarray(0.9), **QUICK)
    assert set(found.verdicts["status"]) == {"ok"}
    assert "/data=2/" in found.verdicts["block"][0]


async def waits(state, batch):
    return make()(state, batch)


def yields(state, batch):
    yield make()(state, batch)


@pytest.mark.parametrize(
    ("steps", "more", "message"),
    [
        ({}, {}, "there are no steps"),
        ({"a": make()}, {}, "needs another function"),
        ({"a": make(), "twin": make()}, {}, "'twin' is the name of the baseline's second copy"),
        ({"a b": make(), "c": make()}, {}, "'a b' is not a name"),
        ({"a": make(), "b": make()}, {"baseline": "c"}, "baseline 'c' is none of a, b"),
        ({"a": make(), "b": make()}, {"reference": "c"}, "reference 'c' is none of a, b"),
        ([make(), make()], {}, "steps is a list, not a dict of functions by name"),
        (
            {"a": make(), "b": None},
            {},
            "'b' is of type NoneType; a step is a function that returns",
        ),
        ({"a": make(), "b": waits}, {}, "'b' is async; a step is a function that returns"),
        ({"a": make(), "b": yields}, {}, "'b' is a generator; a step is"),
        ({"a": make(), "b": make()}, {"reference": 3}, "'reference' is of type int; a step is"),
        ({"a": make(), "b": make()}, {"precision": "fp8"}, "'fp8': choose from fp32, bf16, fp16"),
        ({"a": make(), "b": make()}, {"rounds": 0}, "rounds=0: it has to be finite and above 0"),
        ({"a": make(), "b": make()}, {"rounds": 1.5}, "rounds=1.5: it has to be a whole number"),
        ({"a": make(), "b": make()}, {"rounds": None}, "rounds=None: it has to be a whole number"),
        ({"a": make(), "b": make()}, {"rounds": True}, "rounds=True: it has to be a whole number"),
        ({"a": make(), "b": make()}, {"margin": "1"}, "margin='1': it has to be a number"),
        ({"a": make(), "b": make()}, {"margin": None}, "margin=None: it has to be a number"),
        ({"a": make(), "b": make()}, {"seconds": None}, "seconds=None: it has to be a number"),
        ({"a": make(), "b": make()}, {"seed": "x"}, "seed='x': it has to be a whole number"),
        ({"a": make(), "b": make()}, {"seed": 1.5}, "seed=1.5: it has to be a whole number"),
        ({"a": make(), "b": make()}, {"baseline": ["a"]}, "baseline .'a'. is none of a, b"),
        ({"a": make(), "b": make()}, {"baseline": make()}, "baseline .* is none of a, b"),
        ({"a": make(), "b": make()}, {"margin": -0.1}, "margin=-0.1: .* and not negative"),
        ({"a": make(), "b": make()}, {"seconds": float("nan")}, "seconds=nan: it has to be finite"),
    ],
)
def test_what_cannot_be_compared_is_named(start, steps, more, message):
    with pytest.raises((TypeError, ValueError), match=message):
        lockstep.compare(steps, *start, **more)
