"""The worker process as the supervisor sees it: a job in, events out."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from bench.measure.environment import child_environment, worker_environment
from bench.records.arms import IN_PARTS, TWIN, WHOLE_BATCH
from bench.records.mesh import MeshShape
from bench.records.messages import UNFINISHED
from bench.records.paths import module_command
from bench.records.rows import Ceilings
from bench.records.step_programs import expanded
from bench.worker.block_session import BlockSession
from bench.worker.problems import make_mesh
from bench.worker.prove.arm_checks import ENDLESS
from bench.worker.trace.profiler import PASSES
from implementations import local_steps

ROOT = Path(__file__).parents[2]

JOB = {
    "attempt": "a1",
    "launch": 0,
    "workload": "linear",
    "size": "tiny",
    "mesh": "data=2",
    "batch": 8,
    "options": "fp32",
    "implementations": [
        *("jit_spmd", "noisy", "wrong", "broken", "elsewhere", "greedy", "hasty", "lavish"),
        *("restless", "leaves", "interrupts", "clockmaker", "poisoner", "latecomer"),
    ],
    "baseline": "jit_spmd",
    "proved": {},
    "rounds": 4,
    "seconds": 0.1,
    "ceilings": False,
    "seed": 0,
    "interleaved": True,
    "inputs": [],
    "ablations": [],
    "phases": {},
    "workload_paths": [],
    "base_files": {},
    "isolated": [],
}

RIGHT = "from implementations.jit_spmd import *\n"
OUTSIDE = {
    "noisy": RIGHT
    + "import os, sys\nprint('{}')\nos.system('echo not json')\n"
    + "print('loaded', *sys.modules)\n",
    "broken": RIGHT + "def build(problem, mesh):\n    raise RuntimeError('no such luck')\n",
    "elsewhere": RIGHT + "def why_unsupported(problem, mesh):\n    return 'only on Mars'\n",
    "greedy": RIGHT
    + "def build(problem, mesh):\n    raise MemoryError('RESOURCE_EXHAUSTED: 1 EiB')\n",
}
OUTSIDE["leaves"] = RIGHT + "def build(problem, mesh):\n    raise SystemExit('enough')\n"
OUTSIDE["interrupts"] = RIGHT + "def why_unsupported(problem, mesh):\n    raise KeyboardInterrupt\n"
OUTSIDE["clockmaker"] = RIGHT + "import time\ntime.perf_counter = lambda: 0.0\n"
OUTSIDE["poisoner"] = (
    RIGHT
    + "import json\ndef build(problem, mesh):\n"
    + "    json.JSONEncoder.iterencode = json.JSONEncoder.encode = lambda *_: '{'\n"
    + "    raise RuntimeError('poisoned')\n"
)
OUTSIDE["latecomer"] = """
import dataclasses, gc, jax, traceback
from bench.worker.prove import spot_checks
from implementations import jit_spmd
from implementations.jit_spmd import why_unsupported
def build(problem, mesh):
    right = jit_spmd.build(problem, mesh)
    def step(state, batch):
        if any(frame.f_code.co_name == "take_turn" for frame, _ in traceback.walk_stack(None)):
            spot_checks.why_drifting = None
            gc.enable()
            jax.config.update("jax_debug_nans", True)
        return right.step(state, batch)
    return dataclasses.replace(right, step=step)
"""
OUTSIDE["hasty"] = """
import dataclasses, hashlib, itertools, threading, time
from implementations import jit_spmd
from implementations.jit_spmd import why_unsupported
def build(problem, mesh):
    right = jit_spmd.build(problem, mesh)
    until, threads, calls = 0.0, [], itertools.count()
    def later():
        while time.monotonic() < until:
            hashlib.sha256(bytes(1 << 20))  # about a millisecond, without Python's lock
    def step(state, batch):
        nonlocal until
        until = time.monotonic() + 1.0
        # Not while its values are proved, which would only take longer beside busy threads.
        if next(calls) > 5 and not any(thread.is_alive() for thread in threads):
            threads[:] = [threading.Thread(target=later, daemon=True) for _ in range(8)]
            for thread in threads:  # several, which get their turns on a busy machine as well
                thread.start()
        return right.step(state, batch)
    return dataclasses.replace(right, step=step)
