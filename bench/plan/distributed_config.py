"""Configuration of a multi-process run, with all of its checks.

A process has a *rank* among all processes and a *local rank* among those of its node. Ranks are
assigned node by node: with N processes per node, rank r has local rank r % N on node r // N.
"""

import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from bench.plan.option_values import BadInput
from bench.records.mesh import AXES, MeshShape
from bench.records.printable import closest

_NAMESAKES = ("master_addr", "master_port", "world_size", "rank", "local_rank")
VARIABLES = {name: name.upper() for name in _NAMESAKES}
VARIABLES["num_processes_per_node"] = "LOCAL_WORLD_SIZE"
"""Fields, and the environment variables in which launchers pass them."""


def _axis_size(known: Mapping[str, Any], axis: str) -> int:
    """Return the size of an axis of the explicit mesh, 1 if it has none."""
    names, sizes = known["mesh_axis_names"] or (), known["mesh_shape"] or ()
    return int(dict(zip(names, sizes, strict=False)).get(axis, 1))


# Messages about faults quote these descriptions of what is allowed.
Count = Annotated[int, Field(ge=1, description="a whole number of at least 1")]
Rank = Annotated[int, Field(ge=0, description="a whole number of at least 0")]
Switch = Annotated[bool, Field(description="true or false")]
Port = Annotated[int, Field(ge=1, le=65535, description="a port, a whole number from 1 to 65535")]
Host = Annotated[
    str,
    Field(
        pattern=r"^([^\s:/]+|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)$",
        description="a host's name or address, without a port",
    ),
]
# TOML and JSON have lists, which become tuples.
_LISTED = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
_SOME = Field(min_length=1)
Sizes = Annotated[
    Annotated[tuple[Count, ...], _LISTED, _SOME] | None,
    Field(description="whole numbers of at least 1, such as (4, 2)"),
]
Names = Annotated[
    Annotated[tuple[str, ...], _LISTED, _SOME] | None,
    Field(description=f"names of axes, from: {', '.join(AXES)}"),
]


