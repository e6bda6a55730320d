"""Other tools, and the question put to each of them: are two programs equally fast?"""

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure.processes.guarded import Answer, ChildError, ask

LIMIT_S = 600.0
"""A process that is silent for this long, and for SLOWDOWN times its measuring time, is killed."""
SLOWDOWN = 20.0


@dataclass(frozen=True)
class Pair:
    """Two programs to be compared."""

    base: str
    """Python code that defines the function `call()`."""
    other: str
    call_s: float
    """Approximate seconds of a call."""
    environment: Mapping[str, str]
    """Environment of the processes that run them."""


Verdict = tuple[bool | None, float]
"""Whether the other program is slower, by a tool's own rule (None if the tool finds no difference),
and the seconds within timed work, both programs together."""


def run_python(
    words: Sequence[str],
    environment: Mapping[str, str],
    seconds: float = 0.0,
    question: str = "",
    codes: Sequence[int] = (0,),
    **options: Any,
) -> Answer:
    """Run a Python program, which measures for some seconds, and end all its processes.

    Exit codes in `codes` do not mean failure; `options` are those of subprocess.Popen. Raises
    ChildError if it failed, or was silent for too long.
    """
    command, limit_s = [sys.executable, *words], LIMIT_S + SLOWDOWN * seconds
    answer = ask(command, question, environment, limit_s, **options)
    if answer.code not in codes:
        raise _failure(answer)
    return answer


def _failure(answer: Answer) -> ChildError:
    last = [line for line in answer.out.splitlines() if line.strip()] + [*answer.tail]
    how = f"a process {answer.ending}; its last lines:"
    return ChildError("\n".join([how, *last[-10:]]))


def why_unavailable(name: str) -> str | None:
    """Return why a tool cannot be used here, and what to install; None if it can."""
    package = name.replace("_", "-")
    return None if importlib.util.find_spec(name) else f"no {package}: pip install {package}"


def _benchmark(path: Path) -> dict[str, Any]:
    """Read the only benchmark from a tool's result file."""
    (found,) = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    return dict(found)


# pyperf: `compare_to` applies Student's t-test to all values, and compares the means. Three
# processes are started for each program. The number and duration of values are pyperf's defaults as
# far as the measuring time allows.

PROCESSES = 3
_VALUES = 3
_VALUE_S = 0.1
"""pyperf's defaults: values per process (a minimum here), and seconds per value (a maximum)."""
_FASTER_OR_SLOWER = re.compile(r": \d+\.\d+x (faster|slower)$", re.MULTILINE)


def _pyperf(pair: Pair, seconds: float, directory: Path) -> Verdict:
    process_s = seconds / 2 / PROCESSES
    values = max(_VALUES, round(process_s / _VALUE_S))
    loops = max(1, round(process_s / values / pair.call_s))
    pyperf, measured_s = ("-m", "pyperf"), 0.0
    for name, setup in (("base.json", pair.base), ("other.json", pair.other)):
        words = [
            *(*pyperf, "timeit", "--quiet", "--output", name),
            *("--processes", str(PROCESSES), "--values", str(values), "--loops", str(loops)),
            f"--inherit-environ={','.join(pair.environment)}",
            *("--setup", setup, "call()"),
        ]
        run_python(words, pair.environment, seconds, cwd=directory)
        # Runs that only calibrate or warm up have no values, which are seconds per call.
        runs = _benchmark(directory / name)["runs"]
        measured_s += loops * sum(sum(run.get("values", [])) for run in runs)
    words = [*pyperf, "compare_to", "base.json", "other.json"]
    compared = run_python(words, pair.environment, cwd=directory)
    return compare_to_slower(compared.out), measured_s


def compare_to_slower(output: str) -> bool | None:
    """Return whether the other is slower, by the output of `compare_to`; None for no difference."""
    if "hidden because not significant" in output:
        return None
    words = set(_FASTER_OR_SLOWER.findall(output))
    if not words:
        raise ChildError(f"pyperf compare_to gave no verdict:\n{output}")
    return "slower" in words


# pytest-benchmark: a run fails if its fastest call takes over 2 % longer than the base's. This is a
# threshold rather than a test, and it works in one direction: without a regression, the programs
# count as equal.

THRESHOLD = "min:2%"
"""Equal to Lockstep's default margin; the tool accepts whole percents only."""


def _pytest_benchmark(pair: Pair, seconds: float, directory: Path) -> Verdict:
    # Without this file, the tool would use the configuration of a parent folder.
    (directory / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    test, measured_s = directory / "test_call.py", 0.0
    compare = ("--benchmark-compare=0001", f"--benchmark-compare-fail={THRESHOLD}")
    for name, setup, options in (("0001_base", pair.base, ()), ("0002_other", pair.other, compare)):
        code = f"{setup}\ndef test_call(benchmark):\n    benchmark(call)\n"
        test.write_text(code, encoding="utf-8")
        words = [
            *("-m", "pytest", str(test), "-c", "pytest.ini", "-p", "no:cacheprovider"),
            *("--benchmark-storage=storage", f"--benchmark-max-time={seconds / 2:.6f}"),
            *(f"--benchmark-save={name.partition('_')[2]}", *options),
        ]
        environment = {**pair.environment, "PYTEST_ADDOPTS": ""}
        # The exit code of a failed test is also that of a regression.
        codes = (0, 1) if options else (0,)
        done = run_python(words, environment, seconds, codes=codes, cwd=directory)
        (path,) = directory.glob(f"storage/*/{name}.json")
        stats = _benchmark(path)["stats"]
        measured_s += stats["total"] * stats["iterations"]
    return True if has_regressed(done) else None, measured_s


def has_regressed(done: Answer) -> bool:
    """Read the verdict from the tool's output; ChildError if it failed for another reason."""
    regressed = any("Performance has regressed" in line for line in done.tail)
    if bool(done.code) != regressed:
        raise _failure(done)
    return regressed


PEERS: dict[str, Callable[[Pair, float, Path], Verdict]] = {
    "pyperf": _pyperf,
    "pytest_benchmark": _pytest_benchmark,
}
"""All tools by the names of their modules, available or not. Each measures both programs, one after
the other, for half of the seconds each, as its manual says, and writes in an empty folder, given by
its full path. Raises ChildError if it failed."""