"""
OUTSIDE["lavish"] = """
import dataclasses, itertools, jax, jax.numpy as jnp
from jax.sharding import Mesh
from implementations import jit_spmd
from implementations.jit_spmd import why_unsupported
def build(problem, mesh):
    used, other = mesh.devices.flat
    right = jit_spmd.build(problem, Mesh([used], "data"))
    table = jax.device_put(jnp.full((500, 500), 1 / 500), other)
    more = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: y @ x, x))
    queue, calls = [], itertools.count()
    def step(state, batch):
        # Several are always left to do on the other device, which nothing waits for.
        queue[:] = [result for result in queue if not result.is_ready()]
        if next(calls) > 5 and len(queue) < 4:  # see above
            queue.append(more(table))
        return right.step(state, batch)
    return dataclasses.replace(right, step=step)
"""
OUTSIDE["restless"] = """
import dataclasses, jax, time
from implementations import jit_spmd
from implementations.jit_spmd import why_unsupported
def build(problem, mesh):
    right = jit_spmd.build(problem, mesh)
    last = 0.0
    def step(state, batch):
        nonlocal last
        if time.monotonic() > last + 0.01:  # in any four rounds, however few steps they have
            jax.jit(lambda x: x + 1)(1.0)  # another function each time
            last = time.monotonic()
        return right.step(state, batch)
    return dataclasses.replace(right, step=step)
"""
OUTSIDE["wrong"] = """
import dataclasses
from implementations import jit_spmd
from implementations.jit_spmd import why_unsupported
def build(problem, mesh):
    right = jit_spmd.build(problem, mesh)
    def step(state, batch):
        state, loss = right.step(state, batch)
        return state, 3 * loss
    return dataclasses.replace(right, step=step)
