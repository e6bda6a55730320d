"""A run of several processes is described without contradiction, or every fault is named."""

from __future__ import annotations

import itertools

import pytest

from bench.contract.workloads import gpt2
from bench.plan.distributed_config import VARIABLES, DistributedConfig
from bench.plan.option_values import BadInput
from bench.records.cells import PRECISIONS, StepOptions
from bench.records.mesh import AXES, MeshShape
from bench.records.printable import closest
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import make_mesh, with_options


def faults(make=DistributedConfig, *arguments, **given) -> tuple[str, ...]:
    with pytest.raises(BadInput) as caught:
        make(*arguments, **given)
    assert str(caught.value) == "\n".join(caught.value.faults)
    return caught.value.faults


def test_nothing_given_is_one_process_that_joins_none():
    config = DistributedConfig()
    assert not config.enabled
    assert (config.world_size, config.num_nodes, config.num_processes_per_node) == (1, 1, 1)
    assert (config.rank, config.local_rank, config.device_count) == (0, 0, 1)
    assert config.is_main_process()
    assert str(config.mesh()) == "data=1"
    assert config.precision == "fp32"
    assert config.coordinator == "127.0.0.1:29500"


LARGE = DistributedConfig(
    enabled=True,
    world_size=8,
    num_nodes=2,
    num_processes_per_node=4,
    rank=5,
    local_rank=1,
    devices_per_process=2,
    master_addr="node-0.example",
    master_port=1234,
    mesh_shape=(2, 2, 2, 2),
    mesh_axis_names=("pipe", "data", "fsdp", "model"),
    tensor_parallel_size=2,
    pipeline_parallel_size=2,
    mixed_precision="fp16",
)


def test_everything_given():
    assert LARGE.device_count == 16
    assert LARGE.get_data_parallel_size() == 4
    assert not LARGE.is_main_process()
    assert str(LARGE.mesh()) == "pipe=2,data=2,fsdp=2,model=2"
    assert LARGE.coordinator == "node-0.example:1234"
    assert LARGE.precision == "fp16"


def test_what_is_not_given_follows():
    config = DistributedConfig(world_size=8, num_nodes=2, rank=4)
    assert (config.num_processes_per_node, config.local_rank) == (4, 0)
    assert not config.is_main_process()
    assert DistributedConfig(world_size=3, rank=2).local_rank == 2
    mesh = {"mesh_shape": (2, 3, 4), "mesh_axis_names": ("data", "pipe", "model")}
    config = DistributedConfig(world_size=24, **mesh)
    assert (config.tensor_parallel_size, config.pipeline_parallel_size) == (4, 3)
    assert config.get_data_parallel_size() == 2


@pytest.mark.parametrize("mixed", ["no", "fp16", "bf16"])
def test_precision_is_one_that_a_run_offers(mixed):
    assert DistributedConfig(mixed_precision=mixed).precision in PRECISIONS


@pytest.mark.parametrize(
    ("host", "coordinator"), [("::1", "[::1]:29500"), ("10.0.0.1", "10.0.0.1:29500")]
)
def test_coordinator_tells_address_from_port(host, coordinator):
    assert DistributedConfig(master_addr=host).coordinator == coordinator


def test_it_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        LARGE.rank = 3
    assert hash(LARGE) == hash(DistributedConfig(**LARGE.model_dump()))


