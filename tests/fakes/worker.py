"""Stands in for `python -m bench.worker`: behaves as FAKE_WORKER says, a JSON object.

{"B": "segv"}        what happens in the gate of an arm; see `act`
{"ranks": [{}, {}]}  the same of each process of a launch, by rank
{"equal": true}      all arms are equally fast
{"times": {"B": 2}}  so many times the step time that an arm would have
{"isolated": {}}     how it behaves where arms are isolated
{"beside": {"C": {}}} how it behaves where this arm is measured too
{"edits": FILE}      adds a line to it
{"turn": "B"}        it says that this arm has the turn before it measures, where it is not gone yet
{"proves": true}     rows of ok arms hold a proof and compile times, and their programs are kept
{"log": FILE}        every job is appended to it, a line each, with its XLA_FLAGS
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.records.cells import Block
from bench.records.current_arm import TurnWriter
from bench.records.messages import UNFINISHED
from bench.records.rows import block_fields

BEHAVIOUR = json.loads(os.environ.get("FAKE_WORKER", "{}"))
JOB = json.loads(sys.stdin.readline())
if "ranks" in BEHAVIOUR:
    BEHAVIOUR |= BEHAVIOUR["ranks"][JOB["place"]["rank"]]
if JOB["isolated"]:
    BEHAVIOUR |= BEHAVIOUR.get("isolated", {})
ARMS = JOB["implementations"]
for name, behaviour in BEHAVIOUR.get("beside", {}).items():
    if name in ARMS and not JOB["isolated"]:
        BEHAVIOUR |= behaviour
COMMON = block_fields(Block.of(JOB), JOB["attempt"], JOB["launch"])
BLOCK = COMMON["block"]
WRONG = {
    "wrong": "gradients 2 times too large",
    "busy": "its threads used 2 s of CPU time",
    "late": f"{UNFINISHED}: its threads still used 2 s of CPU time",
}


def say(**event) -> None:
    print(json.dumps({**event, "attempt": JOB["attempt"]}), flush=True)


def phase(name: str, arm: str = "") -> None:
    say(event="phase", phase=name, arm=arm, done=0, of=len(ARMS))


def cell(arm: str, status: str, reason: str) -> None:
    row = {
        **COMMON,
        "cell": f"{BLOCK}/{arm}",
        "implementation": arm,
        "status": status,
        "reason": reason,
    }
    if status == "ok":
        row |= {"unit": "samples", "units_per_step": JOB["batch"], "interleaved": True}
        row |= proof(arm) if "proves" in BEHAVIOUR else {}
    if BEHAVIOUR.get(arm) == "busy":
        row["threads_s"] = 2.0
    say(event="cell", row=row)


def proof(arm: str) -> dict:
    """Prove and compile, except what is known."""
    names = ["as timed"] if arm in JOB["proved"] else ["fp64 sgd", "as timed"]
    errors = dict.fromkeys(("loss_error", "update_error"), 1e-9 * (1 + JOB["launch"]))
    checks = [{"name": n, **errors, "loss_tolerance": 1, "update_tolerance": 1} for n in names]
    program = Path(JOB["program_cache"], arm, "program-cache")
    hits = int(program.exists())
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(b"machine code")
    times = {"trace_s": 0.1, "lower_s": 0.1, "compile_s": 0.01 if hits else 2.0}
    figures = JOB["proved"].get(arm) or {"product_flops": 7.0, "traced_flops": 8.0}
    return {"proof": checks, "compile": {**times, "cache_hits": hits}, **figures}


def act(arm: str, behaviour: str) -> tuple[str, str]:
    """End the process, or return how the cell ends."""
    match behaviour:
        case "segv":
            print(f"last words of {arm}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "litter":
            tempfile.mkdtemp(prefix="left-")
            os.kill(os.getpid(), signal.SIGKILL)
        case "exhausted":
            sys.exit("jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: allocating 3 GiB")
        case "hang":
            child = subprocess.Popen(["sleep", "300"])
            pids = Path(BEHAVIOUR["pids"])
            pids.with_suffix(".part").write_text(f"{os.getpid()} {child.pid}")
            pids.with_suffix(".part").replace(pids)  # whole as soon as it is there
            time.sleep(300)
        case "binary":
            sys.stderr.buffer.write(b"\x1b[31m\xff\xfe" * 200_000)
            sys.exit(3)
        case "babble":
            while True:
                phase("gate", arm)
                time.sleep(0.05)
        case "quit":
            sys.exit(0)
        case "garbage":
            print("{not json", flush=True)
        case "forge":
            print(json.dumps({"event": "samples", "rows": [1]}), flush=True)
        case "forge all":
            say(event="samples", rows=[1])
        case "wrong" | "busy" | "late":
            return "wrong", WRONG[behaviour]
        case "unsupported":
            return "unsupported", "needs an axis named model"
        case "oom":
            if JOB["interleaved"]:
                return "oom", "RESOURCE_EXHAUSTED: out of memory"
        case "oom always":
            return "oom", "RESOURCE_EXHAUSTED: out of memory"
    return "ok", ""


if "log" in BEHAVIOUR:
    with Path(BEHAVIOUR["log"]).open("a") as log:
        log.write(json.dumps(JOB | {"xla_flags": os.environ.get("XLA_FLAGS", "")}) + "\n")
if "edits" in BEHAVIOUR:
    with Path(BEHAVIOUR["edits"]).open("a") as edited:
        edited.write("# edited\n")
print("a library may print before the worker's first event", flush=True)
if "start" in BEHAVIOUR:
    act("", BEHAVIOUR["start"])
phase("start")
if JOB["ceilings"]:
    phase("ceilings")
    act("", BEHAVIOUR.get("ceilings", ""))
phase("truth")
ok = []
for arm in ARMS:
    phase("gate", arm)
    status, reason = act(arm, BEHAVIOUR.get(arm, ""))
    if BEHAVIOUR.get(arm) == "no row":
        continue
    cell(arm, status, reason)
    if status == "ok":
        ok.append(arm)
phase("measure")
TURN = BEHAVIOUR.get("turn", "")
TurnWriter().write(TURN)
if "measure" in BEHAVIOUR and JOB["interleaved"] and (not TURN or TURN in ARMS):
    act("", BEHAVIOUR["measure"])


def samples(rounds: int) -> list[dict]:
    return [
        {
            "block": BLOCK,
            "attempt": JOB["attempt"],
            "launch": JOB["launch"],
            "arm": arm,
            "round": number,
            "at": 1.7e9 + 100 * number + 10 * position,
            "steps": 10,
            "latency_steps": 10,
            "latency_ns": 12_000 * (position + 1),
            "throughput_ns": 10_000
            * (1 if "equal" in BEHAVIOUR else position + 1)
            * BEHAVIOUR.get("times", {}).get(arm, 1)
            + number,
            "wash_out_ns": 1_000,
            "host": {"cores_s": 0.0, "steal_s": 0.0, "own_s": 0.0, "foreign_s": 0.0, "mhz": None},
        }
        for number in range(rounds)
        for position, arm in enumerate(ok)
        if BEHAVIOUR.get(arm) != "no samples"
    ]


rounds = JOB["rounds"]
rank = JOB["place"]["rank"] if "place" in JOB else 0
asks = JOB["interleaved"] and rank == 0  # which alone has an answer
for look in (*(n for n in (16, 32, 64) if n < rounds), rounds) if asks else ():
    say(event="look", rows=samples(look), progress=look / rounds)
    if not json.loads(sys.stdin.readline()):
        rounds = look
        break
taken = samples(rounds)
time.sleep(sum(row[span] for row in taken for span in row if span.endswith("_ns")) / 1e9)
say(event="samples", rows=taken)
say(
    event="block",
    row={
        **COMMON,
        "baseline": JOB["baseline"] if JOB["baseline"] in ok else next(iter(ok), ""),
        "rounds": rounds,
        "looks": [],
        "steps": 10,
        "started_at": "2026-01-01T00:00:00+00:00",
        "seconds": {"start": 1.0, "gate": 2.0, "compile": 1.0, "measure": 2.0, "trace": 0.0},
        "ceilings": None,
    },
)
for late in ("trace", "checkpoint"):
    if late in BEHAVIOUR:
        phase(late, ok[0])
        act(ok[0], BEHAVIOUR[late])
if "train" in BEHAVIOUR:
    curve = {"arm": "A", "losses": [2.0, 1.0], "reason": "", "tolerance": 1e-3}
    say(event="losses", row={**COMMON, **curve})
    phase("train", "B")
    act("B", BEHAVIOUR["train"])
if BEHAVIOUR.get("child"):
    # Left behind with the worker's output open.
    subprocess.Popen(["sleep", "300"])
