"""The fixture `race`: its three outcomes follow from what is sure, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pandas as pd
import pytest

import lockstep
from lockstep.pytest_plugin import Race, race

pytest_plugins = ("pytester",)


def raced(monkeypatch, low, high, status="ok", **more):
    """A race whose verdict's interval is known."""
    seen = {}
    row = {"implementation": "new", "status": status, "reason": "why not",
           "verdict_low": low, "verdict_high": high}  # fmt: skip

    def compare(_steps, _state, _batch, **options):
        seen.update(options)
        return SimpleNamespace(verdicts=pd.DataFrame([row]))

    monkeypatch.setattr(lockstep, "compare", compare, raising=False)
    return Race({}, None, None, more, "xfail"), seen


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (0.9, 1.05, None),
        (0.9, 1.06, pytest.xfail.Exception),
        (0.0, float("inf"), pytest.xfail.Exception),
        (1.04, 1.06, pytest.xfail.Exception),
        (1.051, 1.2, pytest.fail.Exception),
    ],
)
def test_what_is_sure_decides_the_outcome(monkeypatch, low, high, outcome):
    one, seen = raced(monkeypatch, low, high, seconds=7)
    if outcome is None:
        one.assert_not_slower(by=0.05)
    else:
        with pytest.raises(outcome):
            one.assert_not_slower(by=0.05)
    assert seen == {"baseline": "old", "decide_at": 1.05, "seconds": 7}


def test_a_wrong_step_fails_and_undecided_is_as_asked(monkeypatch):
    with pytest.raises(pytest.fail.Exception, match="new step is wrong: why not"):
        raced(monkeypatch, 1, 1, status="wrong")[0].assert_not_slower()
    for word, outcome in (("fail", pytest.fail.Exception), ("skip", pytest.skip.Exception)):
        with pytest.raises(outcome, match="undecided"):
            raced(monkeypatch, 0.5, 2)[0].assert_not_slower(undecided=word)
    with pytest.raises(ValueError, match="choose from xfail, fail, skip"):
        raced(monkeypatch, 0.5, 2)[0].assert_not_slower(undecided="pass")
    for by in (-1, float("nan"), float("inf"), "5 %"):
        with pytest.raises(ValueError, match=f"by={by!r}: .* not negative"):
            raced(monkeypatch, 0.5, 2)[0].assert_not_slower(by=by)


def test_the_bounds_are_written_as_in_the_table(monkeypatch):
    with pytest.raises(
        pytest.fail.Exception, match=r"surely 1\.051 to 1160 times .* most 1\.05 is"
    ):
        raced(monkeypatch, 1.0512, 1160.4)[0].assert_not_slower(by=0.05)


def test_the_marker_gives_options_and_the_call_overrides_them():
    marker = SimpleNamespace(args=(), kwargs={"undecided": "fail", "seconds": 1, "rounds": 8})
    request = SimpleNamespace(node=SimpleNamespace(get_closest_marker=lambda _name: marker))
    make = race.__wrapped__ if hasattr(race, "__wrapped__") else race._get_wrapped_function()
    one = next(make(request))(len, abs, 0, 1, rounds=16)
    assert one.undecided == "fail"
    assert one.options == {"seconds": 1, "rounds": 16}


def test_it_works_in_somebodys_test(pytester):
    pytester.makepyfile(
        """
        import jax, jax.numpy as jnp, pytest

        def step(state, batch):
            return state * batch, state.sum()

        @pytest.mark.lockstep(rounds=8, seconds=0.02)
        def test_wrong(race):
            wrong = jax.jit(lambda s, b: (s, s.sum()))
            race(wrong, jax.jit(step), jnp.ones(4), jnp.asarray(0.9)).assert_not_slower(by=9)

        def test_that_fails_before_its_assertion(race):
            race(step, step, jnp.ones(4), jnp.asarray(0.9))
            raise RuntimeError("something else")

        def test_without_an_assertion(race):
            race(step, step, jnp.ones(4), jnp.asarray(0.9))

        @pytest.mark.lockstep(30)
        def test_with_a_bare_number(race):
            pass
        """
    )
    # Where Lockstep is installed, its entry point loads the plugin under another name.
    words = ("-p", "no:lockstep", "-p", "lockstep.pytest_plugin", "--strict-markers")
    result = pytester.runpytest(*words)
    result.assert_outcomes(failed=2, passed=1, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*a race was not run: call its assert_not_slower()*",
            "*the marker lockstep takes only keywords*",
            "*the new step is wrong: the update of state differs*",
        ]
    )


@pytest.mark.parametrize(("eager", "limit"), [(True, 1.05), (False, 20)])
def test_rounds_end_when_it_is_sure_on_which_side_of_the_limit_a_step_is(eager, limit):
    """One look is enough for an eager step, which is many times slower, and for a large limit."""

    def step(state, batch):
        for _ in range(20):
            state = jnp.tanh(state * batch)
        return state, state.sum()

    new = step if eager else jax.jit(lambda state, batch: step(state, 1 * batch))
    steps = {"old": jax.jit(step), "new": new}
    # No measurement is within this margin, so a race without a limit would not end early.
    more = {"seconds": 1.0, "rounds": 48, "margin": 1e-9}
    found = lockstep.compare(steps, jnp.ones(4), jnp.asarray(0.9), decide_at=limit, **more)
    new = found.verdicts.set_index("implementation").loc["new"]
    assert new["verdict_low"] > limit if eager else new["verdict_high"] < limit
    assert found.samples["round"].max() < 47
