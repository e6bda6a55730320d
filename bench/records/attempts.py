"""The ledger of a referee: every attempt to replace a step by a faster one, and its outcome.

It is an append-only file of JSON lines, each with its number and CRC-32. The first line is the
question. Every attempt adds a line when it begins, with its allowed error, and one when it ends. An
attempt that was killed has no second line, and counts as one that found nothing. A partial last
line, left by an interruption, is dropped; a ledger with any other damage is refused.
"""

import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

from bench.records import files
from bench.records.store import StoreError

Decision = Literal["keep", "discard", "undecided"]


class Question(TypedDict):
    """The first line of a ledger: the comparison to which all its attempts belong."""

    block: str
    device: str
    """Platform and kind of device."""
    options: dict[str, Any]
    """Options that determine the block, as typed."""
    incumbent: str
    """Hash of the first incumbent's files."""
    name: str


class Attempt(TypedDict):
    """A challenger and, once the attempt has ended, its outcome against the incumbent."""

    number: int
    at: str
    """Time at which it began, in UTC."""
    incumbent: str
    """Hash of the incumbent's files."""
    challenger: str
    name: str
    level: float
    """Two-sided error of its verdict: see bench.analyse.alpha_spending."""
    decision: NotRequired[Decision]
    reason: NotRequired[str]
    """Why it has no ratio, or what else decided; may be empty."""
    tested: NotRequired[bool]
    """Whether its time could decide; otherwise it has spent none of the error."""
    ratio: NotRequired[float | None]
    """The challenger's step time over the incumbent's."""
    low: NotRequired[float | None]
    """Lower end of the ratio's interval, on which the decision is based; None if there is none."""
    high: NotRequired[float | None]
    rounds: NotRequired[int | None]
    seconds: NotRequired[float]
    """Wall time of the batch of attempts that it belongs to."""
    run: NotRequired[str]


class Ledger:
    """A ledger, whose file is made by `start`, and locked against other processes from then on.

    Raises StoreError if the file is damaged, is no ledger, cannot be made or is open elsewhere.
    """

    question: Question
    """Of a new ledger, it is set by `start`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attempts: list[Attempt] = []
        self._lines, self._locked = 0, False
        if path.exists():
            self._lock()

    def _lock(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()
            files.lock_until_exit(self.path)
        except files.LockedError as error:
            fault = f"another referee is writing {self.path}; wait until it has ended"
            raise StoreError(fault) from error
        except OSError as error:
            raise StoreError(f"{self.path}: {(error.strerror or '').lower()}") from error
        self._locked = True
        self._read()

    @property
    def options(self) -> dict[str, Any]:
        """The options that determine the block of its question; empty if it has none yet."""
        return self.question["options"] if self._lines else {}

    def start(self, question: Question) -> str:
        """Store a new ledger's question; in an existing one, return how its question differs."""
        if not self._locked:
            self._lock()
        if not self._lines:
            self._add(question)
        for then, now in ((self.question[name], question[name]) for name in ("block", "device")):
            if then != now:
                return f"{self.path} is about {then}, not {now}; name another with --ledger"
        return ""

    def begin(self, own: str, named: Iterable[tuple[str, str]], level: float) -> list[Attempt]:
        """Store the beginning of attempts, each with this allowed error.

        `own` is the incumbent's hash, and `named` has the challengers' names and hashes.
        """
        now, before = datetime.now(UTC).isoformat(timespec="seconds"), len(self.attempts)
        common = {"at": now, "incumbent": own, "level": level}
        for number, (name, its) in enumerate(named, start=before + 1):
            self._add({"number": number, "challenger": its, "name": name, **common})
        return self.attempts[before:]

    def end(self, number: int, outcome: Mapping[str, Any]) -> None:
        """Store the outcome of an attempt."""
        self._add({"number": number, **outcome})

    def _add(self, entry: Mapping[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(files.sealed(json.dumps({"line": self._lines, **entry})))
            file.flush()
            os.fsync(file.fileno())
        self._take(entry)

    def _take(self, entry: Mapping[str, Any]) -> None:
        """Take the entry of a line into memory."""
        if not self._lines:
            self.question = cast("Question", entry)
        elif entry["number"] > len(self.attempts):
            self.attempts.append(cast("Attempt", entry))
        else:
            self.attempts[entry["number"] - 1].update(cast("Attempt", entry))
        self._lines += 1

    def _read(self) -> None:
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(keepends=True)):
            entry = files.unsealed(line)
            if entry is None or entry.pop("line", None) != number:
                place = f"{self.path}, line {number + 1}"
                remedy = "restore the file, or name another ledger"
                raise StoreError(f"{place}: {files.CHANGED}; {remedy}")
            self._take(entry)
        if len(whole) < len(text):
            os.truncate(self.path, len(whole))
