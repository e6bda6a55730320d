"""Arms of a block that run the same program, and the verdicts that this proves.

Two arms whose programs are equal up to names, and whose hosts do the same between steps, take the
same time, whatever was measured: they are another A/A pair, whose times differ by chance or memory
placement. If only the programs are equal, only dispatch can make a difference.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from bench.analyse.comparisons import Comparison
from bench.records.step_programs import Operation

Relation = Literal["same", "dispatch", "different", "unknown"]
"""`same` is proved; `dispatch`: equal programs, whose dispatch differs or may differ."""


def relation(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> Relation:
    """Return the relation of two cells' programs: rows of `Tables.cells` or stored programs."""
    if not (a["fingerprint"] and b["fingerprint"]):
        return "unknown"
    if a["fingerprint"] != b["fingerprint"]:
        return "different"
    return "same" if a["dispatch"] and a["dispatch"] == b["dispatch"] else "dispatch"


def contradicted(block: Comparison) -> list[Mapping[str, Any]]:
    """Return the cells that are *same* by proof although their times say otherwise."""
    return [
        cell
        for cell in block.ranked
        if cell["proved_same"]
        and not cell["verdict_low"] <= 1 <= cell["verdict_high"]
        and max(1 / cell["verdict_low"], cell["verdict_high"]) > 1 + block.margin
    ]


class LineDifference(NamedTuple):
    """Operations of one source line that only one of two programs runs, or runs more often."""

    source: str
    """Empty if unknown."""
    a: list[Operation]
    """Those that A runs more often; `runs` is by how many times."""
    b: list[Operation]

    @property
    def bytes(self) -> int:
        """Bytes of the results of all these operations, per step and device."""
        return sum(one.runs * one.bytes for one in (*self.a, *self.b))


def differences(a: Iterable[Operation], b: Iterable[Operation]) -> list[LineDifference]:
    """Return the differences of two programs by source line, largest number of bytes first."""
    more = Counter({one._replace(runs=1): one.runs for one in a})
    more.subtract({one._replace(runs=1): one.runs for one in b})
    lines: dict[str, LineDifference] = {}
    for one, runs in more.items():
        line = lines.setdefault(one.source, LineDifference(one.source, [], []))
        if runs:
            (line.a if runs > 0 else line.b).append(one._replace(runs=abs(runs)))
    found = [line for line in lines.values() if line.a or line.b]
    return sorted(found, key=lambda line: (-line.bytes, line.source))
