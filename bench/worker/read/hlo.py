"""A reader of compiled HLO: instructions, calls, loop counts, shapes and source lines.

Computations, opcodes and operands come from the module's structured API. All else is parsed from
text, because not every version of jaxlib offers it otherwise.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from io import BytesIO
from typing import Any

_CALLED = re.compile(r"\b(?:to_apply|calls|body|condition|select|scatter)=%([\w.-]+)")
_BRANCHES = re.compile(
    r"\b(?:branch_computations=\{([^}]*)\}|(?:true|false)_computation=(%[\w.-]+))"
)
_CALLING = {"fusion", "while", "conditional", "call"}
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_LAYOUT = re.compile(r"\w+\[([\d,]*)\]\{([\d,]*)")
_DIMENSIONS = re.compile(r"\bdimensions=\{([\d,]*)\}")
_ARRAY = re.compile(r"\b([a-z]+\d+\w*|pred)\[([\d,]*)\]")


def opcode(instruction: Any) -> str:
    """Return an opcode: `all-reduce-start`, also of an `async-start` that wraps an all-reduce."""
    own = _hyphenated(instruction)
    wrapped = instruction.async_wrapped_root()
    return own if wrapped is None else own.replace("async", _hyphenated(wrapped), 1)


def _hyphenated(instruction: Any) -> str:
    """Turn `kAllReduceStart` into `all-reduce-start`."""
    return re.sub(r"(?<!^)([A-Z])", r"-\1", instruction.opcode.name.removeprefix("k")).lower()


def integers(text: str) -> list[int]:
    """Parse integers such as `4,2`; an empty text has none."""
    return [int(word) for word in text.split(",")] if text else []


def op_name(instruction: Any) -> str:
    """Return the instruction's position in the traced program; empty if unknown."""
    found = re.search(r'op_name="([^"]*)"', instruction.to_string())
    return found[1] if found else ""


def result(instruction: Any) -> str:
    """Return the type of an instruction's result: `(f32[4,2]{1,0}, s32[])`."""
    return instruction.to_string().partition(" = ")[2].partition(f" {opcode(instruction)}(")[0]


def arrays(instruction: Any) -> Iterator[tuple[str, list[int]]]:
    """Yield dtype and shape of an instruction's result, or of each element of a tuple."""
    for dtype, shape in _ARRAY.findall(result(instruction)):
        yield dtype, integers(shape)


def called(instruction: Any, share: float = 1) -> Iterator[tuple[str, float]]:
    """Yield the names of the computations that an instruction calls, and how often.

    Every branch counts as taken `share` times per run; a loop of unknown length counts once.
    """
    text = instruction.to_string()
    trips = _TRIPS.search(text)
    for name in _CALLED.findall(text):
        yield name, int(trips[1]) if trips else 1
    for branches in _BRANCHES.findall(text):
        for name in re.findall(r"%([\w.-]+)", "".join(branches)):
            yield name, 1 if share == 1 else share


