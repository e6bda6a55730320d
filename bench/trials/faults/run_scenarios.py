"""Trials of faults: planted files, and runs that are killed, out of space or damaged on disk."""

import contextlib
import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Concatenate, ParamSpec, cast

from bench.records import store
from bench.trials.faults.observed_run import GOOD, RUN, Front, Lab, Outcome, UnavailableError

P = ParamSpec("P")
Trial = Callable[[Lab, Outcome], None]
"""Injects a fault into runs and records the outcome."""

LATER = "wait_in_build"
"""The planted implementation of runs that are disrupted in their second block."""
BATCHES = (8, 16)
TWO_BLOCKS = ("--batch-sizes", *map(str, BATCHES))
ALL = (*GOOD, LATER)
LAST_LINE = r".*\Z"


def of_arguments(run: Callable[Concatenate[Lab, Outcome, P], None]) -> Callable[P, Trial]:
    """Turn a trial that takes further arguments into a function of these that returns the trial."""
    return lambda *args, **options: lambda lab, outcome: run(lab, outcome, *args, **options)


@of_arguments
def planted(
    lab: Lab, outcome: Outcome, file: str, status: str, reason: str, *words: str, code: int = 1,
    beside: Sequence[str] = GOOD, batch: int = 8,
) -> None:  # fmt: skip
    """Measure the planted implementation `file` beside good ones, which must be ok.

    The run has this global batch and the options `words`, and must end with `code`. The planted
    cell must have this status, and a reason that matches this pattern.
    """
    ended = lab.measure(file, words=("--batch-sizes", str(batch), *words)).wait()
    outcome.check_end(ended, code)
    outcome.check_cell(lab.cells().get(f"{batch}/{file}"), status, reason)
    outcome.check_run(lab, (batch,), beside)


@of_arguments
def refused(lab: Lab, outcome: Outcome, file: str, reason: str) -> None:
    """Expect a planted implementation to be refused, for a `reason`, before anything is timed."""
    outcome.check_end(lab.measure(file).wait(), 4, reason)
    outcome.cell = outcome.others = "refused while planning"
    outcome.expect(not lab.run.exists(), "a run was created")


def of_two(file: str, status: str, reason: str) -> Trial:
    """Measure a planted implementation that goes wrong in one of two processes."""
    words = ("--meshes", "data=2", "--processes", "2", "--silence", "20")
    # The other good implementation is for one process only.
    return planted(file, status, reason, *words, beside=GOOD[1:])


@of_arguments
def bad_workload(lab: Lab, outcome: Outcome, file: str, reason: str) -> None:
    """Measure a planted workload, with which no cell can be right."""
    outcome.check_end(lab.measure(workload=file).wait(), 1)
    for name in GOOD:
        outcome.check_cell(lab.cells().get(f"8/{name}"), "wrong", reason)
    outcome.check_run(lab, ())
    outcome.others = "none can be ok"


def front_killed(lab: Lab, outcome: Outcome) -> None:
    """Kill the supervisor with SIGKILL in its second block, then resume the run."""
    front = _second_block(lab)
    before = lab.attempts()
    outcome.expect(bool(before), "nothing of the first block is stored")
    os.kill(front.pid, signal.SIGKILL)
    ended = front.wait()
    outcome.check_end(ended, -signal.SIGKILL)
    _resume(lab, outcome, before)
    outcome.code = ended.code
    outcome.cell = f"killed, then resumed: {outcome.cell}"


@of_arguments
def interrupted(lab: Lab, outcome: Outcome, number: signal.Signals) -> None:
    """Send the supervisor a signal in its second block; it must then end cleanly."""
    front = _second_block(lab)
    os.kill(front.pid, number)
    outcome.cell = outcome.check_end(front.wait(), 2, r"interrupted[^\n!]*")
    outcome.check_run(lab, _first_block(lab, outcome), ALL)


def full_disk(lab: Lab, outcome: Outcome) -> None:
    """Fill the file system of reports/ to its last byte while the second block is measured."""
    with small_disk(lab, "reports", "32m") as small:
        front = _second_block(small)
        before = small.attempts()
        filler = fill(small.run.parent)
        (lab.folder / "go").touch()
        ended = front.wait()
        said = outcome.check_end(
            ended, 3, rf"cannot write into \S*{RUN}\S*: (?s:.*?)--resume {RUN}.*"
        )
        outcome.check_others(small, _first_block(small, outcome), ALL)
        drafts = small.half_written()
        outcome.expect(not drafts, f"incomplete files: {', '.join(drafts)}")
        filler.unlink()
        _resume(small, outcome, before)
        outcome.code = ended.code
        outcome.cell = f"{said}; then resumed: {outcome.cell}"


