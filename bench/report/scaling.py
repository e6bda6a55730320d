"""Which blocks make up a scaling curve, and the efficiency along it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.mesh import MeshShape

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["strong", "weak"]


@dataclass(frozen=True)
class Scaling:
    """Cells that differ by implementation and by the size of the mesh's first axis alone."""

    kind: Kind
    workload: str
    size: str
    precision: str
    family: str
    """The mesh with its first axis open: `data=N,model=2`."""
    batch: int
    """Global batch of a strong curve, batch a device of a weak one."""
    points: pd.DataFrame
    """`implementation`, `devices`, `mesh`, `step_s` with quartiles, `units_per_s`, `unit`,
    `oversubscribed`, and `efficiency` with quartiles `efficiency_q1`, `efficiency_q3`, a share
    of 1: NaN for an implementation without a time on the smallest mesh."""

    @property
    def subject(self) -> str:
        """`gpt2-nano, fp32`."""
        return f"{self.workload}-{self.size}, {self.precision}"

    @property
    def slug(self) -> str:
        """A file name without its ending."""
        words = (self.kind, self.workload, self.size, self.precision, self.family, f"b{self.batch}")
        return "-".join(words).replace("=", "").replace(",", "-")

    @property
    def title(self) -> str:
        """What is held fixed along the curve."""
        fixed = "in all" if self.kind == "strong" else "a device"
        return f"{self.kind.capitalize()} scaling, {self.family}, batch {self.batch} {fixed}"


def find(cells: pd.DataFrame) -> list[Scaling]:
    """All curves over at least two meshes, strong before weak, of the report's tidy table."""
    ok = cells[cells["status"] == "ok"] if not cells.empty else cells
    if ok.empty:
        return []
    ok = ok.assign(family=ok["mesh"].map(_family), each=ok["batch"] / ok["devices"])
    curves = []
    kinds: tuple[tuple[Kind, str], ...] = (("strong", "batch"), ("weak", "each"))
    subjects = ["workload", "size", "precision"]
    for _, same in ok.groupby(subjects, sort=True):
        for kind, fixed in kinds:
            for _, rows in same.groupby(["family", fixed], sort=True):
                first = rows.iloc[0]
                if len(rows["devices"].unique()) > 1 and float(first[fixed]).is_integer():
                    curves.append(
                        Scaling(
                            kind=kind,
                            workload=first["workload"],
                            size=first["size"],
                            precision=first["precision"],
                            family=first["family"],
                            batch=int(first[fixed]),
                            points=_efficiency(rows, kind),
                        )
                    )
    return curves


def _family(mesh: str) -> str:
    (first, _), *others = MeshShape.parse(mesh).axes
    return ",".join([f"{first}=N", *(f"{name}={size}" for name, size in others)])


def _efficiency(rows: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """Add efficiency against each implementation's own time on the smallest mesh.

    Strong: T(n0) n0 / (T(n) n). Weak: T(n0) / T(n). Its quartiles are those of T(n) alone.
    """
    smallest = rows["devices"].min()
    first = rows[rows["devices"] == smallest].set_index("implementation")["step_s"]
    ideal = rows["implementation"].map(first)
    if kind == "strong":
        ideal = ideal * smallest / rows["devices"]
    points = rows.assign(
        efficiency=ideal / rows["step_s"],
        efficiency_q1=ideal / rows["step_q3_s"],
        efficiency_q3=ideal / rows["step_q1_s"],
    )
    columns = ["implementation", "devices", "mesh", "step_s", "step_q1_s", "step_q3_s",
               "units_per_s", "unit", "oversubscribed", "efficiency", "efficiency_q1",
               "efficiency_q3"]  # fmt: skip
    return points[columns].sort_values(["implementation", "devices"], ignore_index=True)
