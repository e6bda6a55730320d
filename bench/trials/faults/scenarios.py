"""Faults of the run itself: it is killed, interrupted, out of room, or its files are damaged.

Imports no jax.
"""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench.trials.faults.lab import (
    GOOD,
    PLANTED,
    RUN,
    Lab,
    fill,
    small_disk,
)
from bench.trials.faults.outcome import Outcome

Trial = Callable[[Lab], Outcome]

LATER = "waits_later"
"""The planted implementation of runs that are met in their second block."""
BATCHES = (8, 16)
TWO_BLOCKS = ("--batch-sizes", *map(str, BATCHES))
ALL = (*GOOD, LATER)


def planted(
    file: str,
    status: str,
    reason: str,
    *words: str,
    code: int = 1,
    says: str = "",
    beside: Sequence[str] = GOOD,
) -> Trial:
    """A planted implementation beside good ones, which must be ok.

    Args:
      file: its name in planted/.
      status: its cell's.
      reason: pattern that its reason has to match.
      words: options of the run.
      code: exit code of the run.
      says: pattern that the run's output has to match.
      beside: the good ones.
    """

    def trial(lab: Lab) -> Outcome:
        outcome = Outcome()
        ended = lab.measure(file, words=words).wait()
        outcome.see_end(ended, code)
        outcome.see_cell(lab.cells().get(f"8/{file}"), status, reason)
        outcome.see_others(lab, (8,), beside)
        outcome.see_files(lab, file)
        outcome.expect(ended.says(says), f"it does not say {says!r}")
        return outcome

    return trial


def of_two(file: str, status: str, reason: str) -> Trial:
    """A planted implementation of which one of two processes goes wrong."""
    words = ("--meshes", "data=2", "--processes", "2", "--silence", "20")
    return planted(file, status, reason, *words, beside=GOOD[1:])  # the first is for one process


def bad_workload(file: str, reason: str) -> Trial:
    """A planted workload, of which no cell can be right."""

    def trial(lab: Lab) -> Outcome:
        outcome = Outcome()
        path = str(PLANTED / f"{file}.py")
        ended = lab.measure(words=("--workloads", file, "--workload-path", path)).wait()
        outcome.see_end(ended, 1)
        for name in GOOD:
            outcome.see_cell(lab.cells().get(f"8/{name}"), "wrong", reason)
        outcome.others = "none is right"
        outcome.see_files(lab, *GOOD)
        return outcome

    return trial


def front_killed(lab: Lab) -> Outcome:
    """SIGKILL for the front in its second block, then --resume."""
    outcome = Outcome()
    front = lab.measure(LATER, words=TWO_BLOCKS, wait=False)
    front.until_injected()
    before = lab.attempts()
    outcome.expect(bool(before), "nothing was stored of the first block")
    front.send(signal.SIGKILL)
    ended = front.wait()
    outcome.see_end(ended, -signal.SIGKILL)
    _resume(lab, outcome, before)
    outcome.code = ended.code
    outcome.cell = f"killed, then continued: {outcome.cell}"
    return outcome


def interrupted(number: signal.Signals) -> Trial:
    """A signal that ends the run in order, in its second block."""

    def trial(lab: Lab) -> Outcome:
        outcome = Outcome()
        front = lab.measure(LATER, words=TWO_BLOCKS, wait=False)
        front.until_injected()
        front.send(number)
        ended = front.wait()
        outcome.see_end(ended, 2)
        said = re.search(r"interrupted[^\n!]*", ended.out)
        outcome.cell = said[0].strip() if said else ""
        outcome.expect(said is not None, "it does not say that it was interrupted")
        stored = {row["batch"] for _, row in lab.stored().blocks.iterrows()}
        outcome.expect(len(stored) == 1, f"{len(stored)} blocks are stored, not the first alone")
        outcome.see_others(lab, sorted(stored), ALL)
        outcome.see_files(lab, *ALL)
        return outcome

    return trial


def full_disk(lab: Lab) -> Outcome:
    """The file system of reports/ is filled to its last byte while the second block is measured."""
    outcome = Outcome()
    reports = lab.folder / "reports"
    reports.mkdir()
    with small_disk(reports, "32m") as (prefix, root):
        small = replace(lab, prefix=prefix, root=root)
        front = small.measure(LATER, words=TWO_BLOCKS, wait=False)
        front.until_injected()
        before = small.attempts()
        filler = fill(small.run.parent)
        (lab.folder / "go").touch()
        ended = front.wait()
        outcome.see_end(ended, 3)
        said = re.search(r"cannot write into (\S+): [^\n]*", ended.out)
        outcome.expect(said is not None and RUN in said[1], "it does not name the run's folder")
        outcome.expect(ended.says(f"--resume {RUN}"), "it does not say how to go on")
        first = {row["batch"] for _, row in small.stored().blocks.iterrows()}
        outcome.expect(len(first) == 1, f"{len(first)} blocks are stored, not the first alone")
        outcome.see_others(small, sorted(first), ALL)
        # A line of rows may be cut off. It is no row, and the run that goes on removes it.
        drafts = [name for name in small.half_written() if not name.endswith(".jsonl")]
        outcome.expect(not drafts, f"not whole: {', '.join(drafts)}")
        filler.unlink()
        _resume(small, outcome, before)
        outcome.code, outcome.cut_s = ended.code, None  # nothing of it was to be cut
        outcome.cell = f"{said[0] if said else ''}; then continued: {outcome.cell}"
    return outcome