def full_temporary_folder(lab: Lab, outcome: Outcome) -> None:
    """Fill the temporary folder except for two pages: it looks usable but is not."""
    temporary = lab.folder / "tmp"
    with small_disk(replace(lab, environment={"TMPDIR": str(temporary)}), "tmp", "64k") as small:
        filler = fill(small.root / temporary.relative_to("/"))
        os.truncate(filler, filler.stat().st_size - 2 * resource.getpagesize())
        outcome.check_end(small.measure(words=("--profile",)).wait(), 0)
        outcome.check_run(small, (8,))
        outcome.cell = "all cells are measured as usual"


def same_name(lab: Lab, outcome: Outcome) -> None:
    """Start two runs of the same name simultaneously."""
    fronts = [lab.measure() for _ in range(2)]
    ends = sorted((front.wait() for front in fronts), key=lambda ended: ended.code)
    outcome.check_end(ends[0], 0)
    refusal = outcome.check_end(ends[1], 4, rf".*exists{LAST_LINE}")
    outcome.cell = f"one is measured, the other is refused: {refusal}"
    outcome.check_run(lab, (8,))


def resumed_while_measured(lab: Lab, outcome: Outcome) -> None:
    """Resume a run in a second process while the first one still measures it."""
    front = _second_block(lab)
    second = lab.measure(LATER, resume=True).wait()
    (lab.folder / "go").touch()
    outcome.check_end(front.wait(), 0)
    outcome.cell = f"refused: {outcome.check_end(second, 4, LAST_LINE)}"
    outcome.check_run(lab, BATCHES, ALL)


@of_arguments
def damaged(lab: Lab, outcome: Outcome, damage: Callable[[bytes], bytes]) -> None:
    """Damage the file of a run's first launch, then rebuild its report and resume the run."""
    outcome.check_end(lab.measure(words=TWO_BLOCKS).wait(), 0)
    (path, *_) = sorted((lab.run / store.LAUNCHES).iterdir())
    path.write_bytes(damage(path.read_bytes()))
    file = f"{store.LAUNCHES}/{path.name}"
    named = f".*{re.escape(file)}.*"
    warning = outcome.check_end(Front(lab, ("report", RUN)).wait(), 0, named)
    outcome.check_end(lab.measure(resume=True).wait(), 0, named)
    outcome.cell = f"set aside and measured again: {warning}"
    outcome.check_run(lab, BATCHES, except_for=file)  # the damaged bytes are kept


def change_a_byte(content: bytes) -> bytes:
    """Change a byte in the middle, which a reader that checks only line ends would not notice."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def _second_block(lab: Lab) -> Front:
    """Start a run of two blocks and wait until it measures the second one."""
    front = lab.measure(LATER, words=TWO_BLOCKS)
    front.until_waiting()
    return front


def _first_block(lab: Lab, outcome: Outcome) -> list[int]:
    """Expect that only the first block is stored; return the batches of all that are."""
    batches = sorted({row["batch"] for row in lab.stored().block_rows})
    outcome.expect(len(batches) == 1, f"{len(batches)} blocks are stored, not only the first")
    return batches


def _resume(lab: Lab, outcome: Outcome, before: list[str]) -> None:
    """Resume a run: everything stored before remains, and the missing blocks are measured."""
    outcome.check_end(lab.measure(LATER, resume=True).wait(), 0)
    after = lab.attempts()
    remain = after[: len(before)] == before and len(after) > len(before)
    outcome.expect(remain, f"stored before: {before}, after resuming: {after}")
    outcome.check_run(lab, BATCHES, ALL)
    outcome.cell = f"{len(before)} of {len(after)} blocks kept, the others measured"


@contextmanager
def small_disk(lab: Lab, name: str, size: str) -> Iterator[Lab]:
    """Mount a tmpfs on a new folder, in a user and mount namespace that needs no privileges.

    The folder is in the trial's own. Its size is in the syntax of tmpfs, for example `32m`. Yields
    the trial with its runs in the namespace. Raises UnavailableError if nothing can be mounted.
    """
    mount_point = lab.folder / name
    mount_point.mkdir()
    mount = f'mount -t tmpfs -o size={size} none "$1" && echo mounted && read _'
    try:
        holder = subprocess.Popen(  # noqa: S603 (our own command)
            ["unshare", "-rm", "sh", "-c", mount, "sh", str(mount_point)],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(f"unshare cannot be run: {error}") from error
    with holder:
        said = cast("IO[str]", holder.stdout).readline().strip()
        if said != "mounted":
            raise UnavailableError(f"no file system can be mounted: {said}")
        try:
            enter = ("nsenter", f"--target={holder.pid}", "--user", "--mount")
            # A working directory entered outside the namespace would still lead outside.
            inside = ("sh", "-c", 'cd "$0" && exec "$@"', str(mount_point.parent))
            prefix = (*enter, "--preserve-credentials", *inside)
            yield replace(lab, prefix=prefix, root=Path(f"/proc/{holder.pid}/root"))
        finally:
            holder.kill()


def fill(folder: Path) -> Path:
    """Fill the file system of a folder to its last byte; return the file that fills it."""
    path = folder / "filler"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 10))
    return path
