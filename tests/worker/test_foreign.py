"""Arms in processes of their own: NumPy children that are right, or wrong in one way."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count

import jax
import numpy as np
import psutil
import pytest

from bench.contract.foreign import read_arrays, run, write_arrays
from bench.contract.workloads import gpt2_muon, linear, moe, vae
from bench.records import temporary_folders
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.records.paths import ROOT
from bench.records.row_parts import AS_TIMED, OWN, SGD, TIMED_SGD
from bench.records.step_programs import unpacked
from bench.trials.faults.observed_run import _FOREIGN
from bench.worker.block_rounds import warm_arm
from bench.worker.file_loader import load
from bench.worker.foreign import foreign_arm
from bench.worker.foreign.children import Children
from bench.worker.foreign.foreign_module import foreign_module, traits_of
from bench.worker.problems import load_workload, make_mesh, make_problem, with_options
from bench.worker.prove import arm_checks
from bench.worker.prove.arm_checks import check_completion
from bench.worker.prove.carried_state import flat
from bench.worker.prove.failures import (
    ChildError,
    UnsupportedError,
    WrongStepError,
    why_unsupported,
)
from bench.worker.prove.gate import Gate
from bench.worker.prove.relative_errors import state_errors
from bench.worker.prove.repeated_turns import can_be_repeated
from bench.worker.prove.spot_checks import SpotChecks
from bench.worker.read.compilation import CompilationLog
from bench.worker.time.clock import Arm, measure
from implementations import jit_spmd

ONE = make_mesh(MeshShape.parse("data=1"))


def problem_of(precision):
    problem = linear.problem(linear.SIZES["tiny"](), 8, precision)
    return replace(problem, start=jax.device_get(problem.draw()))


def end_spare(module):
    """End the processes that no arm has taken over."""
    if module.spare:
        module.spare.close()


@pytest.fixture(scope="module")
def gate(programs):
    with jax.enable_x64(True):
        exact = problem_of("fp64")
    return Gate(problem_of("fp32"), exact, ONE, 1, "fp32", programs)


@pytest.fixture
def planted(tmp_path):
    """The module of a planted foreign file, whose processes end with the test."""
    modules = []

    def plant(name, change=("", ""), more=""):
        path = tmp_path / f"{name}.py"
        path.write_text(_FOREIGN.format(name=name).replace(*change) + more)
        modules.append(load(path))
        return modules[-1]

    yield plant
    for module in modules:
        end_spare(module)


@pytest.fixture
def arm(planted):
    """A planted arm as the rounds have it, but not warm."""
    arms = []

    def make(name, **kwargs):
        problem = problem_of("fp32")
        step = planted(name, **kwargs).build(problem, ONE)
        arms.append(step.arm(name, step.state, step.place(problem.batch(0))))
        return arms[-1]

    yield make
    for one in arms:
        one.children.close()


def test_a_foreign_step_is_proved_and_timed_like_any_other(gate, planted, tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    monkeypatch.setattr(temporary_folders, "SHARED_MEMORY", tmp_path / "shared")
    module, problem = planted("foreign_good"), problem_of("fp32")
    assert module.why_unsupported(problem, ONE) is None
    assert gate.prove_rounding(module)["name"] == TIMED_SGD
    assert [check["name"] for check in gate.prove_exact(module)] == [SGD, OWN]
    step = module.build(problem, ONE)
    check, state = gate.prove_timed(step, lambda: module.build(problem, ONE))
    assert check["name"] == AS_TIMED
    assert check["loss_error"] < 1e-5
    arm = warm_arm("foreign_good", step, state, problem)
    before = arm.steps
    assert arm.run(5) > 0
    assert arm.steps == before + 5
    losses = [float(loss) for _, loss in arm.losses]
    assert losses == sorted(losses, reverse=True), "it trains"
    assert not arm.why_untrusted()
    assert step.described(arm)["processes"] == 1
    assert list(tmp_path.glob("shared/*")) == [], "no file outlives its request"
    step.children.close()


def test_what_is_built_beside_an_arm_has_processes_and_a_state_of_its_own(planted):
    module, problem = planted("foreign_good"), problem_of("fp32")
    one = module.build(problem, ONE)
    one.arm("one", one.state, one.place(problem.batch(0)))
    two = module.build(problem, ONE)
    one.step(one.state, 0)
    start = jax.device_get(problem.draw())
    jax.tree.map(np.testing.assert_array_equal, start, jax.device_get(two.params(two.state)))
    assert np.any(one.params(one.state)["kernel"] != start["kernel"])
    one.children.close()
    two.children.close()


def test_the_worker_never_imports_a_foreign_file(planted):
    module = planted("foreign_good", more="\nimport no_such_package_either\n")
    assert module.FOREIGN == {}
    reason = module.why_unsupported(problem_of("fp32"), ONE)
    assert reason == "it needs the package no_such_package_either, which is not installed"


@pytest.mark.parametrize("workload", [vae, moe, gpt2_muon])
def test_a_workload_without_an_outline_is_unsupported(planted, workload):
    problem = workload.problem(workload.SIZES["tiny"](), 8, "fp32")
    for traits in ("{}", "{'command': ['another', 'python']}"):
        module = planted("foreign_good", change=("FOREIGN = {}", f"FOREIGN = {traits}"))
        assert "no outline" in module.why_unsupported(problem, ONE)


def test_an_outline_has_the_smaller_of_two_clippings():
    problem = linear.problem(linear.SIZES["tiny"](), 8, "fp32")
    for norm in (0.5, 2.0):
        problem = with_options(problem, StepOptions(clip_norm=norm))
        assert problem.outline["optimizer"]["clip_norm"] == 0.5


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("foreign_end", ChildError, "its process ended with exit code 7 when asked for 'run'"),
        ("foreign_print", ChildError, "writes 'printed.*' to the channel"),
        ("foreign_import", UnsupportedError, "needs the package no_such_package"),
        ("foreign_shapes", WrongStepError, "differ from the model's in names or shapes: kernel"),
    ],
)
def test_a_child_that_goes_wrong_is_a_reason(gate, planted, name, error, message):
    with pytest.raises(error, match=message):
        gate.prove_exact(planted(name))


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        ("SystemExit('enough')", ChildError, "raised SystemExit: enough when asked for 'build'"),
        ("MemoryError('8 TiB')", MemoryError, "8 TiB"),
        ("RuntimeError('RESOURCE_EXHAUSTED: 8 TiB')", MemoryError, "8 TiB"),
    ],
)
def test_what_a_child_raises_is_its_reason(planted, raised, error, message):
    module = planted("foreign_good", more=f"\ndef build(problem):\n    raise {raised}\n")
    with pytest.raises(error, match=message):
        module.build(problem_of("fp32"), ONE)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("", ""),
        ("self.kernel, self.bias = kept", "the parameters|the update|updates before are missing"),
        ("loss = 0.9 * loss", "the loss"),
    ],
)
def test_steps_in_processes_of_their_own_are_checked_in_the_rounds(arm, gate, fault, reason):
    more = f"""
