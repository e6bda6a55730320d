"""What is found while arms are timed ends their cells."""

from __future__ import annotations

from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from bench.records.arms import TWIN
from bench.worker import process_exchange
from bench.worker.block_rounds import BlockRounds
from bench.worker.process_exchange import EndedError
from bench.worker.time.clock import Arm


def rounds_of(names: list[str], reasons: dict[str, str], failed: dict[str, str]) -> BlockRounds:
    """A block's rounds, after them: the first arm is the baseline, and has a twin."""
    arms = [
        Arm(name, lambda state, _: (state, state), None, None, 10, [(10, jnp.float32(1.0))])
        for name in (*names, TWIN)
    ]
    session = SimpleNamespace(
        job={"implementations": names, "baseline": names[0]},
        row={},
        arms=arms,
        approximate={},
        cells={name: {} for name in names},
        reasons=reasons,
        threads=SimpleNamespace(reasons=dict),
        fail=lambda name, status, why: failed.update({name: f"{status}: {why}"}),
    )
    rounds = BlockRounds(session, list)
    rounds.names = names
    rounds.checks = SimpleNamespace(reasons={})
    return rounds


@pytest.mark.parametrize("copy", ["base", TWIN])
def test_a_baseline_is_wrong_if_either_copy_compiles_while_it_is_timed(copy: str) -> None:
    """Chance decides which of the two is called the twin."""
    failed: dict[str, str] = {}
    rounds = rounds_of(["base", "other"], {}, failed)
    assert rounds.withdraw({copy: 2}, 1.0) == {"base", TWIN}
    assert failed == {"base": "wrong: compiled 2 programs while it was timed"}
    assert rounds.session.row["baseline"] == "other"


def test_a_stronger_reason_is_kept() -> None:
    failed: dict[str, str] = {}
    why = "other.py replaces time.perf_counter"
    rounds = rounds_of(["base", "other"], {"other": why}, failed)
    assert rounds.withdraw({"other": 1}, 1.0) == {"other"}
    assert failed == {"other": f"wrong: {why}"}


def test_a_twin_that_fails_in_one_process_says_so_before_it_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may wait for this process in a collective, until the supervisor ends them."""
    failed: dict[str, str] = {}
    rounds = rounds_of(["base", "other"], {}, failed)

    def make(_name: str) -> None:
        raise RuntimeError("no")

    def exchange(value: object) -> list[object]:
        assert failed == {
            "base": f"crashed: RuntimeError: no ({__name__.split('.')[-1]}.py:{line})"
        }
        return [value, None]

    line = make.__code__.co_firstlineno + 1
    rounds.session.modules_of = make
    monkeypatch.setattr(process_exchange, "_exchange", exchange)
    with pytest.raises(EndedError, match="no"):
        rounds.add_twin()
