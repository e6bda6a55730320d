"""The table of faults, and the expected outcome of each.

To add a fault, append it to `FAULTS`: with `planted` if one implementation goes wrong beside good
ones, as described in bench.trials.faults.planted, or with its own function in
bench.trials.faults.run_scenarios.
"""

import signal
from dataclasses import dataclass

from bench.trials.faults import run_scenarios
from bench.trials.faults.run_scenarios import of_two, planted, refused

SILENCE_S = 20
"""Value of --silence in runs that hang. Workers start within a few seconds."""
HANGS = ("--silence", str(SILENCE_S))
SILENT = rf"no progress for {SILENCE_S} s during"
OVERTIME = "took over 30 s during measure"


@dataclass(frozen=True)
class Fault:
    """One kind of failure, and how to inject it."""

    name: str
    kind: str
    """The class of failure."""
    how: str
    """How it is injected."""
    trial: run_scenarios.Trial


MEMORY, CRASH, HANG = "out of memory", "crash", "hang"
LOSS, COMPILE, DISK = "NaN or diverging loss", "endless compilation", "full disk"
USER, RUN, STORED = "faulty user file", "run interrupted", "stored files"
FOREIGN = "foreign arm"
CHEAT = "fooled or spoiled"
ELSEWHERE = "the process that it shares with the clock|spans that are shorter"
"""Pattern of the reasons for times that another process does not confirm."""
LONGER = ("--rounds", "16", "--seconds", "4")
"""Options of runs with turns long enough to be compared with one another."""