"""


WORKER = ("-m", "bench.worker")
SHORT_OF_CEILINGS = """
import runpy
from bench.worker.time import ceilings
ceilings.REPETITION_S, ceilings.PATIENCE, ceilings.cache_bytes = 1e-3, 1, lambda _: 1 << 20
runpy.run_module("bench.worker", run_name="__main__")
"""
"""A worker whose ceilings take one second instead of seven."""


def run_worker(job, answers="[]\n", program=WORKER):
    environment = worker_environment("cpu", 2)
    return subprocess.run(
        [sys.executable, "-W", "error", *program],
        input=json.dumps(job) + "\n" + answers,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    for name, source in OUTSIDE.items():
        (folder / f"{name}.py").write_text(source)
    profiles = folder / "profiles"
    job = JOB | {
        "implementation_paths": [str(folder / f"{name}.py") for name in OUTSIDE],
        "ceilings": True,
        "phases": {
            "trace": {"logdir": str(profiles), "run": "run", "steps": 2},
            "train": {"steps": 4},
        },
    }
    done = run_worker(job, program=("-c", SHORT_OF_CEILINGS))
    assert done.returncode == 0, done.stderr
    assert "not json" in done.stderr, "what implementations print is kept apart"
    return [json.loads(line) for line in done.stdout.splitlines()], profiles, done.stderr


def rows(events, kind):
    return [event["row"] for event in events[0] if event["event"] == kind]


def test_a_worker_starts_without_the_slow_parts_of_scipy(events):
    (loaded,) = (set(line.split()) for line in events[2].splitlines() if line.startswith("loaded "))
    assert {"jax", "bench.worker.prove.known_mistakes"} <= loaded
    assert not {"scipy.optimize", "scipy.stats"} & loaded, "each takes a third of a second"


def test_every_cell_ends_once_with_its_reason(events):
    ends = {row["implementation"]: (row["status"], row["reason"]) for row in rows(events, "cell")}
    assert ends["jit_spmd"] == ends["noisy"] == ("ok", "")
    told, right = (row for row in rows(events, "cell") if row["implementation"] == "jit_spmd")
    assert told == {name: right[name] for name in right if name != "profile"}, "before the trace"
    (reduced,) = right["communication"]
    assert (reduced["kind"], reduced["axes"], reduced["count"]) == ("all-reduce", ["data"], 1)
    assert right["cost"]["flops"] > 0
    assert right["traced_flops"] == right["model_flops"]
    assert ends["elsewhere"] == ("unsupported", "only on Mars")
    assert ends["greedy"] == ("oom", "RESOURCE_EXHAUSTED: 1 EiB")
    assert ends["broken"][0] == "crashed"
    assert "RuntimeError: no such luck (broken.py:3)" in ends["broken"][1]
    assert ends["leaves"] == ("crashed", "it calls sys.exit('enough') (leaves.py:3)")
    said = "KeyboardInterrupt in `raise KeyboardInterrupt` (interrupts.py:3)"
    assert ends["interrupts"] == ("crashed", said)
    assert ends["wrong"][0] == "wrong"
    assert "the loss is 3 times what it should be" in ends["wrong"][1]
    for late in ("hasty", "lavish"):
        assert ends[late][0] == "wrong"
        assert "returns before its work is done" in ends[late][1]
    assert ends["restless"][0] == "wrong"
    assert re.search(r"compiled [1-9]\d* programs while it was timed", ends["restless"][1])
    for name, what in (
        ("clockmaker", "time.perf_counter"),
        ("poisoner", "json.encoder.JSONEncoder"),
    ):
        assert ends[name][0] == "wrong"
        assert f"{name}.py replaces {what}" in ends[name][1]
    assert ends["latecomer"][0] == "wrong"
    assert "latecomer.py replaces bench.worker.prove.spot_checks" in ends["latecomer"][1]
    assert len(ends) + len(("jit_spmd", "noisy")) == len(rows(events, "cell")), "told twice"


@pytest.mark.slow
def test_an_approximate_step_is_proved_timed_and_marked_and_an_exact_one_like_it_is_wrong(tmp_path):
    hidden = "from implementations.compressed_bf16 import build, why_unsupported\n"
    (tmp_path / "hidden.py").write_text(hidden)
    job = JOB | {
        "batch": 64,
        "implementations": ["local_steps", "hidden", "jit_spmd"],
        "implementation_paths": [str(tmp_path / "hidden.py")],
        "baseline": "gone",
    }
    done = run_worker(job)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    cells = {each["row"]["implementation"]: each["row"] for each in found
             if each["event"] == "cell"}  # fmt: skip
    own = cells["local_steps"]
    assert (own["status"], own["reason"]) == ("ok", "")
    assert own["approximate"] == local_steps.approximate
    assert [check["name"] for check in own["proof"]] == ["statistical", "as timed"]
    (row,) = own["communication"]
    assert row["payload_bytes"] == 4 * (4 * 2 + 2) / 4 + 4, "parameters in every fourth step"
    assert "approximate" not in cells["jit_spmd"]
    assert cells["hidden"]["status"] == "wrong"
    assert "it can declare `approximate`" in cells["hidden"]["reason"]
    (samples,) = [each["rows"] for each in found if each["event"] == "samples"]
    assert {row["arm"] for row in samples} == {"local_steps", "jit_spmd", TWIN}
    *_, block = [each["row"] for each in found if each["event"] == "block"]
    assert block["baseline"] == "jit_spmd", "the first that is exact"


@pytest.mark.slow
def test_an_isolated_file_changes_its_own_process_alone(tmp_path):
    """What makes a file wrong beside others neither helps nor harms where it is alone."""
    sets = "jax.config.update('jax_default_matmul_precision', 'float32')\n"
    (tmp_path / "apart.py").write_text(f"{OUTSIDE['clockmaker']}import jax\n{sets}")
    job = JOB | {
        "implementations": ["jit_spmd", "apart"],
        "implementation_paths": [str(tmp_path / "apart.py")],
        "isolated": ["apart"],
    }
    done = run_worker(job)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    ends = [each["row"] for each in found if each["event"] == "cell"]
    cells = {row["implementation"]: row for row in ends}
    assert {name: (row["status"], row["reason"]) for name, row in cells.items()} == {
        "jit_spmd": ("ok", ""),
        "apart": ("ok", ""),
    }
    assert not any("jax_config" in row for row in cells.values())
    own, other = cells["apart"], cells["jit_spmd"]
    assert own["foreign"]["isolated"]
    assert "foreign" not in other
    assert [check["name"] for check in own["proof"]] == [check["name"] for check in other["proof"]]
    assert own["memory"]["total_bytes"] == other["memory"]["total_bytes"]
    (samples,) = [each["rows"] for each in found if each["event"] == "samples"]
    assert {row["arm"] for row in samples} == {"jit_spmd", "apart", TWIN}


@pytest.mark.slow
def test_isolation_is_no_place_to_cheat(tmp_path):
    """Neither short reports nor steps that change later, nor a process that ends, gets a time."""
    short = """