right = build
def build(problem):
    step = right(problem)
    take, calls = step.step, 0
    def later(batch):
        nonlocal calls
        self, calls = step, calls + 1
        kept = (self.kernel, self.bias)
        loss = take(batch)
        if calls > 8:
            {fault or "pass"}
        return loss
    step.step = later
    return step
"""
    planted = arm("foreign_good", more=more)
    planted.run(6)
    checks = SpotChecks(gate, 3, 1.0)
    checks.begin([planted], lambda _: None)
    planted.run(3)
    before = list(planted._idle)
    with CompilationLog() as log:
        measure(
            [planted], 2, 0, log,
            lambda turns: checks.verify(lambda _: None) or ([] if len(turns) > 2 else None),
            checked_span=checks.checked_span,
        )  # fmt: skip
    checks.finish([], lambda _: None)
    assert re.search(reason, checks.reasons.get("foreign_good", ""))
    assert bool(checks.reasons) == bool(reason)
    assert planted._idle[0] > before[0]


def test_reading_a_state_is_no_work_between_turns(arm, monkeypatch):
    reading, seconds = arm("foreign_good"), count()
    monkeypatch.setattr(reading.children, "cpu_s", lambda: float(next(seconds)))
    reading.run(1)
    idle = reading._idle[1]
    reading.train_step.params(reading.state)
    assert reading._idle[1] == idle + 1, "what was used until then counts"
    reading.run(1)
    assert reading._idle[1] == idle + 2, "and what was used since"


def test_no_turn_is_repeated_from_a_state_in_another_process(arm):
    assert not can_be_repeated(arm("foreign_good").warm_up())


def test_answering_an_empty_request_is_no_work_between_turns(arm, monkeypatch):
    asking, used_s = arm("foreign_good"), [0.0]

    def asked(spans):
        used_s[0] += 1.0
        return [(20_000_000, [{"ns": 20_000_000, "loss": 1.0}]) for _ in spans]

    monkeypatch.setattr(asking, "_asked", asked)
    monkeypatch.setattr(asking.children, "cpu_s", lambda: used_s[0])
    for _ in range(2):
        asking.run(1)
    assert (asking._busy[1], asking._idle[1]) == (4.0, 0.0)


def test_a_lie_about_time_gains_next_to_nothing_and_is_found(arm):
    liar = arm("foreign_lie")
    least = (1 - foreign_arm.TRUSTED_SHARE) * 10e6 - liar.asking_ns
    for _ in range(20):  # on a busy host, a request may cost too much for a conviction
        spans = [liar.run(2) for _ in range(foreign_arm.SPANS)]
        assert min(spans) >= least, "two steps of five milliseconds"
        if liar.why_untrusted():
            break
    assert "shorter than the worker's clock shows" in liar.why_untrusted()


def test_answering_only_empty_requests_late_shortens_no_span(arm):
    late = arm(
        "foreign_good",
        more="""
