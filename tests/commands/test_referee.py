"""A referee, from the outside and with a worker that behaves as told."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from fronts import Done, Front

from bench.analyse import alpha_spending
from bench.analyse.outcomes import Ruling
from bench.plan.options import command_parser
from bench.present.attempt_record import diagnosis
from bench.records.paths import ROOT
from tests.slow import slow


class Referee:
    def __init__(self, folder: Path) -> None:
        self.front = Front(folder)
        for name in ("best", "mine", "other"):
            (folder / f"{name}.py").write_text(f'"""{name}."""\n')

    def __call__(self, *words: str, **behaviour) -> Done:
        self.front.told(equal=True, **behaviour)
        return self.front("referee", *words)

    def judged(self, *words: str, **behaviour) -> tuple[int, dict]:
        done = self(*words, "--json", **behaviour)
        assert done.out.count("\n") == 1, done
        return done.code, json.loads(done.out)

    @property
    def ledger(self) -> Path:
        return self.front.folder / "reports" / "referee.jsonl"


@pytest.fixture
def referee(tmp_path: Path) -> Referee:
    return Referee(tmp_path)


def test_what_is_faster_is_kept_and_becomes_an_incumbent(referee: Referee) -> None:
    code, found = referee.judged("best.py", "mine.py", "other.py", times={"mine": 0.8, "other": 2})
    assert code == 0
    mine, other = found["attempts"]
    assert (mine["decision"], other["decision"]) == ("keep", "discard")
    assert mine["low"] <= mine["ratio"] <= mine["high"] < 1 < other["low"]
    assert found["block"] == "mlp-base/data=1/b256/fp32"
    # All of a batch have the level of its last.
    assert mine["level"] == other["level"] == alpha_spending.level([], 2)
    stored = referee.front.stored(mine["run"])
    (look,) = [row["looks"][-1] for row in stored.block_rows if row["launch"] == 0]
    assert look["spent"] <= alpha_spending.ALPHA
    done = referee("mine.py", "other.py", times={"other": 0.5})
    assert done.code == 0, done
    assert "mlp-base/data=1/b256/fp32  2 ok, 1 of 1 decided" in done.err
    kept = r"keep 3 other: a factor of (1\.9|2\.0) to 2\.[01] faster, ratio 0\.50"
    assert re.match(kept, done.out)
    record = r"Record: 0\.40\d times the first incumbent, best, after 3 attempts, 2 kept"
    assert re.search(record, done.out)
    assert done.out.splitlines()[-1] == "attempts: reports/referee.html"
    page = (referee.ledger.parent / "referee.md").read_text()
    assert [line.split(" | ")[2] for line in page.splitlines() if "e-" in line] == [
        "keep", "discard", "keep",
    ]  # fmt: skip
    html = (referee.ledger.parent / "referee.html").read_text()
    assert html.count('<td class="long">') == 3, "reasons fold"
    tests = [json.loads(line) for line in referee.ledger.read_text().splitlines()]
    assert tests[-2]["level"] == alpha_spending.level([True, False])


@pytest.mark.slow
def test_a_workloads_file_given_alone_is_the_block(referee: Referee) -> None:
    (referee.front.folder / "own.py").touch()
    own = "--workload-path", str(referee.front.folder / "own.py")
    code, found = referee.judged("best.py", "mine.py", *own, times={"mine": 0.8})
    assert (code, found["block"]) == (0, "own-tiny/data=1/b64/fp32")
    assert referee.judged("mine.py", "other.py", times={"other": 2})[0] == 1


@pytest.mark.slow
def test_no_difference_is_discarded_and_few_rounds_are_undecided(referee: Referee) -> None:
    code, found = referee.judged("best.py", "mine.py", "--margin", "20")
    assert (code, found["attempts"][0]["decision"]) == (1, "discard")
    assert found["record"] == 1.0
    few = ("--rounds", "4", "--launches", "1")
    code, found = referee.judged("best.py", "mine.py", *few)
    assert (code, found["attempts"][0]["decision"]) == (2, "undecided")


@pytest.mark.slow
def test_a_wrong_step_is_discarded_with_its_diagnosis_and_costs_no_error(referee: Referee) -> None:
    code, found = referee.judged("best.py", "mine.py", mine="wrong")
    assert code == 1
    (mine,) = found["attempts"]
    assert mine["reason"] == "wrong: gradients 2 times too large"
    assert not mine["tested"]
    assert len(referee.front.jobs) == 1, "no launch measures the incumbent alone"
    _, found = referee.judged("best.py", "other.py")
    assert found["attempts"][0]["level"] == mine["level"]


def test_a_copy_of_the_incumbent_is_not_measured(referee: Referee) -> None:
    shutil.copy(referee.front.folder / "best.py", referee.front.folder / "copied.py")
    done = referee("best.py", "copied.py")
    assert done.code == 1, done
    assert done.out.startswith("discard 1 copied: identical to the incumbent, so it was")
    assert not referee.front.jobs
    _, found = referee.judged("best.py", "copied.py")
    (copied,) = found["attempts"]
    assert [copied[key] for key in ("ratio", "low", "high", "rounds")] == [None] * 4


@pytest.mark.parametrize(
    ("words", "behaviour", "error"),
    [
        (("none.py", "mine.py"), {}, "there is no file none.py"),
        (("jit_spmd", "mine.py"), {}, "there is no file jit_spmd"),
        (("best.py", "log.txt"), {}, "there is no file log.txt"),
        (("best.py", "./best.py"), {}, "./best.py has the same name as best.py; rename it"),
        (
            (f"{ROOT}/implementations/pmap.py", f"{ROOT}/implementations/pmap.py"),
            {},
            "pmap is given twice",
        ),
        (("best.py",), {}, "the following arguments are required: CHALLENGER.py"),
        (("best.py", "mine.py", "--meshes", "data=1", "data=2"), {}, "a referee judges one block"),
        (
            ("best.py", "mine.py", "--ledger", "/proc/x/ledger.jsonl"),
            {},
            "error: /proc/x/ledger.jsonl: no such file or directory",
        ),
        *slow(
            (("best.py", "mine.py"), {"best": "wrong"}, "the incumbent fails, wrong: gradients 2")
        ),
    ],
)
def test_bad_input_has_one_line_and_a_code(
    referee: Referee, words: tuple[str, ...], behaviour: dict, error: str
) -> None:
    done = referee(*words, **behaviour)
    assert done.code == 4, done
    (line,) = [line for line in done.err.splitlines() if "error" in line]
    assert error in line
    assert referee.ledger.exists() == ("the incumbent fails" in error), "else empty"


def test_a_program_of_another_framework_is_not_compared() -> None:
    figures = {"memory_bytes": 1e6, "compiled_flops": 1e6, "wire_bytes": 0.0, "compile_s": 1.0}
    own = {"cell": "best", "fingerprint": "f", **figures}
    unknown = dict.fromkeys(("memory_bytes", "compiled_flops", "wire_bytes"), math.nan)
    foreign = {"cell": "mine", "fingerprint": "", "compile_s": 2.0, **unknown}
    ruling = Ruling("keep", "", None, (foreign, own))
    told = diagnosis(ruling, "mine", "best", {})
    assert [text.replace("\N{NARROW NO-BREAK SPACE}", " ") for text in told] == [
        "mine and best may or may not run the same program: this could not be determined.",
        "compile time: 2.00 s, incumbent 1.00 s",
    ]
    assert diagnosis(Ruling("discard", "it fails"), "mine", "best", {}) == []


@pytest.mark.slow
def test_another_question_or_incumbent_is_refused(referee: Referee) -> None:
    assert referee("best.py", "mine.py", times={"mine": 2}).code == 1
    before = referee.ledger.read_bytes()
    done = referee("best.py", "mine.py", "--meshes", "data=2")
    assert done.code == 4, done
    assert "is about mlp-base/data=1/b256/fp32, not mlp-base/data=2/b256/fp32" in done.err
    done = referee("mine.py", "other.py")
    assert done.code == 4, done
    assert "mine.py is neither the first incumbent" in done.err
    assert referee.ledger.read_bytes() == before


@pytest.mark.slow
def test_a_ledger_survives_a_kill_and_refuses_damage(referee: Referee) -> None:
    process = referee.front.told(mine="hang").start("referee", "best.py", "mine.py")
    referee.front.wait_for_hang(process)
    process.kill()
    process.communicate(timeout=60)
    # The attempt has begun, so it counts; what was being written meanwhile does not.
    with referee.ledger.open("ab") as file:
        file.write(b'{"line": 2, "numb')
    code, found = referee.judged("best.py", "other.py", times={"other": 0.5})
    assert code == 0
    assert found["attempts"][0]["number"] == 2
    assert found["attempts"][0]["level"] == alpha_spending.level([False])
    assert found["curve"] == [1.0, pytest.approx(0.5, rel=1e-2)]
    text = referee.ledger.read_text()
    for damaged in (text.replace("0.5", "0.4", 1), text.partition("\n")[2]):
        referee.ledger.write_text(damaged)
        done = referee("best.py", "mine.py")
        assert done.code == 4, done
        assert "referee.jsonl, line 1" in done.err or "line " in done.err
        assert "restore the file, or name another ledger" in done.err


@pytest.mark.slow
def test_an_interruption_leaves_an_attempt_that_found_nothing(referee: Referee) -> None:
    process = referee.front.told(mine="hang").start("referee", "best.py", "mine.py")
    referee.front.wait_for_hang(process)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert [json.loads(line)["line"] for line in referee.ledger.read_text().splitlines()] == [0, 1]


def test_the_help_states_the_default_block() -> None:
    page = " ".join(command_parser("referee").format_help().split())
    assert "(default: those of the preset; mlp for referee)" in page
    assert "not below 2; data=1 for referee)" in page
