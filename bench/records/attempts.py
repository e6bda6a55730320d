"""The ledger of a referee: every attempt to replace a step by a faster one, and how it ended.

It is a file of JSON lines, each with its number and CRC-32, that only ever grows: the question
first, then a line when an attempt begins, with the error that it may have, and one when it ends. An
attempt that was killed has no second line, and counts as one that found nothing. What an
interruption has left of a last line is dropped; a ledger that is damaged otherwise is refused.
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
    """What all attempts of a ledger are about: its first line."""

    block: str
    device: str
    """Platform and kind of device."""
    options: dict[str, Any]
    """Those that determine the block, as typed."""
    incumbent: str
    """Hash of the first incumbent's files."""
    name: str


class Attempt(TypedDict):
    """A challenger, and how it fared against its incumbent; the latter once it has ended."""

    number: int
    at: str
    """When it began, in UTC."""
    incumbent: str
    """Hash of its files."""
    challenger: str
    name: str
    level: float
    """Two-sided error of its verdict: see bench.analyse.alpha_investing."""
    decision: NotRequired[Decision]
    reason: NotRequired[str]
    """Why it has no ratio, or what else decided; may be empty."""
    tested: NotRequired[bool]
    """Whether its time was compared. If not, it has cost nothing of the error."""
    ratio: NotRequired[float | None]
    """The challenger's step time over the incumbent's."""
    low: NotRequired[float | None]
    """Interval of the ratio that the decision rests on; None where there is none."""
    high: NotRequired[float | None]
    seconds: NotRequired[float]
    """Wall time of its batch."""
    run: NotRequired[str]


class Ledger:
    """An open ledger, which no other process can open meanwhile.

    Args:
      path: the file; its first line is missing until `start`.

    Raises:
      StoreError: the file is damaged, is none of a referee, or is open in another process.
      OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._question: Question | None = None
        self.attempts: list[Attempt] = []
        self._lines = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        try:
            files.lock(path)
        except files.LockedError as error:
            raise StoreError(
                f"another referee is writing {path}; wait until it has ended"
            ) from error
        self._read()

    @property
    def is_new(self) -> bool:
        """Whether it has no question yet."""
        return self._question is None

    @property
    def question(self) -> Question:
        """What all attempts are about."""
        if self._question is None:
            raise StoreError(f"{self.path} has no attempts yet")
        return self._question

    def start(self, question: Question) -> str:
        """Store the question of a new ledger; return why it is not that of this one, if so."""
        if self._question is None:
            self._add(question)
            self._question = question
        for then, now in ((self._question[name], question[name]) for name in ("block", "device")):
            if then != now:
                return f"{self.path} is about {then}, not {now}; name another with --ledger"
        return ""

    def begin(self, own: str, named: Iterable[tuple[str, str]], level: float) -> list[Attempt]:
        """Store that attempts begin.

        Args:
          own: hash of the incumbent.
          named: names and hashes of the challengers.
          level: error of each.
        """
        now, before = datetime.now(UTC).isoformat(timespec="seconds"), len(self.attempts)
        for number, (name, its) in enumerate(named, start=before + 1):
            attempt = Attempt(
                number=number, at=now, incumbent=own, challenger=its, name=name, level=level
            )
            self._add(attempt)
            self.attempts.append(attempt)
        return self.attempts[before:]

    def end(self, number: int, outcome: Mapping[str, Any]) -> None:
        """Store how an attempt has ended."""
        self._add({"number": number, **outcome})
        self.attempts[number - 1].update(cast("Attempt", outcome))

    def _add(self, entry: Mapping[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(files.sealed(json.dumps({"line": self._lines, **entry})))
            file.flush()
            os.fsync(file.fileno())
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
            if not number:
                self._question = cast("Question", entry)
            elif entry["number"] > len(self.attempts):
                self.attempts.append(cast("Attempt", entry))
            else:
                self.attempts[entry["number"] - 1].update(cast("Attempt", entry))
            self._lines += 1
        if len(whole) < len(text):
            os.truncate(self.path, len(whole))