import time
import __main__ as helper
right = helper.run
def run(step, batch, steps, wait_each):
    time.sleep(0.01 if steps else 0.005)
    return right(step, batch, steps, wait_each) | {"ns": 0}
helper.run = run
""",
    )
    assert late.asking_ns == foreign_arm.MOST_ASKING_NS
    assert late.run(1) >= (1 - foreign_arm.TRUSTED_SHARE) * 10e6 - foreign_arm.MOST_ASKING_NS


def test_a_worker_that_wakes_up_late_takes_no_time_from_the_next_span(arm, monkeypatch):
    late = arm("foreign_good")
    answer = {"ns": 20_000_000, "loss": 1.0}
    answers = iter([[(39_500_000, [answer]), (500_000, [answer])], [(1000, [])]])
    monkeypatch.setattr(late, "_asked", lambda spans: next(answers))
    assert late.run_spans([(1, False), (0, False), (1, True)]) == [20_000_000, 0, 20_000_000]


def test_a_span_that_is_longer_than_the_worker_waited_is_a_lie(arm, monkeypatch):
    """Else a gigantic latency would take the time of the other spans to itself."""
    longer = arm("foreign_good")
    spans = [(20_000_000, [{"ns": ns, "loss": 1.0}]) for ns in (20_000_000, 10**12)]
    answers = iter([spans, [(1000, [])]])
    monkeypatch.setattr(longer, "_asked", lambda asked: next(answers))
    with pytest.raises(WrongStepError, match=r"1e\+06 ms together, longer than the 40 ms"):
        longer.run_spans([(1, False), (1, True)])


def test_processes_that_take_turns_at_being_the_slowest_do_not_lie(arm, monkeypatch):
    """One waits for the other in an all-reduce, sometimes in this span, sometimes in the next."""
    uneven = arm("foreign_good")
    answers = [[{"ns": ns, "loss": 1.0} for ns in own] for own in ((12, 30), (28, 9))]
    told = iter([[(21, answers[0]), (20, answers[1])], [(0, [])]])
    monkeypatch.setattr(uneven, "_asked", lambda spans: next(told))
    uneven.asking_ns = 2
    assert uneven.run_spans([(1, False), (1, True)]) == [21, 19], "40 in all, as in the first"


@pytest.mark.parametrize("waited", [0, 8_000_000])
def test_who_waits_for_a_core_does_not_lie(arm, monkeypatch, waited):
    """Answers come 8 ms late, on a busy host or because the child's clock is slow."""
    late, total = arm("foreign_good"), count(0, waited)
    answer = {"ns": 20_000_000, "loss": 1.0}

    def asked(spans):
        return [(28_000_000, [answer]) if steps else (200_000, []) for steps, _ in spans]

    monkeypatch.setattr(late, "_asked", asked)
    monkeypatch.setattr(late.children, "waited_ns", lambda: next(total))
    for _ in range(foreign_arm.FEWEST_SPANS):
        late.run(1)
    assert bool(late.why_untrusted()) == (not waited)


