"""The canonical form of compiled programs, which is equal for programs that differ only in names.

It keeps opcodes, shapes with their layouts, operands, attributes, constants, device groups,
donation (`input_output_alias`) and the order of instructions, which is their schedule. Names of
instructions and computations, and the ids of channels, become numbers in order of appearance.
Labels are dropped: the module's name, metadata (`op_name`, source lines), and input for the
partitioner, which has run already. That input includes shardings: shapes are those of shards by
now, and bench.worker.read.step_program compares the placement of arguments.
"""

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from bench.worker.read.collectives import GROUPS, parse_groups
from bench.worker.read.protobuf_fields import fields

_STRING = r'"(?:[^"\\]++|\\.)*+"'
_BRACES = r"\{\}"
for _ in range(4):  # no attribute nests deeper
    _BRACES = rf'\{{(?:[^{{}}"]++|{_STRING}|{_BRACES})*+\}}'
_LABEL = re.compile(
    r"(?:, |^)(?:(?:metadata|origin|original_value|sharding"
    rf"|allow_spmd_sharding_propagation_to_\w+)={_BRACES}"
    r"|frontend_attributes=\{(?:(?:is_spmd_generated|xla\.sdy\.[\w.]+)="
    rf"(?:{_STRING}|{_BRACES}),?)*\}})"
)
_TABLES = re.compile(r"^(?:File|Function|Stack)[A-Z]\w+\n(?:.+\n)*", re.MULTILINE)
_PARAMETERS = re.compile(r"^((?:ENTRY )?%\S+) \(.*\{$", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/")
_ELIDED = re.compile(r"(%[\w.-]+)( = \S+ constant\()\{\.\.\.\}")
"""A constant with too many elements to be printed."""
_NUMBERED = re.compile(r"%[\w.-]+|\bchannel_id=\d+")
_COMPUTATIONS, _INSTRUCTIONS, _NAME_OF, _LITERAL = 3, 2, 1, 8
"""Fields of a HloModuleProto, of its computations, and of their instructions."""


def fingerprint(programs: Iterable[Any]) -> str:
    """Return a hash that is equal for programs with equal canonical forms on equal devices.

    Raises:
      ValueError: device groups have an unknown form.
    """
    texts = [
        f"{[device.id for device in program.local_devices()]}\n{canonical(module)}"
        for program in programs
        for module in program.hlo_modules()
    ]
    return short_hash("\n".join(sorted(texts)))


def short_hash(text: str | bytes) -> str:
    """Return 64 bits of a text's SHA-256, in hexadecimal digits."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:16]


def canonical(module: Any) -> str:
    """Return the canonical form of a module.

    It is made from the module's text, because only the text shows the schedule and every attribute.

    Raises:
      ValueError: device groups have an unknown form.
    """
    text = module.to_string().partition(", ")[2]
    counts = re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", text.partition("\n")[0])
    devices = math.prod(map(int, counts))
    for label in (_TABLES, _COMMENT, _LABEL):
        text = label.sub("", text)
    text = _PARAMETERS.sub(r"\1", text)
    text = _ELIDED.sub(lambda own: f"{own[1]}{own[2]}{_literal(module, own[1])}", text)
    text = GROUPS.sub(lambda groups: str(parse_groups(groups[1], devices)), text)
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    return _NUMBERED.sub(lambda own: f"#{numbers[own[0]]}", text)


def _literal(module: Any, name: str) -> str:
    """Return a hash of a constant's elements, which the module's text elides if there are many."""
    instructions = (
        dict(fields(instruction))
        for kind, computation in fields(module.as_serialized_hlo_module_proto())
        if kind == _COMPUTATIONS
        for inner, instruction in fields(computation)
        if inner == _INSTRUCTIONS
    )
    own = next(one for one in instructions if one[_NAME_OF] == name[1:].encode())
    return short_hash(own[_LITERAL])