class Module:
    """A compiled module, whose parts are read lazily."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.name: str = module.name

    @cached_property
    def number(self) -> int:
        """The module's id, called the program id in traces: field 5 of its HloModuleProto."""
        message = self._module.as_serialized_hlo_module_proto()
        return next((int(value) for field, value in fields(message) if field == 5), 0)  # noqa: PLR2004

    @cached_property
    def computations(self) -> dict[str, list[Any]]:
        """Instructions of each computation."""
        return {own.name: list(own.instructions()) for own in self._module.computations()}

    @cached_property
    def instructions(self) -> dict[str, Any]:
        """Instructions of all computations, by name."""
        return {one.name: one for own in self.computations.values() for one in own}

    @cached_property
    def _entries(self) -> list[str]:
        """The computations that no other one calls, and that wrap no asynchronous operation."""
        every = [one for own in self.computations.values() for one in own]
        inner = {name for one in every for name, _ in called(one)}
        roots = {root.name for one in every if (root := one.async_wrapped_root()) is not None}
        inner |= {n for n, own in self.computations.items() if roots & {one.name for one in own}}
        return [name for name in self.computations if name not in inner]

    @cached_property
    def entry(self) -> set[str]:
        """Names of the instructions outside called computations such as loops and fusions."""
        return {one.name for name in self._entries for one in self.computations[name]}

    def executed(self, share: float = 1) -> Iterator[tuple[Any, float]]:
        """Yield what a run executes, once for each call, with the number of executions by `called`.

        An operation wrapped by an asynchronous start counts once, with the start. A condition
        inside a branch is taken as often as that branch.
        """

        def run(name: str, times: float, share: float) -> Iterator[tuple[Any, float]]:
            for instruction in self.computations[name]:
                yield instruction, times
                inner = 1 if opcode(instruction) == "conditional" else share
                for callee, often in called(instruction, share):
                    yield from run(callee, times * often, inner)

        for name in self._entries:
            yield from run(name, 1, share)

    def in_order(self) -> Iterator[Any]:
        """Yield what a run executes, in the order of a scheduled module; fusions are one step.

        Loops are unrolled by their known trip count, and every branch is listed.
        """

        def run(name: str) -> Iterator[Any]:
            for instruction in self.computations[name]:
                yield instruction
                if opcode(instruction) in _CALLING - {"fusion"}:
                    for callee, times in called(instruction):
                        for _ in range(int(times)):
                            yield from run(callee)

        for name in self._entries:
            yield from run(name)

    def inner(self, instruction: Any) -> list[Any]:
        """Return the instructions that an instruction calls, at any depth; itself if none."""
        names = [name for name, _ in called(instruction) if name in self.computations]
        if opcode(instruction) not in _CALLING or not names:
            return [instruction]
        return [one for name in names for own in self.computations[name] for one in self.inner(own)]

    def source(self, instruction: Any) -> str:
        """Return the innermost source line, such as `optax/_src/transform.py:283`.

        Empty if it is unknown or in the worker. A module's text begins with tables of the lines.
        """
        frame = re.search(r"stack_frame_id=(\d+)", instruction.to_string())
        line = self._sources.get(frame[1], "") if frame else ""
        return "" if line.startswith("bench/worker/") else line

    @cached_property
    def _sources(self) -> dict[str, str]:
        """Source lines by the number of a stack frame."""
        text = self._module.to_string()

        def table(title: str, form: str) -> list[Any]:
            """Return a table's lines: each line's number and the groups of `form`."""
            lines = re.search(rf"^{title}\n((?:.+\n)+)", text, re.MULTILINE)
            return re.findall(rf"^(\d+) {form}$", lines[1], re.MULTILINE) if lines else []

        files = dict(table("FileNames", r'"(.*)"'))
        locations = table("FileLocations", r"\{file_name_id=(\d+).*? line=(\d+).*")
        lines = {at: f"{short_path(files.get(name, ''))}:{line}" for at, name, line in locations}
        frames = table("StackFrames", r"\{file_location_id=(\d+).*")
        return {number: lines.get(location, "") for number, location in frames}


def modules_of(programs: Iterable[Any]) -> list[Module]:
    """Return the modules of executables."""
    return [Module(module) for program in programs for module in program.hlo_modules()]


def moves_elements(instruction: Any) -> bool:
    """Whether a copy or transpose reorders elements in memory.

    Layouts list dimensions from minor to major: `f32[256,1024]{1,0}`. Size 1 does not matter.
    """
    kind = opcode(instruction)
    if kind not in {"copy", "transpose"}:
        return False
    made, read = (_LAYOUT.match(result(one)) for one in (instruction, instruction.operands()[0]))
    if made is None or read is None:  # a tuple
        return False
    sizes, order, source = integers(made[1]), integers(made[2]), integers(read[2])
    permutation = list(range(len(sizes)))
    if kind == "transpose" and (found := _DIMENSIONS.search(instruction.to_string())):
        permutation = integers(found[1])
    # Express the source layout in dimensions of the result.
    moved = [permutation.index(dimension) for dimension in source]
    return [d for d in order if sizes[d] > 1] != [d for d in moved if sizes[d] > 1]


def short_path(path: str) -> str:
    """Shorten a path to start at its package or repository folder; otherwise to its name."""
    for folder in ("site-packages/", "dist-packages/"):
        if folder in path:
            return path.rpartition(folder)[2]
    for folder in ("implementations/", "bench/"):
        if f"/{folder}" in path:
            return folder + path.rpartition(f"/{folder}")[2]
    return path.rpartition("/")[2]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value, an integer or bytes, of each field of a serialized message.

    jaxlib does not offer the schema of these protocol buffers (protobuf.dev/encoding).
    """
    stream = BytesIO(message)

    def varint() -> int:
        more, value = divmod(stream.read(1)[0], 0x80)
        return value + 0x80 * varint() if more else value

    while stream.tell() < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        else:
            yield number, stream.read(varint() if kind == 2 else {1: 8, 5: 4}[kind])  # noqa: PLR2004