@pytest.mark.parametrize(("unexplained", "lies"), [(3, False), (8, True)])
def test_who_is_late_for_an_unknown_reason_in_a_few_spans_does_not_lie(arm, unexplained, lies):
    """Of short spans, only those that were late are long; some waits for a core are not counted."""
    late = arm("foreign_good")
    for number in range(16):
        waited = 1_000_000 if number < unexplained else 3_600_000
        late._spans.append((4_000_000, 3_600_000, waited, 100_000))
    assert bool(late.why_untrusted()) == lies


def test_threads_that_work_on_between_turns_are_found(arm, monkeypatch):
    spinning, tenths = arm("foreign_good"), count()
    monkeypatch.setattr(spinning.children, "cpu_s", lambda: next(tenths) / 10)
    monkeypatch.setattr(arm_checks, "SETTLE_S", 0.0)
    with pytest.raises(WrongStepError, match="its threads still used"):
        check_completion(spinning)


@pytest.mark.parametrize(
    ("turns", "between_s", "busy"), [(6, 0.009, False), (6, 0.1, True), (60, 0.03, True)]
)
def test_threads_that_work_in_other_arms_turns_are_found(arm, monkeypatch, turns, between_s, busy):
    """OpenMP's threads spin for some milliseconds after each turn; others compile for a minute."""
    foreign, used_s, clock_s = arm("foreign_good"), [0.0], [0.0]
    monkeypatch.setattr(foreign.children, "cpu_s", lambda: used_s[0])
    monkeypatch.setattr(foreign_arm.time, "monotonic", lambda: clock_s[0])
    foreign.run(1)
    clock_s[0] += 60.0
    foreign.begin_rounds()
    for _ in range(turns):
        foreign.run(1)
        used_s[0] += between_s
        clock_s[0] += 0.15
    foreign.run(1)
    assert ("of a core while other arms were timed" in foreign.why_untrusted()) == busy


def test_more_cores_than_its_share_are_found(arm, monkeypatch):
    greedy = arm("foreign_good")
    seconds = count(0, 10)
    monkeypatch.setattr(greedy.children, "cpu_s", lambda: next(seconds))
    monkeypatch.setattr(foreign_arm, "IDLE_SHARE", 1e9)
    for _ in range(3):
        greedy.run(2)
    assert "cores, but its share is 1" in greedy.why_untrusted()


@pytest.mark.parametrize(("told_ms", "lies"), [(2, True), (20, False)])
def test_spans_too_short_for_their_cpu_time_are_a_lie_on_the_busiest_host(
    arm, monkeypatch, told_ms, lies
):
    """The threads waited for a core all the time that is missing, as far as anyone knows."""
    busy, seconds, waits = arm("foreign_good"), count(0, 0.03), count(0, 10**9)
    busy.asking_ns = 0
    answer = {"ns": told_ms * 1_000_000, "loss": 1.0}

    def asked(spans):
        time.sleep(0.03)
        return [(30_000_000, [answer]) if steps else (50_000, []) for steps, _ in spans]

    monkeypatch.setattr(busy, "_asked", asked)
    monkeypatch.setattr(busy.children, "waited_ns", lambda: next(waits))
    monkeypatch.setattr(busy.children, "cpu_s", lambda: next(seconds))
    monkeypatch.setattr(foreign_arm, "IDLE_SHARE", 1e9)
    for _ in range(foreign_arm.FEWEST_SPANS):
        busy.run(1)
    assert ("clock shows, 0.024 s for 0.36 s of CPU time" in busy.why_untrusted()) == lies


def test_what_a_child_starts_ends_with_it(arm):
    leaving = arm("foreign_good", more=(
        "\nimport subprocess\nsubprocess.Popen(['sleep', '3600'])\n"
    ))  # fmt: skip
    leaving.children.find_counted()
    (left,) = psutil.Process(leaving.children._processes[0].pid).children()
    leaving.children.close()
    assert psutil.wait_procs([left], timeout=60)[1] == []


