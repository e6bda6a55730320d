"""Trials on stored samples: the truth that was planted in them is found, and in the right share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.analyse.process_spread import PROCESS
from bench.records.arms import TWIN
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.trials.selftest import equal_arms
from bench.trials.selftest.equal_arms import SEVERAL, replay, trials
from bench.trials.selftest.shares import Rate, Shares, intervals, shares, verdicts

ARMS = ["one", *(f"copy{number}" for number in range(6)), TWIN]


def samples(
    blocks: int = 2, rounds: int = 128, processes: int = 1, noise: float = 0.01,
    arms: Sequence[str] = ARMS, truth: Sequence[float] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Samples of arms of 10 ms per step: heavy tails, and a host whose speed drifts."""
    chance = np.random.default_rng([blocks, rounds, processes, len(arms)])
    parts = []
    for block in range(blocks):
        for process in range(processes):
            host = 0.1 * np.cumsum(chance.standard_normal((rounds, 1)), axis=0) / rounds**0.5
            own = noise * chance.standard_t(4, (rounds, len(arms)))
            own += PROCESS.sd / 2**0.5 * chance.standard_normal(len(arms))
            times = 1e7 * np.exp(host + own) * (1.0 if truth is None else np.array(truth))
            orders = np.array([chance.permutation(len(arms)) for _ in range(rounds)])
            parts.append(
                pd.DataFrame(
                    {
                        "block": f"b{block}",
                        "attempt": f"{block}/{process}",
                        "load": ["quiet", "bursty"][process % 2],
                        "round": np.repeat(np.arange(rounds), len(arms)),
                        "arm": np.array(arms)[orders.ravel()],
                        "steps": 1,
                        "latency_steps": 2,
                        "wash_out_ns": 1e7,
                        "throughput_ns": np.take_along_axis(times, orders, axis=1).ravel(),
                        "latency_ns": 1e7,
                    }
                )
            )
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def found() -> dict[tuple[int, str], Shares]:
    """Shares over many blocks, whose parts are therefore nearly independent."""
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr(equal_arms, "ROUNDS", (16, 32, 128))
        judged = trials(samples(blocks=20), count=40)
    return {(s.keys["arms"], s.keys["size"]): s for s in shares(judged, ["arms", "size"])}


def test_equal_arms_rarely_raise_an_alarm_and_slower_ones_are_found(
    found: dict[tuple[int, str], Shares],
) -> None:
    assert {arms for arms, _ in found} == {2, 7}, "there are no 14 arms"
    assert {size for _, size in found} == {
        "16 rounds", "32 rounds", "128 rounds", "5 s per pair",
    }  # fmt: skip
    alarms = [each.alarms for each in found.values()]
    assert all(rate.of == 40 for rate in alarms)
    assert sum(rate.count for rate in alarms) <= 0.01 * sum(rate.of for rate in alarms)
    assert all(each.wrong.count == 0 for each in found.values())
    long = found[2, "128 rounds"]
    assert long.found["10 % slower"].value == long.found["5 % slower"].value == 1
    short = found[7, "16 rounds"].found["2 % slower"]
    assert short.value < found[7, "128 rounds"].found["2 % slower"].value


def test_the_95_percent_interval_holds_the_truth_about_that_often(
    found: dict[tuple[int, str], Shares],
) -> None:
    for (arms, _), each in found.items():
        assert each.holds.of == 40 * (arms - 1)
    held = sum(each.holds.count for each in found.values())
    assert 0.93 <= held / sum(each.holds.of for each in found.values()) <= 0.99
    widths = [found[7, f"{rounds} rounds"].width for rounds in (16, 32, 128)]
    assert widths == sorted(widths, reverse=True)
    assert all(each.width < each.verdict_width for each in found.values())


def test_arms_that_are_not_equal_are_alarms() -> None:
    judged = trials(samples(noise=0.003, arms=["a", "b"], truth=[1, 1.1]), count=10)
    for each in shares(judged, ["size"]):
        assert each.alarms == Rate(10, 10)
        assert each.holds.count == 0


