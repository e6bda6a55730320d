"""Profiler traces written by hand: what they show is known, so that reading it can be checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jax.profiler import ProfileData

Event = tuple[str, float, float, dict[str, Any]]
"""Name, start and end in microseconds, and stats."""


@dataclass
class Plane:
    """A plane of an XSpace: lines of events."""

    name: str
    lines: dict[str, list[Event]] = field(default_factory=dict)

    def text(self) -> str:
        """As a text proto."""
        events = [event for line in self.lines.values() for event in line]
        names = list(dict.fromkeys(name for name, *_ in events))
        stats = list(dict.fromkeys(key for *_, own in events for key in own))
        lines = []
        for number, (name, own) in enumerate(self.lines.items()):
            written = "".join(
                f"events {{ metadata_id: {names.index(event) + 1} offset_ps: {round(start * 1e6)} "
                f"duration_ps: {round((end - start) * 1e6)} "
                + "".join(
                    f"stats {{ metadata_id: {stats.index(key) + 1} {_value(value)} }} "
                    for key, value in values.items()
                )
                + "} "
                for event, start, end, values in own
            )
            lines.append(f'lines {{ id: {number} name: "{name}" timestamp_ns: 0 {written} }}')
        return (
            f'planes {{ name: "{self.name}" {" ".join(lines)} '
            + " ".join(_metadata("event", names))
            + " "
            + " ".join(_metadata("stat", stats))
            + " }"
        )


def _metadata(kind: str, names: list[str]) -> list[str]:
    return [
        f'{kind}_metadata {{ key: {number} value {{ id: {number} name: "{name}" }} }}'
        for number, name in enumerate(names, start=1)
    ]


def _value(value: object) -> str:
    return f'str_value: "{value}"' if isinstance(value, str) else f"int64_value: {value}"


def xspace(*planes: Plane) -> bytes:
    """A serialized XSpace of these planes."""
    text = "\n".join(plane.text() for plane in planes)
    return bytes(ProfileData.text_proto_to_serialized_xspace(text))


def cpu_op(
    name: str, start: float, end: float, device: int = 0, number: int = 0, launch: int = 7
) -> Event:
    """An operation's event as XLA:CPU records it."""
    stats = {
        "hlo_op": name,
        "hlo_module": "jit_step",
        "run_id": launch,
        "device_ordinal": device,
        "_p": number,
    }
    return (name, start, end, stats)