def test_processes_for_each_device_must_agree(planted):
    mesh = make_mesh(MeshShape.parse("data=2"))
    per_device = ("FOREIGN = {}", "FOREIGN = {'per_device': True}")
    problem = problem_of("fp32")
    agreeing = planted("foreign_good", change=per_device).build(problem, mesh)
    agreeing.place(problem.batch(0))
    _, loss = agreeing.step(agreeing.state, 0)
    assert float(loss) > 0
    assert agreeing.children.threads == 1
    assert len(agreeing.children) == 2
    agreeing.children.close()
    more = "\nright = build\ndef build(problem):\n    import os\n    step = right(problem)\n"
    more += "    step.rate *= 1 + int(os.environ['RANK'])\n    return step\n"
    drifting = planted("foreign_drift", change=per_device, more=more).build(problem, mesh)
    drifting.place(problem.batch(0))
    drifting.step(drifting.state, 0)
    with pytest.raises(WrongStepError, match="kernel is not the same in process 0 and process 1"):
        drifting.params(drifting.state)
    drifting.children.close()


def test_any_program_may_answer(tmp_path):
    """The protocol needs no helper: a program of another language reads lines and writes lines."""
    program = 'import sys\nfor line in sys.stdin: print(\'{"reason": "only on Mars"}\', flush=True)'
    path = tmp_path / "rover.py"
    path.write_text(f"FOREIGN = {{'command': [{sys.executable!r}, '-c', {program!r}]}}\n")
    module = foreign_module(path, isolated=False)
    assert module.why_unsupported(problem_of("fp32"), ONE) == "only on Mars"
    end_spare(module)


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["linear", "vae", "resnet"])
def test_a_jax_step_in_a_process_of_its_own_is_the_same_step(tmp_path, workload):
    """The base of arms of another jax: here it is this one, in float64 and as it is timed."""
    command = [sys.executable, "-m", "bench.worker.foreign.jax_child"]
    command.append(str(ROOT / "implementations/jit_spmd.py"))
    (tmp_path / "isolated.py").write_text(f"FOREIGN = {{'command': {command}}}\n")
    module, block = load(tmp_path / "isolated.py"), Block(
        workload, "tiny", MeshShape.parse("data=2"), 8, StepOptions(clip_norm=0.5)
    )  # fmt: skip
    mesh, source = make_mesh(block.mesh), load_workload(block, [])
    with jax.enable_x64(True):
        exact = make_problem(source, block, "fp64")
    problem = make_problem(source, block, "fp32")
    problem = replace(problem, start=jax.device_get(problem.draw()))
    gate = Gate(problem, exact, mesh, 2, "fp32", tmp_path)
    assert module.why_unsupported(problem, mesh) is None
    gate.prove_exact(module)
    gate.prove_rounding(module)
    step = module.build(problem, mesh)
    _, state = gate.prove_timed(step, lambda: module.build(problem, mesh))
    arm = warm_arm("isolated", step, state, problem)
    assert arm.run(3) > 0
    assert not arm.why_untrusted()
    assert step.versions["jax"] == jax.__version__
    # What it says of its programs is what the worker would say.
    assert step.figures["memory"]["total_bytes"] > 0
    assert step.figures["communication"][0]["kind"] == "all-reduce"
    assert unpacked(step.figures["program"]["operations"])
    step.children.close()
    module.known_figures = True  # by an earlier launch
    again = module.build(problem, mesh)
    assert not again.figures
    again.children.close()


