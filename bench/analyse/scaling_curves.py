"""Scaling curves: the cells on each, and the efficiency along it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.records import numbers
from bench.records.cells import subject_of

Kind = Literal["strong", "weak"]


@dataclass(frozen=True)
class Scaling:
    """Cells that differ only in implementation and in the size of the mesh's first axis.

    With several processes, the mesh grows by processes with equal numbers of devices. Such a curve
    starts at the mesh of a single process with that many devices.
    """

    kind: Kind
    workload: str
    size: str
    options: str
    """Step options, as on the largest mesh."""
    devices_a_process: int | None
    """None where one process has all devices."""
    family: str
    """The mesh with N for the size of its first axis: `data=N,model=2`."""
    batch: int
    """Global batch of a strong curve, batch per device of a weak one."""
    points: pd.DataFrame
    """Rows of `Tables.cells`, with `efficiency` and its quartiles `efficiency_q1`, `efficiency_q3`,
    where 1 is ideal: NaN for an implementation without a time on the smallest mesh."""

    @property
    def subject(self) -> str:
        """`gpt2-nano, fp32`: that of the blocks on its largest mesh."""
        return subject_of(f"{self.workload}-{self.size}", self.options)

    @property
    def slug(self) -> str:
        """A file name without its suffix."""
        words = [self.kind, self.workload, self.size, self.options, self.family, f"b{self.batch}"]
        if self.devices_a_process is not None:
            words.append(f"{self.devices_a_process}each")
        return "-".join(words).replace("=", "").replace(",", "-")

    @property
    def title(self) -> str:
        """The curve's name and the quantities held fixed along it."""
        fixed = "in all" if self.kind == "strong" else "a device"
        own = self.devices_a_process
        each = f", {numbers.count(own, 'device')} per process" if own else ""
        return f"{self.kind.capitalize()} scaling, {self.family}{each}, batch {self.batch} {fixed}"

    @cached_property
    def ideal(self) -> NDArray[np.float64]:
        """Ideal scaling from the smallest mesh's fastest cell: devices and seconds, (meshes, 2)."""
        every, seconds = (self.points[name].to_numpy(float) for name in ("devices", "step_s"))
        devices = np.unique(every)
        best = seconds[every == devices[0]].min()
        share = devices[0] / devices if self.kind == "strong" else np.ones(len(devices))
        return np.column_stack([devices, best * share])

    @cached_property
    def oversubscribed_from(self) -> float | None:
        """The number of devices above which devices share cores; 0 if they do on all meshes.

        It lies between two meshes. None where every device has a core.
        """
        devices = self.points["devices"].to_numpy(float)
        shared = np.unique(devices[self.points["oversubscribed"].to_numpy(bool)])
        if not len(shared):
            return None
        return float(np.sqrt(devices[devices < shared[0]].max(initial=0) * shared[0]))


def find(cells: pd.DataFrame) -> list[Scaling]:
    """Return all curves over at least two meshes in `Tables.cells`, strong before weak."""
    ok = cells[cells["status"] == "ok"] if not cells.empty else cells
    if ok.empty:
        return []
    ok = ok.assign(
        family=ok["mesh"].str.replace(r"=\d+", "=N", n=1, regex=True),
        each=ok["batch"] / ok["devices"],
        in_one_process=ok["options"].str.replace(r",processes=\d+", "", regex=True),
        own=ok["devices"] // ok["processes"],
    ).sort_values(["implementation", "devices"])
    alone = ok["processes"] == 1
    groups: list[tuple[int | None, pd.DataFrame]] = [(None, ok[alone])]
    # A single process's own mesh starts the curve of processes with equally many devices each.
    groups += [(int(own), ok[ok["own"] == own]) for own in sorted(ok.loc[~alone, "own"].unique())]
    curves = [
        curve
        for own, rows in groups
        for curve in (*_curves(rows, "strong", "batch", own), *_curves(rows, "weak", "each", own))
    ]
    # Keep both kinds of a subject together.
    return sorted(curves, key=lambda c: (c.workload, c.size, c.options))


def _curves(ok: pd.DataFrame, kind: Kind, fixed: str, own: int | None) -> list[Scaling]:
    """Return all curves of one kind; `fixed` is the column that is constant along each."""
    ok = ok[ok[fixed] % 1 == 0]
    same = ["workload", "size", "in_one_process", "family", fixed]
    curves = []
    for _, points in _efficiency(ok, kind, same).groupby(same):
        if len(points["devices"].unique()) > 1:
            first = points.iloc[points["devices"].argmax()]
            subject = first["workload"], first["size"], first["options"]
            curves.append(Scaling(kind, *subject, own, first["family"], int(first[fixed]), points))
    return curves


def _efficiency(rows: pd.DataFrame, kind: Kind, same: list[str]) -> pd.DataFrame:
    """Add the efficiency relative to each implementation's own time on its curve's smallest mesh.

    Strong: T(n0) n0 / (T(n) n). Weak: T(n0) / T(n). Quartiles are those of T(n) alone.
    """
    smallest = rows.groupby(same)["devices"].transform("min")
    there = rows["step_s"].where(rows["devices"] == smallest)
    ideal = there.groupby([rows[column] for column in [*same, "implementation"]]).transform("max")
    if kind == "strong":
        ideal = ideal * smallest / rows["devices"]
    return rows.assign(
        efficiency=ideal / rows["step_s"],
        efficiency_q1=ideal / rows["step_q3_s"],
        efficiency_q3=ideal / rows["step_q1_s"],
    )