COUNT = "a whole number of at least 1"
RANK = "a whole number of at least 0"
PORT = "a port, a whole number from 1 to 65535"
HOST = "a host's name or address, without a port"
NO_COUNTS = (0, -1, 2.0, True, "2", None, float("nan"))


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        *((field, value, COUNT) for field, value in itertools.product(
            ("world_size", "num_nodes", "num_processes_per_node", "devices_per_process",
             "tensor_parallel_size", "pipeline_parallel_size"), NO_COUNTS)),
        *((field, value, RANK) for field, value in itertools.product(
            ("rank", "local_rank"), (-1, 0.0, False, "0", None))),
        *(("master_port", value, PORT) for value in (0, 65536, -1, True, "80", 80.0)),
        *(("master_addr", value, HOST) for value in ("", "a b", "host:80", "http://host", 1, None)),
        *(("enabled", value, "true or false") for value in (1, "true", None)),
        *(("mesh_shape", value, "whole numbers of at least 1, such as (4, 2)")
          for value in ((), (0,), (1, True), (1.0,), ("1",), [2, -1], 1, "1", {1})),
        *(("mesh_axis_names", value, f"names of axes, from: {', '.join(AXES)}")
          for value in ((), (1,), "data", ["data", None], {"data"})),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused(field, value, allowed):
    (fault,) = faults(**{field: value})
    assert fault == f"{field}: {value!r} is not {allowed}"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"mixed_precision": 1}, "mixed_precision: unknown 1; choose from: no, fp16, bf16"),
        (
            {"mixed_precision": "bf8"},
            "mixed_precision: unknown 'bf8'; did you mean bf16? (also: no, fp16)",
        ),
        (
            {"world_size": 6, "num_nodes": 2, "num_processes_per_node": 4},
            "world_size: 6 is not num_nodes x num_processes_per_node, 2 x 4 = 8",
        ),
        (
            {"world_size": 3, "num_nodes": 2},
            "world_size: 3 is not num_nodes x num_processes_per_node, 2 x 1 = 2",
        ),
        (
            {"world_size": 2, "rank": 2},
            "rank: 2 is not below world_size, which is 2",
        ),
        (
            {"world_size": 4, "num_nodes": 2, "local_rank": 2},
            "local_rank: 2 is not below num_processes_per_node, which is 2",
        ),
        (
            {"world_size": 4, "num_nodes": 2, "rank": 3, "local_rank": 0},
            "local_rank: 0 is not rank % num_processes_per_node, 3 % 2 = 1",
        ),
        (
            {"mesh_shape": (1,)},
            "mesh_shape: is given without mesh_axis_names; give both, or neither",
        ),
        (
            {"mesh_axis_names": ("data",)},
            "mesh_axis_names: is given without mesh_shape; give both, or neither",
        ),
        (
            {"world_size": 4, "mesh_shape": (2, 2), "mesh_axis_names": ("data",)},
            "mesh_axis_names: data are 1 names, and mesh_shape has 2 dimensions",
        ),
        (
            {"world_size": 4, "mesh_shape": (2, 2), "mesh_axis_names": ("data", "modl")},
            f"mesh_axis_names: unknown 'modl'; {closest('modl', AXES)}",
        ),
        (
            {"world_size": 4, "mesh_shape": (2, 2), "mesh_axis_names": ("data", "data")},
            "mesh_axis_names: 'data' is named more than once",
        ),
        (
            {"world_size": 4, "mesh_shape": (2, 4), "mesh_axis_names": ("data", "fsdp")},
            "mesh_shape: 2 x 4 = 8 devices are not world_size x devices_per_process, 4 x 1 = 4",
        ),
        (
            {
                "world_size": 2,
                "devices_per_process": 4,
                "tensor_parallel_size": 2,
                "pipeline_parallel_size": 3,
            },
            (
                "tensor_parallel_size x pipeline_parallel_size: 2 x 3 does not divide "
                "world_size x devices_per_process, 2 x 4 = 8"
            ),
        ),
        (
            {
                "world_size": 4,
                "mesh_shape": (2, 2),
                "mesh_axis_names": ("data", "model"),
                "tensor_parallel_size": 4,
            },
            "tensor_parallel_size: 4 is not the size of the mesh's axis 'model', 2",
        ),
        (
            {
                "world_size": 4,
                "mesh_shape": (4,),
                "mesh_axis_names": ("data",),
                "pipeline_parallel_size": 2,
            },
            "pipeline_parallel_size: 2 is not the size of the mesh's axis 'pipe', 1",
        ),
    ],
)
def test_a_contradiction_is_refused(given, fault):
    assert faults(**given) == (fault,)


def test_an_unknown_key_is_refused_with_the_nearest():
    (fault,) = faults(wold_size=2)
    assert fault.startswith("wold_size: unknown; did you mean world_size?")
    assert faults(DistributedConfig.from_toml, "wold_size = 2") == (fault,)


def test_every_fault_is_named_at_once():
    """Of single values and of several together, though pydantic stops between the two."""
    assert faults(
        enabled="yes",
        world_size=4,
        num_nodes=3,
        rank=4,
        local_rank=3,
        master_port=0,
        mesh_shape=(2, 4),
        mesh_axis_names=("dta", "pipe", "pipe"),
        tensor_parallel_size=3,
        mixed_precision="fp8",
        hosts=2,
    ) == (
        "enabled: 'yes' is not true or false",
        "master_port: 0 is not a port, a whole number from 1 to 65535",
        "mixed_precision: unknown 'fp8'; did you mean fp16? (also: no, bf16)",
        f"hosts: unknown; choose from: {', '.join(DistributedConfig.model_fields)}",
        "world_size: 4 is not num_nodes x num_processes_per_node, 3 x 1 = 3",
        "rank: 4 is not below world_size, which is 4",
        "local_rank: 3 is not below num_processes_per_node, which is 1",
        "mesh_axis_names: dta, pipe, pipe are 3 names, and mesh_shape has 2 dimensions",
        f"mesh_axis_names: unknown 'dta'; {closest('dta', AXES)}",
        "mesh_axis_names: 'pipe' is named more than once",
        "mesh_shape: 2 x 4 = 8 devices are not world_size x devices_per_process, 4 x 1 = 4",
        "tensor_parallel_size: 3 is not the size of the mesh's axis 'model', 1",
    )