class DistributedConfig(BaseModel):
    """Configuration of a multi-process run, as seen by one of its processes.

    Missing fields are derived from the others: all processes are on one node, the local rank
    follows from the rank, and the sizes of tensor and pipeline parallelism are those of the
    explicit mesh. Numbers must be integers: no text, no `True`, no `2.0`.

    Raises BadInput, which lists all faults: values of the wrong type, unknown names, and values
    that contradict one another.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    enabled: Switch = False
    """Whether to join the other processes of the run."""
    backend: Literal["nccl", "gloo", "mpi"] = "gloo"
    """The library that moves data between processes."""
    world_size: Count = 1
    """Number of processes over all nodes."""
    num_nodes: Count = 1
    num_processes_per_node: Count = Field(
        default_factory=lambda known: max(1, known["world_size"] // known["num_nodes"])
    )
    rank: Rank = 0
    """Rank of this process; rank 0 is the main process."""
    local_rank: Rank = Field(
        default_factory=lambda known: known["rank"] % known["num_processes_per_node"]
    )
    """Rank of this process among those of its node."""
    devices_per_process: Count = 1
    master_addr: Host = "127.0.0.1"
    """Address at which the other processes reach the main process."""
    master_port: Port = 29500
    mesh_shape: Sizes = None
    """Sizes of an explicit mesh, outermost axis first; None derives it from the fields below."""
    mesh_axis_names: Names = None
    tensor_parallel_size: Count = Field(default_factory=lambda known: _axis_size(known, "model"))
    """Devices over which the widths of layers are sharded."""
    pipeline_parallel_size: Count = Field(default_factory=lambda known: _axis_size(known, "pipe"))
    """Number of pipeline stages."""
    mixed_precision: Literal["no", "fp16", "bf16"] = "no"
    """Precision of the forward and backward pass."""

    def __init__(self, **given: Any) -> None:
        wrong: dict[str, str] = {}
        try:
            super().__init__(**given)
        except ValidationError as error:
            for found in error.errors(include_url=False):
                if found["type"] != "default_factory_not_called":
                    wrong[str(found["loc"][0])] = found["type"]
        known = _known(given, wrong)
        faults = [_fault(name, kind, given[name]) for name, kind in wrong.items()]
        faults += [*_process_faults(known), *_mesh_faults(known), *_size_faults(known)]
        if faults:
            raise BadInput(faults)

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Read a TOML file's text; raises BadInput also if it is not TOML."""
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise BadInput([f"this is not TOML: {error}"]) from None
        return cls(**values)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **others: Any) -> Self:
        """Read the variables that a launcher has set (see VARIABLES).

        The number of nodes follows from WORLD_SIZE and LOCAL_WORLD_SIZE, which torchrun sets. If a
        launcher sets no LOCAL_WORLD_SIZE, a node is assumed to have as many processes as RANK and
        LOCAL_RANK allow. That is right for one node; for several it may be too many, so set
        LOCAL_WORLD_SIZE there. The result is enabled if there are several processes.

        The variables are those of this process unless an `environment` is given; `others` are
        fields that no variable sets, or that override one. Raises BadInput like the class itself; a
        fault in a field that a variable sets names the variable.
        """
        environment = os.environ if environment is None else environment
        found: dict[str, Any] = {
            field: _number(environment[name]) if field != "master_addr" else environment[name]
            for field, name in VARIABLES.items()
            if name in environment
        }
        enabled = found.get("world_size", 1) != 1
        try:
            return cls(**{"enabled": enabled, **found, **_nodes(found), **others})
        except BadInput as error:
            origins = {field: VARIABLES[field] for field in found.keys() - others.keys()}
            parts = (fault.partition(":") for fault in error.faults)
            faults = [f"{origins.get(field, field)}:{fault}" for field, _, fault in parts]
            raise BadInput(faults) from None

    def get_data_parallel_size(self) -> int:
        """Return the number of batch shards of the mesh."""
        return self.mesh().batch_shards

    def is_main_process(self) -> bool:
        """Return whether this process is the main process, rank 0."""
        return self.rank == 0

    @property
    def device_count(self) -> int:
        """Number of devices over all processes."""
        return self.world_size * self.devices_per_process

    @property
    def precision(self) -> str:
        """The precision, as spelled for `--precision`."""
        return "fp32" if self.mixed_precision == "no" else self.mixed_precision

    @property
    def coordinator(self) -> str:
        """The main process's address and port, as jax.distributed.initialize takes them."""
        host = f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr
        return f"{host}:{self.master_port}"

    def mesh(self) -> MeshShape:
        """Return the explicit mesh, or the derived one, such as `data=2,model=2,pipe=4`.

        A derived mesh omits `model` and `pipe` of size 1, but never `data`, over which
        implementations split the batch.
        """
        if self.mesh_axis_names is not None and self.mesh_shape is not None:
            return MeshShape(tuple(zip(self.mesh_axis_names, self.mesh_shape, strict=True)))
        divided = (("model", self.tensor_parallel_size), ("pipe", self.pipeline_parallel_size))
        data = ("data", self.device_count // math.prod(size for _, size in divided))
        return MeshShape((data, *((axis, size) for axis, size in divided if size > 1)))


def _fault(name: str, kind: str, value: object) -> str:
    """Describe a faulty value, given the type of pydantic's error."""
    fields = DistributedConfig.model_fields
    if name not in fields:
        return f"{name}: unknown; {closest(name, fields)}"
    if kind == "literal_error":
        hint = closest(str(value), get_args(fields[name].annotation))
        return f"{name}: unknown {value!r}; {hint}"
    return f"{name}: {value!r} is not {fields[name].description}"


def _known(given: Mapping[str, Any], wrong: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields' values except those that are wrong or derive from wrong ones."""
    known = {name: value for name, value in given.items() if name not in wrong}
    for name, field in DistributedConfig.model_fields.items():
        if name not in given:
            with suppress(KeyError):
                known[name] = field.get_default(call_default_factory=True, validated_data=known)
    return known


def _process_faults(known: Mapping[str, Any]) -> Iterator[str]:
    match known:
        case {"world_size": world, "num_nodes": nodes, "num_processes_per_node": each}:
            if world != nodes * each:
                product = f"{nodes} x {each} = {nodes * each}"
                yield f"world_size: {world} is not num_nodes x num_processes_per_node, {product}"
    match known:
        case {"rank": rank, "world_size": world} if rank >= world:
            yield f"rank: {rank} is not below world_size, which is {world}"
    match known:
        case {"local_rank": local, "num_processes_per_node": each} if local >= each:
            yield f"local_rank: {local} is not below num_processes_per_node, which is {each}"
        case {"local_rank": local, "num_processes_per_node": each, "rank": rank}:
            if local != rank % each:
                rest = f"{rank} % {each} = {rank % each}"
                yield f"local_rank: {local} is not rank % num_processes_per_node, {rest}"


def _mesh_faults(known: Mapping[str, Any]) -> Iterator[str]:
    match known:
        case {"mesh_shape": [*_], "mesh_axis_names": None}:
            yield "mesh_shape: is given without mesh_axis_names; give both, or neither"
        case {"mesh_shape": None, "mesh_axis_names": [*_]}:
            yield "mesh_axis_names: is given without mesh_shape; give both, or neither"
        case {"mesh_shape": [*sizes], "mesh_axis_names": [*names]} if len(sizes) != len(names):
            what = f"{', '.join(names)} are {len(names)} names"
            yield f"mesh_axis_names: {what}, and mesh_shape has {len(sizes)} dimensions"
    for name in dict.fromkeys(known.get("mesh_axis_names") or ()):
        if name not in AXES:
            yield f"mesh_axis_names: unknown {name!r}; {closest(name, AXES)}"
        if known["mesh_axis_names"].count(name) > 1:
            yield f"mesh_axis_names: {name!r} is named more than once"
    match known:
        case {"mesh_shape": [*sizes], "world_size": world, "devices_per_process": each}:
            if math.prod(sizes) != world * each:
                yield (
                    f"mesh_shape: {' x '.join(map(str, sizes))} = {math.prod(sizes)} devices are "
                    f"not world_size x devices_per_process, {world} x {each} = {world * each}"
                )


def _size_faults(known: Mapping[str, Any]) -> Iterator[str]:
    match known:
        # Sizes that match the mesh divide the devices, unless the mesh is faulty itself.
        case {"mesh_shape": [*_], "mesh_axis_names": [*_]}:
            axes = {"tensor_parallel_size": "model", "pipeline_parallel_size": "pipe"}
            for field, axis in axes.items():
                size = _axis_size(known, axis)
                if (asked := known.get(field, size)) != size:
                    yield f"{field}: {asked} is not the size of the mesh's axis {axis!r}, {size}"
        case {
            "tensor_parallel_size": tensor,
            "pipeline_parallel_size": pipeline,
            "world_size": world,
            "devices_per_process": each,
        } if world * each % (tensor * pipeline):
            yield (
                f"tensor_parallel_size x pipeline_parallel_size: {tensor} x {pipeline} does not "
                f"divide world_size x devices_per_process, {world} x {each} = {world * each}"
            )


def _number(text: str) -> int | str:
    """Parse a whole number; return any other text unchanged, which the field then refuses."""
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else text


def _nodes(found: Mapping[str, Any]) -> dict[str, int]:
    """Derive the nodes and the processes on each from the other numbers, if possible."""
    match found:
        case {"world_size": int(world), "num_processes_per_node": int(each)} if each > 0:
            return {"num_nodes": max(1, world // each)}
        case {"num_processes_per_node": _}:
            return {}
        case {"world_size": int(world), "rank": int(rank), "local_rank": int(local)} if world > 0:
            # A node's first rank is a multiple of its number of processes, which divides the world.
            each = math.gcd(rank - local, world)
            return {"num_processes_per_node": each, "num_nodes": world // each}
    return {}