FAULTS = (
    Fault("host-memory", MEMORY, "build asks NumPy for 64 GiB under RLIMIT_AS",
          planted("host_memory_in_build", "oom", "Unable to allocate")),
    Fault("device-memory", MEMORY, "build asks XLA for an array of 256 TiB",
          planted("device_memory_in_build", "oom", "RESOURCE_EXHAUSTED")),
    Fault("sigkill-in-build", CRASH, "build kills its process by SIGKILL",
          planted("kill_in_build", "crashed", "SIGKILL during gate, and not by the kernel")),
    Fault("sigsegv-in-build", CRASH, "build reads from address 0",
          planted("crash_in_build", "crashed", "SIGSEGV during gate")),
    Fault("sigkill-in-rounds", CRASH, "the timed step kills its process by SIGKILL",
          planted("kill_in_rounds", "crashed", "SIGKILL during measure, and not by the kernel")),
    Fault("sigsegv-in-rounds", CRASH, "the timed step reads from address 0",
          planted("crash_in_rounds", "crashed", "SIGSEGV during measure")),
    Fault("deadlock", HANG, "an all-reduce in the timed step that one of two devices never joins",
          planted("deadlock_in_rounds", "timeout", SILENT, *HANGS, "--meshes", "data=2")),
    Fault("sleep-in-build", HANG, "build waits for ever",
          planted("sleep_in_build", "timeout", f"{SILENT} gate", *HANGS)),
    Fault("sleep-in-rounds", HANG, "the timed step waits for ever; --timeout instead of --silence",
          planted("sleep_in_rounds", "timeout", OVERTIME, "--timeout", "30")),
    Fault("held-lock", HANG, "build loops in C and holds Python's global lock",
          planted("hold_lock_in_build", "timeout", f"{SILENT} gate", *HANGS)),
    Fault("stopped-worker", HANG, "the timed step stops its process by SIGSTOP",
          planted("stop_in_rounds", "timeout", f"{SILENT} measure", *HANGS)),
    Fault("peer-killed", CRASH, "one of two processes kills itself by SIGKILL",
          of_two("kill_in_peer", "crashed", "process 1 of 2 was killed by SIGKILL")),
    Fault("peer-raises", USER, "one of two processes raises in its step while the other waits",
          of_two("raise_in_peer", "crashed", "process 1 of 2 failed where others did not: ")),
    Fault("peer-stopped", HANG, "one of two processes stops itself by SIGSTOP",
          of_two("stop_in_peer", "timeout", SILENT)),
    Fault("peer-elsewhere", HANG, "one of two processes waits in a collective of its own",
          of_two("meet_nobody_in_peer", "timeout", SILENT)),
    Fault("nan-in-rounds", LOSS, "the loss becomes NaN in the timed rounds",
          planted("becomes_nan", "wrong", r"in round 1: the loss is nan")),
    Fault("divergence-in-rounds", LOSS, "parameters grow by half at each timed step",
          planted("diverges", "wrong", r"multiplied by about 1\.\d+ in each step|is (nan|inf)")),
    Fault("nan-workload", LOSS, "a workload whose own loss is NaN",
          run_scenarios.bad_workload("nan_workload", "the workload itself is not finite")),
    Fault("unstable-workload", LOSS, "a workload whose learning rate is far too large",
          run_scenarios.bad_workload("unstable_workload", "all arms of the block diverge")),
    Fault("endless-compile", COMPILE, "a program of 300 lines that XLA:CPU compiles for minutes",
          planted("compile_in_build", "timeout", f"{SILENT} (gate|compile)", *HANGS)),
    Fault("endless-trace", COMPILE, "a jitted function contains an endless Python loop",
          planted("trace_in_build", "timeout", f"{SILENT} gate", *HANGS)),
    Fault("full-disk", DISK, "reports/ is a tmpfs that is filled during the second block",
          run_scenarios.full_disk),
    Fault("full-temporary-folder", DISK, "TMPDIR has two pages of free space; with --profile",
          run_scenarios.full_temporary_folder),
    Fault("raises-at-import", USER, "the file raises when it is imported",
          refused("raise_at_import", "RuntimeError: planted")),
    Fault("raises-in-build", USER, "build raises",
          planted("raise_in_build", "crashed", "RuntimeError: planted")),
    Fault("raises-in-step", USER, "the first step raises",
          planted("raise_in_step", "crashed", "RuntimeError: planted")),
    Fault("raises-in-rounds", USER, "the timed step raises",
          planted("raise_in_rounds", "crashed", "RuntimeError: planted")),
    Fault("interrupt-in-step", USER, "the first step raises KeyboardInterrupt",
          planted("interrupt_in_step", "crashed", "KeyboardInterrupt")),
    Fault("exit-at-import", USER, "the file calls sys.exit when it is imported",
          refused("quit_at_import", r"sys\.exit\('planted'\)")),
    Fault("exit-when-asked", USER, "why_unsupported calls sys.exit",
          planted("exit_when_asked", "crashed", r"sys\.exit\(0\)")),
    Fault("exit-in-build", USER, "build calls sys.exit(0)",
          planted("exit_in_build", "crashed", r"sys\.exit\(0\)")),
    Fault("exit-in-step", USER, "the first step calls sys.exit(0)",
          planted("exit_in_step", "crashed", r"sys\.exit\(0\)")),
    Fault("exit-in-rounds", USER, "the timed step calls sys.exit(0)",
          planted("exit_in_rounds", "crashed", r"sys\.exit\(0\)")),
    Fault("end-at-import", USER, "the file calls os._exit(7) when it is imported",
          refused("end_with_7_at_import", "exit code 7")),
    Fault("end-in-build", USER, "build calls os._exit(0)",
          planted("end_in_build", "crashed", "ended before its block was complete during gate")),
    Fault("garbage", USER, "build prints binary data, endless lines and forged events",
          planted("print_in_build", "ok", "", code=0)),
    Fault("loss-of-wrong-shape", USER, "the step returns a loss for each row of the batch",
          planted("loss_of_shape", "wrong", r"the loss has shape \(8,\)")),
    Fault("params-of-wrong-shape", USER, "params returns flattened parameters",
          planted("params_of_shape", "wrong", "differ from the model's in names or shapes")),
    Fault("three-values", USER, "the step returns three values",
          planted("three_values", "wrong", r"3 values, not the pair \(state, loss\)")),
    Fault("no-step", USER, "build returns nothing",
          planted("no_step", "wrong", "build returns a NoneType")),
    Fault("leftover-child", USER, "build leaves a process in a session of its own",
          planted("leave_child_in_build", "ok", "", code=0)),
    Fault("leftover-daemon", USER, "build leaves a daemon without parent, session and environment",
          planted("leave_daemon_in_build", "ok", "", code=0)),
    Fault("leftover-thread", USER, "build leaves a thread that Python waits for at exit",
          planted("leave_thread_in_build", "ok", "", code=0)),
    Fault("patched-clock", CHEAT, "build replaces the clock of the process",
          planted("patch_clock_in_build", "wrong", r"replaces time\.perf_counter_ns")),
    Fault("poisoned-json", CHEAT, "the timed step replaces json's encoder, as the events need it",
          planted("poison_json_in_rounds", "wrong", r"replaces json\.encoder\.JSONEncoder")),
    Fault("forged-samples", CHEAT, "the timed step writes to the channel of the worker's events",
          planted("forge_in_rounds", "crashed", "writes to the worker's channel .* measure")),
    Fault("cleared-caches", CHEAT, "the timed step makes jax forget the programs of all arms",
          planted("clear_caches_in_rounds", "wrong", "clears jax's caches")),
    Fault("flags-in-rounds", CHEAT, "the timed step sets x64, precision, no jit, a mesh for all",
          planted("set_flags_in_rounds", "ok", "", code=0)),
    Fault("moved-start", CHEAT, "the timed step changes the clock's variables in its frame",
          planted("move_start_in_rounds", "wrong", "is work between its spans", *LONGER)),
    Fault("spinning-thread", CHEAT, "the timed step leaves a thread that works in others' turns",
          planted("spin_in_rounds", "wrong", "its threads or processes used", *LONGER)),
    Fault("spinning-daemon", CHEAT, "the timed step leaves a daemon that works in others' turns",
          planted("spin_child_in_rounds", "wrong", "its threads or processes used", *LONGER)),
    Fault("late-exit", CHEAT, "the timed step has a thread end the process in another's turn",
          planted("exit_later_in_rounds", "crashed", "exit code 1 during measure", *LONGER)),
    Fault("deleted-arrays", CHEAT, "the timed step deletes all arrays of other arms",
          planted("delete_in_rounds", "crashed", "deleted", *LONGER)),
    Fault("work-put-off", CHEAT, "the state works when it is flattened, which is not timed",
          planted("puts_off", "wrong", "is work between its spans", *LONGER)),
    Fault("work-ahead", CHEAT, "the step before a span does the work of the whole span",
          planted("hurries", "wrong", "the step before its spans", *LONGER)),
    Fault("frozen-in-rounds", CHEAT, "no update is applied any more in the timed rounds",
          planted("freezes", "wrong", "the parameters do not change")),
    Fault("kept-loss", CHEAT, "nothing is computed in the timed rounds",
          planted("keeps_the_loss", "wrong", "the parameters do not change")),
    Fault("turning", CHEAT, "the step's own program skips every update after its 50th call",
          planted("turns", "wrong", "the parameters do not change|skips updates")),
    Fault("dodging", CHEAT, "the step does nothing where the harness's frames show a timed span",
          planted("dodges", "wrong", f"do not change in the|{ELSEWHERE}", *LONGER)),
    Fault("peeking", CHEAT, "the step skips work where the harness's frames show a timed span",
          planted("peeks", "wrong", f"are missing|long spans|{ELSEWHERE}", *LONGER, "--workloads",
                  "linear-base", batch=1 << 14)),
    Fault("tiring", CHEAT, "the step does nothing late in spans longer than those of the checks",
          planted("tires", "wrong", "do not change|recomputed|long spans|are missing", *LONGER)),
    Fault("foreign-dies", FOREIGN, "the process of a foreign arm ends in its timed step",
          planted("foreign_end", "crashed", "its process ended with exit code 7")),
    Fault("foreign-hangs", FOREIGN, "the timed step in a process of its own waits for ever",
          planted("foreign_sleep", "timeout", f"{SILENT} measure", *HANGS)),
    Fault("foreign-lies", FOREIGN, "the clock of a foreign arm runs at a tenth of its speed",
          planted("foreign_lie", "wrong", "reports spans that are shorter than the worker")),
    Fault("foreign-shapes", FOREIGN, "a process of its own gives flattened parameters",
          planted("foreign_shapes", "wrong", "differ from the model's in names or shapes: kernel")),
    Fault("foreign-prints", FOREIGN, "the timed step writes to the channel of its process",
          planted("foreign_print", "crashed", "writes 'printed' to the channel")),
    Fault("foreign-spins", FOREIGN, "the timed step in a process of its own leaves a busy thread",
          planted("foreign_spin", "wrong", "of a core while other arms were timed", *LONGER)),
    Fault("foreign-leaves", FOREIGN, "a foreign arm leaves a process in a session of its own",
          planted("foreign_leave", "ok", "", code=0)),
    Fault("foreign-lacks", FOREIGN, "a foreign arm needs a package that is not installed",
          planted("foreign_import", "unsupported", "the package no_such_package", code=0)),
    Fault("foreign-python", FOREIGN, "the program that a foreign arm names is not installed",
          planted("foreign_command", "unsupported", "it needs /no/such/python", code=0)),
    Fault("front-killed", RUN, "the supervisor gets SIGKILL in the second block; then --resume",
          run_scenarios.front_killed),
    Fault("ctrl-c", RUN, "the supervisor gets SIGINT in the second block",
          run_scenarios.interrupted(signal.SIGINT)),
    Fault("sigterm", RUN, "the supervisor gets SIGTERM in the second block",
          run_scenarios.interrupted(signal.SIGTERM)),
    Fault("same-name", RUN, "two runs of the same name are started at once",
          run_scenarios.same_name),
    Fault("resumed-while-measured", RUN, "a run is resumed while it is still measured",
          run_scenarios.resumed_while_measured),
    Fault("changed-samples", STORED, "a byte in the middle of a launch's file is changed",
          run_scenarios.damaged(run_scenarios.change_a_byte)),
    Fault("changed-cells", STORED, "a byte at the start of a launch's file is changed",
          run_scenarios.damaged(lambda content: b"X" + content[1:])),
    Fault("cut-samples", STORED, "the last tenth of a launch's file is cut off",
          run_scenarios.damaged(lambda content: content[: len(content) * 9 // 10])),
)  # fmt: skip