def full_temporary_folder(lab: Lab) -> Outcome:
    """The temporary folder is full, but for two blocks: it looks usable, and is not."""
    outcome = Outcome()
    temporary = lab.folder / "tmp"
    temporary.mkdir()
    with small_disk(temporary, "64k") as (prefix, root):
        filler = fill(root / temporary.relative_to("/"))
        os.truncate(filler, filler.stat().st_size - 2 * resource.getpagesize())
        small = replace(lab, prefix=prefix, root=root, environment={"TMPDIR": str(temporary)})
        ended = small.measure(words=("--profile",)).wait()
        outcome.see_end(ended, 0)
        outcome.see_others(small, (8,))
        outcome.see_files(small, *GOOD)
        outcome.cell = "all cells as if there were room"
    return outcome


def same_name(lab: Lab) -> Outcome:
    """Two runs of the same name are started at once."""
    outcome = Outcome()
    fronts = [lab.measure(wait=False) for _ in range(2)]
    ends = sorted((front.wait() for front in fronts), key=lambda ended: ended.code)
    for ended, code in zip(ends, (0, 4), strict=True):
        outcome.see_end(ended, code)
    refused = _last_line(ends[1].out)
    outcome.cell = f"one is measured, the other refused: {refused}"
    outcome.expect("exists" in refused, f"it does not say that the name is taken: {refused}")
    outcome.see_others(lab, (8,))
    outcome.see_files(lab, *GOOD)
    return outcome


def resumed_while_measured(lab: Lab) -> Outcome:
    """A run is resumed by a second process while the first still measures it."""
    outcome = Outcome()
    front = lab.measure(LATER, words=TWO_BLOCKS, wait=False)
    front.until_injected()
    second = lab.measure(LATER, resume=True).wait()
    (lab.folder / "go").touch()
    outcome.see_end(front.wait(), 0)
    outcome.cut_s = None
    outcome.see_end(second, 4)
    outcome.cell = f"refused: {_last_line(second.out)}"
    outcome.see_others(lab, BATCHES, ALL)
    outcome.see_files(lab, *ALL)
    return outcome


def damaged(file: str, harm: Callable[[Path], None]) -> Trial:
    """A file of a stored run is harmed, then its report is built again, and it is resumed."""

    def trial(lab: Lab) -> Outcome:
        outcome = Outcome()
        outcome.see_end(lab.measure(words=TWO_BLOCKS).wait(), 0)
        harm(lab.run / file)
        again = lab.start("report", RUN).wait()
        outcome.see_end(again, 0)
        named = re.search(rf"[^\n]*{re.escape(file)}[^\n]*", again.out)
        outcome.expect(named is not None, f"the report does not name {file}")
        resumed = lab.measure(resume=True).wait()
        outcome.see_end(resumed, 0)
        outcome.expect(file in resumed.out, f"resuming does not name {file}")
        outcome.cell = f"set aside and measured again: {named[0].strip() if named else ''}"
        outcome.see_others(lab, BATCHES)
        # The damaged bytes stay where they are.
        halves = [name for name in lab.half_written() if name != file]
        outcome.expect(not halves, f"not whole: {', '.join(halves)}")
        outcome.report = lab.report(*GOOD)
        outcome.expect(not outcome.report, outcome.report)
        return outcome

    return trial


def change_a_byte(path: Path) -> None:
    """In the middle: what no reader that looks at line ends alone would see."""
    text = bytearray(path.read_bytes())
    place = len(text) // 2
    text[place] ^= 1
    path.write_bytes(text)


def cut_off(path: Path) -> None:
    """The last tenth of a file."""
    text = path.read_bytes()
    path.write_bytes(text[: len(text) * 9 // 10])


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _resume(lab: Lab, outcome: Outcome, before: list[str]) -> None:
    """Continue a run: what was stored stays, what was missing is measured."""
    ended = lab.measure(LATER, resume=True).wait()
    outcome.see_end(ended, 0)
    after = lab.attempts()
    kept = after[: len(before)] == before and len(after) > len(before)
    outcome.expect(kept, f"stored before: {before}, after resuming: {after}")
    outcome.see_others(lab, BATCHES, ALL)
    outcome.see_files(lab, *ALL)
    outcome.cell = f"{len(before)} of {len(after)} blocks kept, the rest measured"