def test_what_would_follow_from_a_wrong_value_is_not_blamed():
    given = {"local_rank": 3, "rank": 7, "mesh_shape": (2,), "mesh_axis_names": ("data",)}
    assert faults(world_size="8", **given) == (f"world_size: '8' is not {COUNT}",)
    assert faults(world_size=4, mesh_shape=(0,), mesh_axis_names=("model",), rank=4) == (
        "mesh_shape: (0,) is not whole numbers of at least 1, such as (4, 2)",
        "rank: 4 is not below world_size, which is 4",
    )
    mesh = {"mesh_shape": (2, 3), "mesh_axis_names": ("data", "model")}
    assert faults(world_size=4, **mesh) == (
        "mesh_shape: 2 x 3 = 6 devices are not world_size x devices_per_process, 4 x 1 = 4",
    )
    # A wrong mesh says nothing of sizes that are given themselves.
    sizes = {"tensor_parallel_size": 3, "pipeline_parallel_size": 1}
    assert faults(world_size=4, mesh_shape=(0,), **sizes)[1:] == (
        (
            "tensor_parallel_size x pipeline_parallel_size: 3 x 1 does not divide "
            "world_size x devices_per_process, 4 x 1 = 4"
        ),
    )


def test_toml_is_read_as_people_write_it():
    text = 'world_size = 4\nmesh_shape = [2, 2]\nmesh_axis_names = ["data", "model"]\n'
    assert str(DistributedConfig.from_toml(text).mesh()) == "data=2,model=2"
    (fault,) = faults(DistributedConfig.from_toml, "world_size = = 4")
    assert fault.startswith("this is not TOML: ")
    assert faults(DistributedConfig.from_toml, "world_size = 4.0") == (
        f"world_size: 4.0 is not {COUNT}",
    )


@pytest.mark.parametrize("rank", range(8))
def test_the_environment_says_what_its_variables_say(rank):
    values = {**dict.fromkeys(VARIABLES, rank), "world_size": 8, "num_processes_per_node": 4}
    values |= {"local_rank": rank % 4, "master_addr": "host", "master_port": 1234}
    environment = {VARIABLES[field]: str(value) for field, value in values.items()}
    found = DistributedConfig.from_environment(environment)
    assert found == DistributedConfig(enabled=True, num_nodes=2, **values)


def test_the_environment_is_this_processs_and_does_not_say_everything(monkeypatch):
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    assert DistributedConfig.from_environment() == DistributedConfig()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    config = DistributedConfig.from_environment(tensor_parallel_size=2, mixed_precision="bf16")
    assert config == DistributedConfig(
        enabled=True, world_size=4, rank=3, tensor_parallel_size=2, mixed_precision="bf16"
    )
    assert DistributedConfig.from_environment(rank=2).local_rank == 2