@pytest.mark.slow
def test_an_isolated_step_carries_model_state():
    """The averages and keys that it returns are those of the step in the worker."""
    block = Block("resnet", "tiny", MeshShape.parse("data=1"), 8, StepOptions())
    drawn = make_problem(load_workload(block, []), block, "fp32")
    # The process gets these averages and this key, and does not draw its own.
    state = jax.tree.map(lambda x: x + 1 if x.dtype == np.float32 else x, drawn.draw_state())
    problem, batch = replace(drawn, start_state=state), drawn.batch(0)
    module = foreign_module(ROOT / "implementations/jit_spmd.py", isolated=True)
    assert why_unsupported(module, problem, ONE) == ""
    left = []
    for step in (module.build(problem, ONE), jit_spmd.build(problem, ONE)):
        after, _ = step.step(step.state, step.place(batch))
        left.append(flat(step.model_state(after)))
    end_spare(module)
    assert state_errors(*left, flat(state)) == pytest.approx(dict.fromkeys(left[0], 0), abs=1e-4)
    stateless = foreign_module(ROOT / "implementations/fsdp_shard_map.py", isolated=True)
    assert why_unsupported(stateless, problem, ONE).startswith("it carries no model state, and")
    end_spare(stateless)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def why_unsupported(*_): pass\ndef build(*_): pass", "build returns a NoneType"),
        ("def why_unsupported(*_): return 3\ndef build(*_): pass", "why_unsupported returns 3"),
    ],
)
def test_an_isolated_step_is_wrong_as_it_is_in_the_worker(tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    block = Block("linear", "tiny", MeshShape.parse("data=1"), 8, StepOptions())
    problem = make_problem(load_workload(block, []), block, "fp32")
    module = foreign_module(tmp_path / "mine.py", isolated=True)
    with pytest.raises(WrongStepError, match=f"^{message}"):
        assert why_unsupported(module, problem, ONE) or module.build(problem, ONE)
    end_spare(module)


def test_the_manuals_example_passes_the_gate(gate, tmp_path):
    text = (ROOT / "docs/foreign-contract.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "least_squares.py").write_text(example)
    module = load(tmp_path / "least_squares.py")
    gate.prove_exact(module)
    assert gate.prove_rounding(module)["update_error"] < 1e-5
    end_spare(module)


@pytest.mark.parametrize(
    ("ask", "answer", "message"),
    [
        ("run", '{"loss": 1}', "its answer to 'run' has no valid 'ns': it is missing"),
        ("run", '{"loss": 1, "ns": -5}', "its answer to 'run' has no valid 'ns': -5"),
        ("run", '{"loss": 1, "ns": NaN}', "its answer to 'run' has no valid 'ns': nan"),
        ("run", '{"loss": 1, "ns": true}', "its answer to 'run' has no valid 'ns': True"),
        ("run", '{"loss": "1", "ns": 5}', "its answer to 'run' has no valid 'loss': '1'"),
        ("build", "{}", "its answer to 'build' has no valid 'versions': it is missing"),
        ("build", '{"versions": ["1"]}', "has no valid 'versions': ['1']"),
        ("why_unsupported", "{}", "no valid 'reason': it is missing"),
        ("why_unsupported", '{"reason": 5}', "has no valid 'reason': 5"),
        ("run", '{"loss": NaN, "ns": 5}', ""),
        ("build", '{"versions": {"gcc": "14"}}', ""),
    ],
)
def test_an_answer_has_what_the_protocol_asks_for(ask, answer, message):
    children = Children([sys.executable, "-c", f"input(); print({answer!r})"], 1, 1, {})
    wrong = pytest.raises(ChildError, match=re.escape(message or "$"))
    with wrong if message else contextlib.nullcontext():
        children.ask(ask)
    assert children.closed == bool(message)
    children.close()


def test_a_command_that_is_not_installed_is_a_reason(tmp_path):
    (tmp_path / "far.py").write_text('FOREIGN = {"command": ["/no/such/python", "x"]}\n')
    module, problem = load(tmp_path / "far.py"), problem_of("fp32")
    reason = "it needs /no/such/python, which is not installed"
    assert why_unsupported(module, problem, ONE) == reason
    with pytest.raises(UnsupportedError, match=reason):
        module.build(problem, ONE)


def test_processes_end_if_a_later_one_cannot_start(monkeypatch):
    start, started = subprocess.Popen, []

    def popen(*args, **kwargs):
        if started:
            raise BlockingIOError("no more processes")
        started.append(start(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(BlockingIOError, match="no more processes"):
        Children(["sleep", "60"], 2, 1, {})
    assert started[0].returncode == -9


def test_processes_are_as_many_as_the_mesh_needs(planted):
    module = planted("foreign_good", change=("FOREIGN = {}", "FOREIGN = {'per_device': True}"))
    problem = problem_of("fp32")
    for size in (1, 2):
        step = module.build(problem, make_mesh(MeshShape.parse(f"data={size}")))
        assert len(step.children) == size


def test_a_dead_process_ends_the_wait_for_the_others():
    command = [sys.executable, "-c", "import os, time; os.environ['RANK'] == '1' or time.sleep(60)"]
    with pytest.raises(ChildError, match="process 1 of 2 ended with exit code 0"):
        Children(command, 2, 1, {}).ask("why_unsupported")


def test_how_a_process_ended_is_told_before_its_last_line():
    program = "import sys; print('one\\ntwo\\n    @ 0x7f f()', file=sys.stderr); sys.exit(7)"
    message = "its process ended with exit code 7 when asked for 'run'; its last line: two"
    with pytest.raises(ChildError, match=message):
        Children([sys.executable, "-c", program], 1, 1, {}).ask("run")


@pytest.mark.parametrize(
    "given", ["{'pakages': []}", "{'isolated': True}", "'torch'", "dict(packages=[])"]
)
def test_faulty_traits_are_named(tmp_path, given):
    path = tmp_path / "faulty.py"
    path.write_text(f"FOREIGN = {given}")
    with pytest.raises(ValueError, match="a literal dict with keys among packages, per") as caught:
        load(path)
    assert given in str(caught.value)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("{'packages': 'numpy'}", "its packages must be a list of text"),
        ("{'packages': [1]}", "its packages must be a list of text"),
        ("{'command': 'python3 x.py'}", "its command must be a list of text"),
        ("{'command': []}", "its command must not be empty"),
        ("{'per_device': 1}", "its per_device must be True or False"),
        ("{'float64': 'no'}", "its float64 must be True or False"),
        ("{'variables': {'TF32': None}}", "its variables must be a dict of text"),
        ("{'variables': {1: 'x'}}", "its variables must be a dict of text"),
        ("{'variables': ['A=x']}", "its variables must be a dict of text"),
        ("{'variables': {'PYTHONPATH': 'x'}}", "it sets PYTHONPATH, which Lockstep sets itself"),
    ],
)
def test_faulty_values_of_traits_are_named(tmp_path, given, wanted):
    path = tmp_path / "faulty.py"
    path.write_text(f"FOREIGN: dict = {given}")
    with pytest.raises(ValueError, match=re.escape(f"FOREIGN is {given}; {wanted}")):
        load(path)


def test_files_without_traits_are_not_foreign(tmp_path):
    for text in ("", "NOT_FOREIGN = 1", "FOREIGN =", "FOREIGN: dict"):
        (tmp_path / "own.py").write_text(text)
        assert traits_of(tmp_path / "own.py") is None
    assert Arm("own", None, None, None).children_cpu_s() == 0


def test_arrays_are_written_as_safetensors(tmp_path):
    arrays = {"a/b": np.arange(6.0).reshape(2, 3).T, "c": np.int32(7), "d": np.zeros(0, "f")}
    arrays |= {"mask": np.array([True, False]), "pixels": np.array([-1, 2], np.int8)}
    write_arrays(tmp_path / "x", arrays)
    read = read_arrays(tmp_path / "x")
    jax.tree.map(np.testing.assert_array_equal, arrays, read)
    assert read["a/b"].flags.writeable
    # The format: the header's length in 8 bytes, JSON, and the data that it places.
    data = (tmp_path / "x").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert header["c"] == {"dtype": "I32", "shape": [], "data_offsets": [48, 52]}
    # Other programs may place the data anywhere.
    shifted = (size + 1).to_bytes(8, "little") + data[8 : 8 + size] + b" " + data[8 + size :]
    (tmp_path / "x").write_bytes(shifted)
    read = read_arrays(tmp_path / "x")
    jax.tree.map(np.testing.assert_array_equal, arrays, read)
    assert all(array.flags.aligned for array in read.values())


def test_a_span_ends_when_the_step_says_that_the_device_was_done():
    class Step:
        waits = ()

        def step(self, _batch):
            return 1.0

        def wait(self):
            self.waits += ("all",)
            return time.perf_counter_ns() - 10**12

        def wait_for_loss(self):
            self.waits += ("loss",)

    step = Step()
    assert run(step, None, 3, wait_each=True)["ns"] < 0
    assert step.waits == ("loss", "loss", "loss", "all")
    assert run(step, None, 0, wait_each=False)["ns"] >= 0  # an empty request waits for nothing


def test_infinite_losses_are_alike():
    assert np.isnan(foreign_arm.the_same([float("nan")] * 2, "the loss"))


def test_a_variants_flags_are_added_to_those_of_the_worker(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--ours")
    code = "import json, os; input(); print(json.dumps({'flags': os.environ['XLA_FLAGS']}))"
    children = Children([sys.executable, "-c", code], 1, 1, {"XLA_FLAGS": "--theirs"})
    try:
        assert children.ask("flags") == [{"flags": "--ours --theirs"}]
    finally:
        children.close()
