"""The table of faults, and what each must leave behind.

To add a fault, append it to `FAULTS`: with `planted` where one implementation goes wrong beside
good ones, which is then an entry of `PLANTED` in bench.trials.faults.planted, or with a function of
its own in bench.trials.faults.run_scenarios.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from bench.trials.faults import run_scenarios
from bench.trials.faults.run_scenarios import (
    Trial,
    bad_workload,
    damaged,
    interrupted,
    of_two,
    planted,
)

SILENCE_S = 20
"""Value of --silence in runs that hang. A worker starts within a few seconds."""
HANGS = ("--silence", str(SILENCE_S))
SILENT = rf"no progress for {SILENCE_S} s during"
OVERTIME = "took over 30 s during measure"
NOT_IMPORTED = "cannot be imported"


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    kind: str
    """The class of failure."""
    how: str
    """How it is injected."""
    trial: Trial


MEMORY, CRASH, HANG, LOSS, COMPILE, DISK, USER, RUN, STORED = (
    "out of memory",
    "crash",
    "hang",
    "NaN or diverging loss",
    "endless compilation",
    "full disk",
    "faulty user file",
    "run interrupted",
    "stored files",
)

FAULTS = (
    Fault("host-memory", MEMORY, "build asks NumPy for 64 GiB under RLIMIT_AS",
          planted("host_memory", "oom", "Unable to allocate")),
    Fault("device-memory", MEMORY, "build asks XLA for an array of 256 TiB",
          planted("device_memory", "oom", "RESOURCE_EXHAUSTED")),
    Fault("sigkill-in-build", CRASH, "build kills its process by SIGKILL",
          planted("killed_in_build", "crashed", "SIGKILL during gate, and not by the kernel")),
    Fault("sigsegv-in-build", CRASH, "build reads from address 0",
          planted("segfault_in_build", "crashed", "SIGSEGV during gate")),
    Fault("sigkill-in-rounds", CRASH, "the timed step kills its process by SIGKILL",
          planted("killed_in_rounds", "crashed", "SIGKILL during measure, and not by the kernel")),
    Fault("sigsegv-in-rounds", CRASH, "the timed step reads from address 0",
          planted("segfault_in_rounds", "crashed", "SIGSEGV during measure")),
    Fault("deadlock", HANG, "an all-reduce in the timed step that one of two devices never joins",
          planted("deadlocks", "timeout", f"{SILENT} measure", *HANGS, "--meshes", "data=2")),
    Fault("sleep-in-build", HANG, "build waits for ever",
          planted("sleeps", "timeout", f"{SILENT} gate", *HANGS)),
    Fault("sleep-in-rounds", HANG, "the timed step waits for ever; --timeout instead of --silence",
          planted("sleeps_in_rounds", "timeout", OVERTIME, "--timeout", "30")),
    Fault("held-lock", HANG, "build loops in C and holds Python's global lock",
          planted("holds_the_lock", "timeout", f"{SILENT} gate", *HANGS)),
    Fault("stopped-worker", HANG, "the timed step stops its process by SIGSTOP",
          planted("stops", "timeout", f"{SILENT} measure", *HANGS)),
    Fault("peer-killed", CRASH, "one of two processes kills itself by SIGKILL",
          of_two("peer_killed", "crashed", "process 1 of 2 was killed by SIGKILL")),
    Fault("peer-raises", USER, "one of two processes raises in its step while the other waits",
          of_two("peer_raises", "crashed", "process 1 of 2 failed where others did not: Runtime")),
    Fault("peer-stopped", HANG, "one of two processes stops itself by SIGSTOP",
          of_two("peer_stops", "timeout", f"{SILENT} .*; process 1 was stopped")),
    Fault("peer-elsewhere", HANG, "one of two processes waits in a collective of its own",
          of_two("peer_elsewhere", "timeout", SILENT)),
    Fault("nan-in-rounds", LOSS, "the loss becomes NaN in the timed rounds",
          planted("nan_in_rounds", "wrong", r"the loss is nan after \d+ steps")),
    Fault("divergence-in-rounds", LOSS, "parameters grow by half at each timed step",
          planted("diverges_in_rounds", "wrong", r"the loss diverges|the loss is (nan|inf) after")),
    Fault("nan-workload", LOSS, "a workload whose own loss is NaN",
          bad_workload("nan_workload", "the workload itself is not finite")),
    Fault("unstable-workload", LOSS, "a workload whose learning rate is far too large",
          bad_workload("unstable_workload", "so do all arms of the block")),
    Fault("endless-compile", COMPILE, "a program of 300 lines that XLA:CPU compiles for minutes",
          planted("compiles_for_ever", "timeout", f"{SILENT} (gate|compile)", *HANGS)),
    Fault("endless-trace", COMPILE, "a jitted function contains an endless Python loop",
          planted("traces_for_ever", "timeout", f"{SILENT} gate", *HANGS)),
    Fault("full-disk", DISK, "reports/ is a tmpfs that is filled during the second block",
          run_scenarios.full_disk),
    Fault("full-temporary-folder", DISK, "TMPDIR has two pages of free space; with --profile",
          run_scenarios.full_temporary_folder),
    Fault("raises-at-import", USER, "the file raises when it is imported",
          planted("raises_at_import", "crashed", "RuntimeError: planted", says=NOT_IMPORTED)),
    Fault("raises-in-build", USER, "build raises",
          planted("raises_in_build", "crashed", "RuntimeError: planted")),
    Fault("raises-in-step", USER, "the first step raises",
          planted("raises_in_step", "crashed", "RuntimeError: planted")),
    Fault("raises-in-rounds", USER, "the timed step raises",
          planted("raises_in_rounds", "crashed", "RuntimeError: planted")),
    Fault("interrupt-in-step", USER, "the first step raises KeyboardInterrupt",
          planted("interrupts_in_step", "crashed", "KeyboardInterrupt")),
    Fault("exit-at-import", USER, "the file calls sys.exit when it is imported",
          planted("exits_at_import", "crashed", r"sys\.exit\('planted'\)", says=NOT_IMPORTED)),
    Fault("exit-when-asked", USER, "why_unsupported calls sys.exit",
          planted("exits_when_asked", "crashed", r"sys\.exit\(3\)")),
    Fault("exit-in-build", USER, "build calls sys.exit(0)",
          planted("exits_in_build", "crashed", r"sys\.exit\(0\)")),
    Fault("exit-in-step", USER, "the first step calls sys.exit(0)",
          planted("exits_in_step", "crashed", r"sys\.exit\(0\)")),
    Fault("exit-in-rounds", USER, "the timed step calls sys.exit(0)",
          planted("exits_in_rounds", "crashed", r"sys\.exit\(0\)")),
    Fault("end-at-import", USER, "the file calls os._exit(7) when it is imported",
          planted("ends_at_import", "crashed", "exit code 7 during gate", says=NOT_IMPORTED)),
    Fault("end-in-build", USER, "build calls os._exit(0)",
          planted("ends_in_build", "crashed", "ended before its block was complete during gate")),
    Fault("garbage", USER, "build prints binary data, endless lines and forged events",
          planted("prints", "ok", "", code=0)),
    Fault("loss-of-wrong-shape", USER, "the step returns a loss for each row of the batch",
          planted("loss_of_shape", "wrong", r"the loss has shape \(8,\)")),
    Fault("params-of-wrong-shape", USER, "params returns flattened parameters",
          planted("params_of_shape", "wrong", "differ from the model's in names or shapes")),
    Fault("three-values", USER, "the step returns three values",
          planted("three_values", "wrong", r"3 values, not the pair \(state, loss\)")),
    Fault("no-step", USER, "build returns nothing",
          planted("no_step", "wrong", "build returns a NoneType")),
    Fault("leftover-child", USER, "build leaves a process in a session of its own",
          planted("leaves_a_child", "ok", "", code=0)),
    Fault("leftover-thread", USER, "build leaves a thread that Python waits for at exit",
          planted("leaves_a_thread", "ok", "", code=0)),
    Fault("front-killed", RUN, "the supervisor gets SIGKILL in the second block; then --resume",
          run_scenarios.front_killed),
    Fault("ctrl-c", RUN, "the supervisor gets SIGINT in the second block",
          interrupted(signal.SIGINT)),
    Fault("sigterm", RUN, "the supervisor gets SIGTERM in the second block",
          interrupted(signal.SIGTERM)),
    Fault("same-name", RUN, "two runs of the same name are started at once",
          run_scenarios.same_name),
    Fault("resumed-while-measured", RUN, "a run is resumed while it is still measured",
          run_scenarios.resumed_while_measured),
    Fault("changed-samples", STORED, "a byte in the middle of a launch's file is changed",
          damaged(run_scenarios.change_a_byte)),
    Fault("changed-cells", STORED, "a byte at the start of a launch's file is changed",
          damaged(run_scenarios.change_the_start)),
    Fault("cut-samples", STORED, "the last tenth of a launch's file is cut off",
          damaged(run_scenarios.cut_off)),
)  # fmt: skip