def variables(world=None, rank=None, local=None, each=None):
    given = {"WORLD_SIZE": world, "RANK": rank, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": each}
    return {name: str(value) for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("environment", "nodes", "each", "local"),
    [
        (variables(8, 5, 1, 4), 2, 4, 1),
        (variables(8, 5, None, 2), 4, 2, 1),
        (variables(8, 5), 1, 8, 5),
        (variables(8, 5, 5), 1, 8, 5),
        (variables(8, 5, 1), 2, 4, 1),
        (variables(8, 6, 0), 4, 2, 0),
        (variables(12, 6, 0), 2, 6, 0),
        # The first of eight nodes cannot tell without LOCAL_WORLD_SIZE that there are others.
        (variables(8, 0, 0), 1, 8, 0),
        (variables(8, 0, 0, 1), 8, 1, 0),
    ],
)
def test_nodes_follow_from_the_environment(environment, nodes, each, local):
    config = DistributedConfig.from_environment(environment)
    assert (config.num_nodes, config.num_processes_per_node) == (nodes, each)
    assert config.local_rank == local


@pytest.mark.parametrize(
    ("environment", "fault"),
    [
        (variables("four"), f"WORLD_SIZE: 'four' is not {COUNT}"),
        (variables(""), f"WORLD_SIZE: '' is not {COUNT}"),
        (variables("2.0"), f"WORLD_SIZE: '2.0' is not {COUNT}"),
        (variables("\u00b2"), f"WORLD_SIZE: '\u00b2' is not {COUNT}"),
        (variables(0), f"WORLD_SIZE: 0 is not {COUNT}"),
        (variables(2, "x", 0, 2), f"RANK: 'x' is not {RANK}"),
        (variables(2, -1, 0), f"RANK: -1 is not {RANK}"),
        (variables(2, 1, 0, "x"), f"LOCAL_WORLD_SIZE: 'x' is not {COUNT}"),
        (variables(2, 0, 0, 0), f"LOCAL_WORLD_SIZE: 0 is not {COUNT}"),
        (variables(2, 2), "RANK: 2 is not below world_size, which is 2"),
        (
            variables(6, 0, 0, 4),
            "WORLD_SIZE: 6 is not num_nodes x num_processes_per_node, 1 x 4 = 4",
        ),
        (
            variables(4, 2, 1),
            "LOCAL_RANK: 1 is not below num_processes_per_node, which is 1",
        ),
        ({"MASTER_PORT": "70000"}, f"MASTER_PORT: 70000 is not {PORT}"),
        ({"MASTER_ADDR": "host:80"}, f"MASTER_ADDR: 'host:80' is not {HOST}"),
    ],
)
def test_a_fault_of_the_environment_names_the_variable(environment, fault):
    assert faults(DistributedConfig.from_environment, environment) == (fault,)


def test_faults_of_environment_and_caller_are_told_apart():
    environment = {**variables("x", "y"), "MASTER_PORT": "0"}
    assert faults(DistributedConfig.from_environment, environment, rank=-1, tensor=2) == (
        f"WORLD_SIZE: 'x' is not {COUNT}",
        f"rank: -1 is not {RANK}",
        f"MASTER_PORT: 0 is not {PORT}",
        f"tensor: unknown; {closest('tensor', DistributedConfig.model_fields)}",
    )


@pytest.mark.parametrize(
    ("data", "tensor", "pipeline"), [*itertools.product((1, 2, 3), (1, 2), (1, 4))]
)
@pytest.mark.parametrize("each", [1, 2])
def test_mesh_has_all_devices_and_the_sizes_asked_for(data, tensor, pipeline, each):
    config = DistributedConfig(
        world_size=data * tensor * pipeline,
        devices_per_process=each,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
    )
    mesh = config.mesh()
    assert mesh.size == config.device_count
    assert mesh.batch_shards == config.get_data_parallel_size() == data * each
    assert (mesh.axis("model"), mesh.axis("pipe")) == (tensor, pipeline)
    assert MeshShape.parse(str(mesh)) == mesh
    assert all(size > 1 for name, size in mesh.axes if name != "data")
    explicit = DistributedConfig(
        world_size=config.world_size,
        devices_per_process=each,
        mesh_shape=tuple(size for _, size in mesh.axes),
        mesh_axis_names=tuple(name for name, _ in mesh.axes),
    )
    assert explicit.mesh() == mesh


MODULES = {name: load(path) for name, path in implementation_files([]).items()}
IMPLEMENTATIONS = {name: one for name, one in MODULES.items() if not hasattr(one, "FOREIGN")}
PIPELINES = {"pipeline_gpipe", "pipeline_interleaved"}


@pytest.mark.parametrize(
    ("sizes", "mesh", "users"),
    [
        ({}, "data=4", {"jit_spmd", "fsdp_spmd", "zero1"}),
        ({"tensor_parallel_size": 4}, "data=1,model=4", {"tensor_parallel_spmd"}),
        ({"pipeline_parallel_size": 4}, "data=1,pipe=4", PIPELINES),
        (
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
            "data=1,model=2,pipe=2",
            PIPELINES,
        ),
    ],
)
def test_implementations_can_use_the_mesh_that_follows(sizes, mesh, users):
    made = DistributedConfig(world_size=4, **sizes).mesh()
    assert str(made) == mesh
    config = gpt2.Config(layers=8, heads=4, width=16, context=16, vocabulary=256)
    problem = with_options(gpt2.problem(config, 16, "fp32"), StepOptions(microbatches=4))
    devices = make_mesh(made)
    reasons = {name: IMPLEMENTATIONS[name].why_unsupported(problem, devices) for name in users}
    assert reasons == dict.fromkeys(users)