@pytest.mark.slow
def test_long_trials_take_several_processes() -> None:
    judged = trials(samples(blocks=1, processes=4), count=5)
    by_size = judged.groupby("size")["load"].unique().map(set)
    assert by_size["20 s per pair"] == {SEVERAL}
    assert by_size["5 s per pair"] <= {"quiet", "bursty"}
    used = judged.groupby("size")["used_s"].max()
    assert used["5 s per pair"] < used["20 s per pair"] < 20.3
    again = trials(samples(blocks=1, processes=4), count=5)
    pd.testing.assert_frame_equal(judged, again)


def test_a_trial_stops_where_the_engine_would() -> None:
    from bench.analyse.sample_rounds import Rounds  # noqa: PLC0415

    own = samples(blocks=1, processes=4, arms=["a", "b"], truth=[1, 1.5])
    clear = replay(Rounds.of(own), ["a", "b"])
    assert (clear.rounds, clear.shown["b"].verdict.word) == (16 * 4, "slower")
    assert clear.whole["b"].ratio.rounds == 128 * 4
    hopeless = replay(Rounds.of(samples(blocks=1, noise=0.5, arms=["a", "b"])), ["a", "b"])
    assert (hopeless.rounds, hopeless.shown["b"].verdict.word) == (128, "undecided")
    assert hopeless.shown == hopeless.whole


def test_rounds_without_some_arm_do_not_count() -> None:
    own = samples(blocks=1)
    judged = trials(own[(own["arm"] != "copy1") | (own["round"] < 40)], count=5)
    assert set(judged[judged["arms"] == 7]["size"]) >= {"16 rounds", "32 rounds"}
    assert {"64 rounds", "128 rounds"} <= set(judged[judged["arms"] == 2]["size"])


def test_tables_have_a_row_for_each_size(found: dict[tuple[int, str], Shares]) -> None:
    rows, keys = list(found.values()), {"size": "Measured", "arms": "Arms"}
    shown = verdicts("T", rows, keys)
    headings = [column.title for column in shown.shown("text")]
    assert headings[:2] == ["Measured", "Arms"]
    assert {"2 % slower", "5 % slower", "10 % slower"} <= set(headings)
    assert len(shown.body) == len(intervals("T", rows, keys).body) == len(found)


def test_copies_of_the_baseline_are_known_by_their_content() -> None:
    block = Block("w", "s", MeshShape.parse("data=1"), 8, StepOptions()).name
    files = {"one": {"one.py": "1"}, "copy": {"copy.py": "1"}, "other": {"other.py": "2"}}
    run = type("Run", (), {})()
    run.cell_rows = [
        {"block": block, "implementation": name, "sources": {"implementation": own}}
        for name, own in files.items()
    ]
    run.block_rows = [{"block": block, "baseline": "one"}]
    run.samples = pd.DataFrame({"block": block, "arm": ["one", "copy", "other", TWIN]})
    assert set(equal_arms.equal_samples(run)["arm"]) == {"one", "copy", TWIN}
    for row in run.cell_rows:
        del row["sources"]
    assert set(equal_arms.equal_samples(run)["arm"]) == {"one", TWIN}


def test_the_command_judges_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equal_arms, "ROUNDS", (16,))
    file = tmp_path / "samples.csv"
    samples(blocks=1, rounds=40).drop(columns="load").to_csv(file, index=False)
    done = CliRunner().invoke(app, ["selftest", "--samples", str(file)], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "16 rounds" in done.output
    assert "95 % intervals" in done.output
    for name, reason in (("nowhere.csv", "there is no run"), (str(file), "no 16 rounds of two")):
        samples(blocks=1, rounds=10).to_csv(file, index=False)
        refused = CliRunner().invoke(app, ["selftest", "--samples", name])
        assert refused.exit_code == 4
        assert reason in refused.stderr
    pd.DataFrame({"arm": ["a"]}).to_parquet(tmp_path / "x.parquet")
    refused = CliRunner().invoke(app, ["selftest", "--samples", str(tmp_path / "x.parquet")])
    assert "has no columns attempt, block" in refused.stderr