from bench.contract import foreign
real = foreign.run
foreign.run = lambda *asked: (told := real(*asked)) | {"ns": told["ns"] // 20}
"""
    # The helper's clock is bound before the file is loaded: to replace it changes nothing.
    clocked = "import time\ntime.perf_counter_ns = lambda real=time.perf_counter_ns: real() // 2\n"
    frozen = """
import dataclasses, itertools
import jax, jax.numpy as jnp
from implementations import jit_spmd
from implementations.jit_spmd import why_unsupported
def build(problem, mesh):
    right, calls = jit_spmd.build(problem, mesh), itertools.count()
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
    def step(state, batch):
        kept = copy(state) if next(calls) >= 12 else None
        state, loss = right.step(state, batch)
        return (state if kept is None else kept), loss
    return dataclasses.replace(right, step=step)
"""
    ends = RIGHT + "import os\ndef build(problem, mesh):\n    os._exit(7)\n"
    files = {"short": RIGHT + short, "clocked": RIGHT + clocked, "frozen": frozen, "ends": ends}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    job = JOB | {
        "workload": "mlp",
        "rounds": 20,
        "seconds": 8.0,  # spans of several ms, which is far more than asking costs
        "implementations": ["jit_spmd", *files],
        "implementation_paths": [str(path) for path in tmp_path.glob("*.py")],
        "isolated": ["jit_spmd", *files],
    }
    done = run_worker(job)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    rows = [each["row"] for each in found if each["event"] == "cell"]
    told = {row["implementation"]: (row["status"], row["reason"]) for row in rows}
    assert told["jit_spmd"] == told["clocked"] == ("ok", "")
    assert (told["short"][0], "the worker's clock" in told["short"][1]) == (
        "wrong",
        True,
    )
    assert (told["frozen"][0], "do not change" in told["frozen"][1]) == ("wrong", True)
    assert told["ends"] == (
        "crashed", "its process ended with exit code 7 when asked for 'build'"
    )  # fmt: skip
    (samples,) = [each["rows"] for each in found if each["event"] == "samples"]
    assert {row["arm"] for row in samples} == {"jit_spmd", "clocked", TWIN}


SPOILER = """
import dataclasses, os, sys, traceback
import jax
from implementations import jit_spmd
from implementations.jit_spmd import why_unsupported
def build(problem, mesh):
    right = jit_spmd.build(problem, mesh)
    def step(state, batch):
        if any(frame.f_code.co_name == "take_turn" for frame, _ in traceback.walk_stack(None)):
            {}
        return right.step(state, batch)
    return dataclasses.replace(right, step=step)
"""
"""A file that does something in its turns, of which its fate alone may depend."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("jax.clear_caches()", "it clears jax's caches"),
        ("jax.monitoring.clear_event_listeners()", "it removes the listeners"),
        ("sys.stdout.close(); sys.stderr.close(); os.closerange(1, 3)", ""),
        ("sys.stdout = sys.stderr = None; sys.stdin.close()", ""),
    ],
)
def test_who_spoils_the_process_is_alone_to_blame(tmp_path, does, reason):
    (tmp_path / "spoiler.py").write_text(SPOILER.format(does))
    job = JOB | {
        "implementations": ["jit_spmd", "spoiler"],
        "implementation_paths": [str(tmp_path / "spoiler.py")],
        "proved": {"jit_spmd": {}, "spoiler": {}},  # quicker
    }
    done = run_worker(job)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ends = {e["row"]["implementation"]: e["row"] for e in events if e["event"] == "cell"}
    if reason:  # a fresh worker measures the others
        assert done.returncode == 1
        assert ends.keys() == {"spoiler"}
        assert ends["spoiler"]["status"] == "wrong"
        assert reason in ends["spoiler"]["reason"]
    else:
        assert done.returncode == 0, done.stderr
        assert [row["status"] for row in ends.values()] == ["ok", "ok"]
        assert "jax_config" not in ends["spoiler"]


