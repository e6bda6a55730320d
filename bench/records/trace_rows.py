"""The rows that a traced run stores: the parts of its steps and its operations."""

from typing import Literal, TypedDict

from bench.records.rows import BlockFields

Category = Literal["matmul", "elementwise", "layout", "collective", "control", "unknown"]
"""Kind of an operation: `layout` only arranges data, `control` runs other operations, and
`unknown` belongs to a program that could not be found."""


class StepParts(TypedDict):
    """One traced step's time on one device; all parts but `overlap_ns` add up to the total."""

    step: int
    device: int
    """Place in the mesh, in the order of `mesh.devices.flat`."""
    total_ns: int
    dispatch_ns: int
    """The device was idle until the host launched its next program."""
    compute_ns: int
    wait_ns: int
    """In a collective, before all of its group had arrived."""
    move_ns: int
    """In a collective, after that."""
    idle_ns: int
    overlap_ns: int
    """The part of `compute_ns` that ran during a collective."""


class OpTime(TypedDict):
    """An operation's part of a traced step: means over devices and over the counted steps."""

    module: str
    op: str
    """Its HLO instruction."""
    opcode: str
    category: Category
    phase: str
    """`forward`, `backward`, `recomputed`, `update` (by optax) or `other`."""
    source: str
    """Innermost source line; empty if unknown."""
    shapes: list[str]
    """Dtype and shape of each result: `f32[256,1024]`."""
    transposes: bool
    """Whether it moves elements to another layout, alone or while computing."""
    count: float
    """Runs per step and device."""
    compute_ns: float
    """For a control operation: idle time while it ran."""
    wait_ns: float
    move_ns: float


class TraceRow(BlockFields):
    """The trace of one cell."""

    cell: str
    implementation: str
    profile: str
    """TensorBoard run name under profiles/."""
    host: str
    """TensorBoard's name of the traced process."""
    steps: list[StepParts]
    """Parts of every traced step on every device."""
    counted: list[int]
    """Steps whose means `ops` are: the middle half by length."""
    ops: list[OpTime]
    untraced_ns: list[int]
    """Lengths of as many steps without a profiler, also with a wait after each, taken just before
    the traced ones of every pass."""
    cores: int | None
    """Cores that the process might use, where its devices are made of them; else None."""