@pytest.mark.slow
def test_a_thread_that_never_rests_ends_the_worker_after_its_file(tmp_path):
    """It would disturb all other arms, which a fresh worker measures."""
    (tmp_path / "spins.py").write_text(
        "import hashlib, threading\n"
        "from implementations import jit_spmd\n"
        "from implementations.jit_spmd import why_unsupported\n"
        "def spin():  # hashing a long text releases Python's lock, so that all threads work\n"
        "    while True: hashlib.sha256(bytes(1 << 20))\n"
        "def build(problem, mesh):\n"
        "    for _ in range(4): threading.Thread(target=spin, daemon=True).start()\n"
        "    return jit_spmd.build(problem, mesh)\n"
    )
    done = run_worker(
        JOB | {
            "implementations": ["jit_spmd", "spins"],
            "implementation_paths": [str(tmp_path / "spins.py")],
            "proved": {"jit_spmd": {}, "spins": {}},  # quicker
        }
    )  # fmt: skip
    assert done.returncode == 1
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (row,) = [event["row"] for event in events if event["event"] == "cell"]
    assert (row["implementation"], row["status"]) == ("spins", "wrong")
    assert row["reason"].startswith(UNFINISHED)
    assert row["reason"].endswith(ENDLESS)


def test_a_child_that_a_step_has_forked_is_no_second_worker(tmp_path, monkeypatch):
    session = BlockSession(JOB, print, tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        session.put_back("")


@pytest.mark.skipif(importlib.util.find_spec("grain") is None, reason="the extra `input`")
@pytest.mark.slow
def test_what_grain_sets_for_the_process_is_no_files_doing():
    alone = {"implementations": ["jit_spmd"], "implementation_paths": []}
    done = run_worker(JOB | alone | {"inputs": ["loaded"]})
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    cells = [event["row"] for event in events if event["event"] == "cell"]
    assert [(row["status"], row["inputs"]) for row in cells] == [("ok", {"loaded": ""})]
    assert "jax_config" not in cells[0]


def test_processes_of_foreign_arms_start_before_the_reference_is_computed(tmp_path):
    """A faulty file starts none, and the proof tells why."""
    command = [sys.executable, "-c", "input()"]
    (tmp_path / "other.py").write_text(f"FOREIGN = {{'command': {command}}}")
    (tmp_path / "faulty.py").write_text("FOREIGN = 7")
    paths = [str(tmp_path / "other.py"), str(tmp_path / "faulty.py")]
    names = ["faulty", "jit_spmd", "other"]
    job = JOB | {"implementations": names, "implementation_paths": paths}
    session = BlockSession(job, print, tmp_path)
    session.mesh = make_mesh(MeshShape.parse("data=2"))
    session.start_children()
    started = session.foreign_module("other").spare
    assert (len(started), started.threads) == (1, 2)
    started.close()
    assert session.foreign_module("jit_spmd") is None
    with pytest.raises(ValueError, match="must be a literal dict"):
        session.foreign_module("faulty")


@pytest.mark.slow
def test_a_baseline_that_compiles_late_goes_with_its_twin(tmp_path):
    (tmp_path / "restless.py").write_text(OUTSIDE["restless"])
    job = JOB | {
        "implementations": ["restless", "jit_spmd"],
        "baseline": "restless",
        "implementation_paths": [str(tmp_path / "restless.py")],
    }
    done = run_worker(job)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    (samples,) = [event["rows"] for event in found if event["event"] == "samples"]
    assert {row["arm"] for row in samples} == {"jit_spmd"}
    (block,) = [event["row"] for event in found if event["event"] == "block"]
    assert block["baseline"] == "jit_spmd"


def test_only_right_cells_and_the_twin_have_samples(events):
    (samples,) = [event["rows"] for event in events[0] if event["event"] == "samples"]
    assert {row["arm"] for row in samples} == {"jit_spmd", "noisy", TWIN}
    assert len(samples) == 3 * JOB["rounds"]
    *_, block = rows(events, "block")
    assert {row["steps"] for row in samples} == {block["steps"]}
    assert block["baseline"] == "jit_spmd"
    meter = block["energy"]
    assert bool(meter["reason"]) != bool(meter["counted"]), "known or unknown, never neither"
    assert all(("energy" in row) == (not meter["reason"]) for row in samples)
    assert set(block["seconds"]) == {
        *("start", "ceilings", "gate", "compile", "measure", "spot checks", "trace", "train"),
    }


def test_the_machines_ceilings_are_measured_where_they_are_asked_for(events):
    for row in rows(events, "block"):
        assert set(row["ceilings"]) == set(Ceilings.__annotations__)
        assert all(figure > 0 for figure in row["ceilings"].values())


def test_a_right_cell_says_what_was_proved_compiled_and_planned(events):
    row = next(row for row in rows(events, "cell") if row["implementation"] == "jit_spmd")
    assert [check["name"] for check in row["proof"]] == [
        *("fp64 sgd", "fp64 optimizer", "timed sgd", "as timed")
    ]
    assert row["compile"]["compile_s"] > 0
    assert row["memory"]["total_bytes"] > 0
    assert row["model_flops"] == 4 * 8 * 4 * 2
    assert row["cell"] == "linear-tiny/data=2/b8/fp32/jit_spmd"


def test_a_trace_is_one_named_tensorboard_run_a_cell(events):
    folder = events[1] / "run/linear-tiny/data=2/b8/fp32/plugins/profile"
    assert {path.name for path in folder.iterdir()} == {"jit_spmd", "noisy"}
    assert list((folder / "jit_spmd").glob("*.xplane.pb"))
    traced = [row["profile"] for row in rows(events, "cell") if "profile" in row]
    assert sorted(traced) == [
        "run/linear-tiny/data=2/b8/fp32/jit_spmd",
        "run/linear-tiny/data=2/b8/fp32/noisy",
    ]


def test_a_trace_shows_where_each_step_went(events):
    found = {row["implementation"]: row for row in rows(events, "trace")}
    assert sorted(found) == ["jit_spmd", "noisy"]
    row = found["jit_spmd"]
    assert row["cell"] == "linear-tiny/data=2/b8/fp32/jit_spmd"
    # Several passes of two steps on two devices; TensorBoard shows one pass.
    assert {part["device"] for part in row["steps"]} == {0, 1}
    assert len(row["steps"]) == 2 * 2 * PASSES
    assert len(row["untraced_ns"]) == 2 * PASSES
    for part in row["steps"]:
        parts = (part[f"{name}_ns"] for name in ("dispatch", "compute", "wait", "move", "idle"))
        assert abs(sum(parts) - part["total_ns"]) <= 5
        assert part["compute_ns"] > 0
    opcodes = {op["opcode"] for op in row["ops"]}
    assert "all-reduce" in opcodes
    assert any(op["source"].startswith("optax/") for op in row["ops"])
    assert not any(op["source"].startswith(("/", "bench/worker/")) for op in row["ops"])


def test_one_traced_step_is_kept_whole(events):
    (row,) = [row for row in rows(events, "trace") if row["implementation"] == "jit_spmd"]
    drawn = expanded(row["drawn"])
    shown = [part for part in row["steps"] if part["step"] == drawn["step"]]
    lengths = [part["total_ns"] for part in row["steps"] if part["device"] == 0]
    middle = median(lengths)
    passes = [
        min(lengths[at : at + 2]) for at in range(0, len(lengths), 2)
    ]  # the lower median of two steps
    assert drawn["ns"] == shown[0]["total_ns"] == min(passes, key=lambda ns: abs(ns - middle))
    runs, kinds = drawn["runs"], drawn["ops"]["category"]
    for part in shown:
        spent = Counter()
        for device, op, ns, wait in zip(
            *(runs[c] for c in ("device", "op", "ns", "wait")), strict=True
        ):
            if device == part["device"]:
                spent[kinds[op]] += ns
                spent["wait"] += wait
        assert abs(spent["dispatch"] - part["dispatch_ns"]) <= 5
        assert spent["wait"] >= part["wait_ns"] - 5
        assert spent["collective"] - spent["wait"] >= part["move_ns"] - 5
    met = [(m, d) for m, d in zip(runs["meeting"], runs["device"], strict=True) if m >= 0]
    assert {device for _, device in met} == {0, 1}
    assert all((number, 1 - device) in met for number, device in met)


def test_a_cell_says_where_its_arrays_lie(events):
    (row,) = [r for r in rows(events, "cell") if r["implementation"] == "jit_spmd"][-1:]
    layout = expanded(row["layout"])
    assert (layout["axes"], layout["devices"]) == ([["data", 2]], [[0, 1]])
    assert [array["shape"] for array in layout["parameters"]] == [[2], [4, 2]]
    assert layout["parameters"][1]["parts"] == [{"index": [[0, 4], [0, 2]], "devices": [0, 1]}]
    held = layout["device_bytes"]
    assert held["parameters"] == {"0": 40, "1": 40}
    assert held["batch"] == {"0": 4 * 4 * (4 + 2), "1": 4 * 4 * (4 + 2)}


def test_right_cells_train_on_the_same_data_as_the_reference(events):
    found = {row["arm"]: row for row in rows(events, "losses")}
    assert list(found) == [WHOLE_BATCH, IN_PARTS, "jit_spmd", "noisy"]
    reference = found[WHOLE_BATCH]["losses"]
    assert len(set(reference)) == 4, "other data, and a step, each time"
    for row in found.values():
        assert row["losses"] == pytest.approx(reference, rel=1e-5)
        assert row["reason"] == ""
        assert row["tolerance"] == 2**-11.5


def test_phases_name_the_arm_they_are_about(events):
    phases = [(e["phase"], e["arm"]) for e in events[0] if e["event"] == "phase"]
    assert ("gate", "broken") in phases
    assert ("compile", "jit_spmd") in phases
    assert ("compile", "wrong") not in phases
    assert {phase for phase in phases if phase[0] == "trace"} == {
        ("trace", "jit_spmd"), ("trace", "noisy"),
    }  # fmt: skip


@pytest.mark.slow
def test_later_launches_find_programs_and_proofs_of_the_first(tmp_path):
    sets = tmp_path / "sets.py"
    sets.write_text(RIGHT + "import jax\njax.config.update('jax_traceback_in_locations_limit', 9)")
    job = JOB | {
        "implementations": ["jit_spmd", "shard_map_psum", "sets"],
        "implementation_paths": [str(sets)],
        "program_cache": str(tmp_path),
    }
    first = run_worker(job)
    assert first.returncode == 0, first.stderr
    known = {"jit_spmd": {"kernels": ["planted"]}, "sets": {}}
    later = run_worker(job | {"launch": 1, "proved": known})
    assert later.returncode == 0, later.stderr
    cells = [
        {
            event["row"]["implementation"]: event["row"]
            for event in map(json.loads, done.stdout.splitlines())
            if event["event"] == "cell"
        }
        for done in (first, later)
    ]
    # The first compiles everything, whoever else has the same program.
    assert [cells[0][name]["compile"]["cache_hits"] for name in job["implementations"]] == [0] * 3
    assert all(cells[1][name]["compile"]["cache_hits"] for name in job["implementations"])
    checks = {name: [c["name"] for c in row["proof"]] for name, row in cells[1].items()}
    whole = [*("fp64 sgd", "fp64 optimizer", "timed sgd", "as timed")]
    assert checks["shard_map_psum"] == whole
    # What a file has set is put back before anything is proved, its own step and others' alike.
    assert {name for name, row in cells[1].items() if "jax_config" in row} == {"sets"}
    assert checks["jit_spmd"] == checks["sets"] == ["as timed"]
    # What an earlier launch has read from the programs is not read again.
    assert cells[1]["jit_spmd"]["kernels"] == ["planted"]
    assert "memory" not in cells[1]["jit_spmd"]
    assert cells[1]["sets"]["memory"] == cells[0]["sets"]["memory"]
    assert cells[1]["sets"]["jax_config"] == ["jax_traceback_in_locations_limit"]


@pytest.mark.slow
def test_the_worker_asks_whether_its_rounds_are_enough(tmp_path):
    job = JOB | {"implementations": ["jit_spmd"], "implementation_paths": []}
    job |= {"proved": {"jit_spmd": {}}, "program_cache": str(tmp_path)}  # quicker
    job["rounds"] = 20
    both = '["jit_spmd", "twin"]\n'
    for answers, rounds, looks in (
        ("[]\n", 16, [16]),
        (both + "[]\n", 20, [16, 20]),
        (both * 2 + "[]\n", 25, [16, 20, 25]),  # beyond the plan, by a quarter of it
    ):
        done = run_worker(job, answers)
        assert done.returncode == 0, done.stderr
        events = [json.loads(line) for line in done.stdout.splitlines()]
        seen = [len(event["rows"]) // 2 for event in events if event["event"] == "look"]
        assert seen == looks
        (samples,) = [event["rows"] for event in events if event["event"] == "samples"]
        assert len(samples) == 2 * rounds
        (block,) = [event["row"] for event in events if event["event"] == "block"]
        assert block["rounds"] == rounds
        assert block["ceilings"] is None, "not asked for"


def test_the_catalogue_lists_what_there_is_and_what_is_broken(tmp_path):
    (tmp_path / "bad.py").write_text("import no_such_module\n")
    (tmp_path / "helped.py").write_text("import own_helper\n")
    (tmp_path / "own_helper.py").touch()
    (tmp_path / "exits.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "deadly.py").write_text("import os\nos._exit(1)\n")
    (tmp_path / "noisy.py").write_text("import os\nos.write(1, b'{\\xff}\\n[1]\\n')\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('named like a\x1b[2J library')\n")
    (tmp_path / "sizes.py").write_text("SIZES = {'a\x1b[2J': 1}\nDEFAULT_SIZE = problem = ''\n")
    (tmp_path / "counted.py").write_text(
        "SIZES, DEFAULT_SIZE = {124: 1}, 124\ndef problem(): ...\n"
    )
    (tmp_path / "none.py").write_text("SIZES, DEFAULT_SIZE = {'a': 1}, 'a'\nproblem = None\n")
    # A project's own modules can be imported, but never in place of Lockstep's.
    project = tmp_path / "project"
    project.mkdir()
    for name in ("bench", "implementations"):
        (project / f"{name}.py").write_text("raise RuntimeError('not of Lockstep')\n")
    (project / "of_project.py").touch()
    (tmp_path / "half.py").write_text(
        '"""Half."""\nimport of_project\ndef build(problem, mesh): ...\n'
    )
    (tmp_path / "vague.py").write_text(f"{RIGHT}approximate = True\n")
    request = {
        "implementation_paths": [
            str(tmp_path / f"{name}.py")
            for name in ("bad", "helped", "exits", "json", "half", "deadly", "noisy", "vague")
        ],
        "workload_paths": [str(tmp_path / f"{name}.py") for name in ("sizes", "counted", "none")],
        "fatal": {str(tmp_path / "deadly.py"): "it was killed"},
    }
    done = subprocess.run(
        module_command("bench.worker.answer.available"),
        input=json.dumps(request),
        capture_output=True,
        text=True,
        errors="replace",
        cwd=project,
        env=child_environment(),
        check=True,
    )
    *imported, answer = map(json.loads, done.stdout.splitlines())
    assert str(tmp_path / "bad.py") in imported
    assert str(tmp_path / "deadly.py") not in imported
    assert answer["platform"] == "cpu"
    implementations = {entry["name"]: entry for entry in answer["implementations"]}
    missing = "ModuleNotFoundError: No module named "
    assert implementations["bad"]["error"] == f"{missing}'no_such_module'"
    assert implementations["helped"]["error"] == (
        f"{missing}'own_helper'; to import own_helper.py, add its folder to PYTHONPATH"
    )
    assert "it calls sys.exit(0)" in implementations["exits"]["error"]
    assert implementations["deadly"]["error"] == "it was killed"
    assert implementations["noisy"]["error"] == "lacks build, why_unsupported"
    assert implementations["json"]["error"] == "RuntimeError: named like a library"
    assert implementations["half"]["error"] == "lacks why_unsupported"
    assert implementations["python_loop"]["error"] == ""
    assert not {"foreign", "approximate"} & implementations["python_loop"].keys()
    assert "it must say, as text, how the step differs" in implementations["vague"]["error"]
    assert "4 steps" in implementations["local_steps"]["approximate"]
    assert list(implementations["torch_eager"]["foreign"]) == ["torch"]
    workloads = {entry["name"]: entry for entry in answer["workloads"]}
    assert workloads["sizes"]["error"].startswith(r"SIZES: 'a\x1b[2J' is not made of letters")
    for name in ("counted", "none"):
        assert "problem must be a function, and the names in SIZES" in workloads[name]["error"]
    assert workloads["gpt2"]["sizes"] == ["tiny", "nano", "nano-512", "nano-2048", "deep", "124m"]
    assert workloads["gpt2"]["default"] == "nano"
    scanned = {name for name, entry in workloads.items() if entry["scans"]}
    assert scanned == {"gpt2", "gpt2_muon", "moe"}
