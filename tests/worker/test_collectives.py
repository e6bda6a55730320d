"""Programs communicate what their docstrings promise, and it is read right."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from jaxlib._hlo import hlo_module_from_text

from bench.contract.logical_axes import TENSOR_PARALLEL, partition_specs, path_of
from bench.contract.placement import fsdp_specs, shapes_of_params
from bench.contract.workloads import gpt2, gpt2_muon, mlp, moe, vae
from bench.records.mesh import MeshShape
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import make_mesh
from bench.worker.read.collectives import bytes_of, collectives, parse_groups
from bench.worker.read.programs import communication, live_programs, new_programs
from tests.slow import slow


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{{0},{1}}", ((0,), (1,))),
        ("[4,2]<=[8]", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=4,'b'=2] {'a'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=4,'b'=2] {'b'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=4,'b'=2] {'a','b'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
    ],
)
def test_groups_are_read_in_every_form(text, groups):
    assert parse_groups(text, 8) == groups


OF_FOUR = """HloModule jit_step, num_partitions=4

ENTRY e {{ n = s32[4]{{0}} constant({{1, 1, 1, 1}})
 a = f32[4]{{0}} parameter(0)
 b = f32[4]{{0}} negate(a)
 ROOT c = f32[4]{{0}} {} }}
"""


def of_four(instruction, dtype="f32"):
    module = hlo_module_from_text(OF_FOUR.format(instruction).replace("f32", dtype))
    return [*collectives(SimpleNamespace(hlo_modules=lambda: [module]), 4)]


def test_groups_are_read_whatever_follows_them():
    (found,) = of_four(
        "all-to-all(a), replica_groups={{0,1},{2,3}}, dimensions={0}, control-predecessors={b}"
    )
    assert (found.groups, found.bytes) == (((0, 1), (2, 3)), 16)


def test_collectives_whose_bytes_are_not_known_are_an_error():
    with pytest.raises(ValueError, match="the bytes of a ragged-all-to-all are not known"):
        of_four("ragged-all-to-all(a, b, n, n, n, n), replica_groups={{0,1,2,3}}")


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("bf16", 8), ("f8e5m2", 4), ("f8e4m3b11fnuz", 4), ("s4", 2), ("c128", 64)],
)
def test_sizes_follow_from_the_names_of_dtypes(dtype, size):
    (found,) = of_four("all-to-all(a), replica_groups={{0,1}}, dimensions={0}", dtype)
    assert (found.dtypes, found.bytes) == ((dtype,), size)
    assert bytes_of([("pred", [3]), ("s64", []), (dtype, [4])]) == 11 + size


@pytest.mark.parametrize("text", ["mesh['a'=4] {'c'}", "[4,2]<=", "all of them"])
def test_an_unknown_form_is_an_error(text):
    with pytest.raises(ValueError, match="have an unknown form"):
        parse_groups(text, 8)


def test_kinds_bytes_groups_and_loops_are_read():
    mesh = make_mesh(MeshShape.parse("data=2,model=2"))

    def communicate(x):
        def inner(total, _):
            return jax.lax.psum(total, "model"), None

        def outer(total, _):
            return jax.lax.scan(inner, total, None, length=2)[0], None

        y, _ = jax.lax.scan(outer, x, None, length=3)
        gathered = jax.lax.all_gather(y.astype(jnp.bfloat16), "data", tiled=True)
        scattered = jax.lax.psum_scatter(y, "data", tiled=True)
        return gathered, scattered, jax.lax.ppermute(y, "model", [(0, 1)])

    over = P("data", "model")
    step = jax.shard_map(
        communicate, mesh=mesh, in_specs=over, out_specs=(over, over, over), check_vma=False
    )
    compiled = jax.jit(step).lower(jnp.ones((8, 8))).compile()
    found = {c.kind: c for c in collectives(compiled.runtime_executable(), 4)}
    assert set(found) == {"all-reduce", "all-gather", "reduce-scatter", "collective-permute"}
    assert (found["all-reduce"].count, found["all-reduce"].bytes) == (6, 4 * 16)
    assert found["all-reduce"].groups == ((0, 1), (2, 3))
    gather = found["all-gather"]
    assert (gather.count, gather.groups) == (1, ((0, 2), (1, 3)))
    # XLA may convert before or after it gathers.
    assert gather.bytes == 2 * 16 * {"bf16": 2, "f32": 4}[gather.dtypes[0]]
    assert (found["reduce-scatter"].bytes, found["reduce-scatter"].dtypes) == (64, ("f32",))
    assert found["collective-permute"].groups == ((0, 1), (2, 3))


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        (lambda total, slice_of: slice_of(total), "reduce-scatter"),
        # Into fusions and out of them.
        (lambda total, slice_of: 2 * slice_of(total).T + 1, "reduce-scatter"),
        (lambda total, slice_of: slice_of(total.astype(jnp.bfloat16)), "reduce-scatter"),
        (lambda total, slice_of: total, "all-reduce"),
        (lambda total, slice_of: slice_of(total).sum() + total, "all-reduce"),
        # A smaller part than a device's.
        (lambda total, slice_of: slice_of(total, 4), "all-reduce"),
    ],
)
def test_what_is_reduced_for_slices_alone_is_a_reduce_scatter(use, kind):
    mesh = make_mesh(MeshShape.parse("data=4"))

    def step(x):
        def slice_of(total, own=16):
            return jax.lax.dynamic_slice_in_dim(total, jax.lax.axis_index("data") * own, own)

        return use(jax.lax.psum(x, "data"), slice_of)

    sharded = jax.shard_map(step, mesh=mesh, in_specs=P(), out_specs=P("data"), check_vma=False)
    program = jax.jit(sharded).lower(jnp.ones((64, 16))).compile().runtime_executable()
    (found,) = collectives(program, 4, scatter=True)
    (as_it_is,) = collectives(program, 4)
    assert (found.kind, as_it_is.kind) == (kind, "all-reduce")
    assert found.bytes == as_it_is.bytes == 64 * 16 * 4


@pytest.mark.parametrize(
    ("use", "returned"),
    [
        (lambda whole: whole, True),
        (lambda whole: 2 * whole.T + 1, True),
        (lambda whole: whole @ whole.T, False),
        (lambda whole: jnp.tanh(whole) @ jnp.ones((16, 4)), False),
        # In a loop, and into another collective.
        (lambda whole: jax.lax.scan(lambda x, _: (x @ x.T @ x, None), whole, length=3)[0], False),
        (lambda whole: jax.lax.psum(whole.sum(), "data"), False),
    ],
)
def test_what_is_gathered_to_be_returned_is_told(use, returned):
    mesh = make_mesh(MeshShape.parse("data=4"))
    step = jax.shard_map(
        lambda x: use(jax.lax.all_gather(x, "data", tiled=True)),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P(),
        check_vma=False,
    )
    program = jax.jit(step).lower(jnp.ones((16, 16))).compile().runtime_executable()
    (gathered,) = (one for one in collectives(program, 4) if one.kind == "all-gather")
    assert gathered.returned is returned


def test_zero1_returns_what_it_gathers_and_fsdp_does_not():
    for name, mesh, returned in (
        ("zero1", "data=4", True),
        ("fsdp_shard_map", "data=2,fsdp=2", False),
        ("fsdp_spmd", "fsdp=4", False),
    ):
        gathered = [one for one in run(name, small_mlp(), mesh).collectives
                    if one.kind == "all-gather"]  # fmt: skip
        assert gathered
        assert {one.returned for one in gathered} == {returned}


MODULES = {name: load(path) for name, path in implementation_files([]).items()}
IMPLEMENTATIONS = {name: one for name, one in MODULES.items() if not hasattr(one, "FOREIGN")}


@dataclass(frozen=True)
class Found:
    """What a step communicates, over all of its programs."""

    collectives: list
    parameter_bytes: int

    def of(self, kind, members=None):
        """Bytes of each instruction of a kind, as often as a step runs it; of groups of a size."""
        return sorted(
            c.bytes
            for c in self.collectives
            for _ in range(c.count)
            if c.kind == kind and members in (None, len(c.groups[0]))
        )

    def over(self, kind, groups):
        return sorted(
            c.bytes for c in self.collectives for _ in range(c.count)
            if c.kind == kind and set(c.groups) == set(groups)
        )  # fmt: skip

    @property
    def kinds(self):
        return {c.kind for c in self.collectives}


def run(name, problem, mesh, dtypes=frozenset({"f32"})):
    """Compile and run one step, and read the programs that came alive."""
    mesh = make_mesh(MeshShape.parse(mesh))
    implementation = IMPLEMENTATIONS[name]
    shapes = shapes_of_params(problem)
    # Drawing parameters takes about as long as compiling the step.
    problem = replace(problem, start=jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes))
    assert implementation.why_unsupported(problem, mesh) is None
    step = implementation.build(problem, mesh)
    batch = step.place(problem.batch(0))
    before = live_programs()
    jax.block_until_ready(step.step(step.state, batch)[1])
    found = [
        collective
        for program in new_programs(live_programs(), before)
        for collective in collectives(program, mesh.devices.size)
    ]
    assert {dtype for collective in found for dtype in collective.dtypes} <= dtypes
    return Found(found, 4 * sum(x.size for x in jax.tree.leaves(shapes)))


def small_mlp(precision="fp32", microbatches=1):
    return replace(mlp.problem(mlp.SIZES["tiny"](), 8, precision), microbatches=microbatches)


def small_gpt2(*, layers=2, heads=8, remat="", microbatches=1):
    config = gpt2.Config(layers, heads=heads, width=16, context=16, vocabulary=256)
    return replace(light(gpt2.problem(config, 8, "fp32", remat)), microbatches=microbatches)


def light(problem):
    """The problem with an optimizer whose state is smaller and whose update compiles sooner."""
    return replace(problem, optimizer=optax.sgd(1e-2, momentum=0.9))


JOINS_AGAIN = jax.__version__.startswith("0.10.")
"""Its XLA drops barriers on CPU, and joins what they keep apart: buckets, second gathers."""

TOKEN_TABLE = 4 * 256 * 16
"""Bytes of small_gpt2's largest parameter, which is used twice: as input and as output."""

USED_TWICE = ("jit_spmd", "nnx_jit", "nnx_jit_cached", "explicit_sharding", "shard_map_in_backward")
"""Where on CPU the gradient of each use of a parameter is all-reduced before the two are added."""

REPLICATED = ("pmap", "shard_map_pmean", "shard_map_psum", *USED_TWICE)

FIRST = ("pmap", "shard_map_pmean", "jit_spmd", "explicit_sharding")
"""One of each way to reduce; `slow` tries the others."""


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *itertools.product(FIRST, ["fp32"]),
        *slow(*((name, "fp32") for name in REPLICATED if name not in FIRST)),
        *slow(*itertools.product(REPLICATED, ["bf16"])),
    ],
)
def test_data_parallelism_is_one_all_reduce_of_gradients_and_loss(name, precision):
    found = run(name, small_mlp(precision), "data=4")
    assert found.kinds == {"all-reduce"}
    assert found.of("all-reduce", 4) == [found.parameter_bytes + 4]


def test_float16_gradients_are_reduced_in_float32_unless_the_compiler_decides():
    """As bfloat16 ones are, which XLA itself makes float32 on CPU."""
    found = run("shard_map_pmean", small_mlp("fp16"), "data=4")
    assert found.of("all-reduce", 4) == [found.parameter_bytes + 4]
    found = run("jit_spmd", small_mlp("fp16"), "data=4", {"f16", "f32"})
    assert found.of("all-reduce", 4) == [4, found.parameter_bytes / 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "mesh"), [("vae", "data=8"), ("gpt2", "data=2"), ("gpt2 remat", "data=8")]
)
@pytest.mark.parametrize("name", [*FIRST, "shard_map_in_backward", "shard_map_bucketed"])
def test_data_parallelism_reduces_every_models_gradients(name, model, mesh):
    if model == "vae":
        found = run(name, vae.problem(vae.SIZES["tiny"](), 8, "fp32"), mesh)
    else:
        found = run(name, small_gpt2(remat="full" if model == "gpt2 remat" else ""), mesh)
    twice = TOKEN_TABLE if model != "vae" and name in USED_TWICE else 0
    assert found.kinds == {"all-reduce"}
    assert sum(found.of("all-reduce")) == found.parameter_bytes + twice + 4


@pytest.mark.parametrize(
    "name", ["shard_map_pmean", "shard_map_bucketed", *slow("pmap", "shard_map_psum")]
)
def test_microbatches_are_reduced_once(name):
    found = run(name, small_mlp(microbatches=4), "data=2")
    assert found.of("all-reduce") == [found.parameter_bytes + 4]


@pytest.mark.parametrize(
    "name", ["jit_spmd", *slow("nnx_jit", "nnx_jit_cached", "explicit_sharding")]
)
def test_microbatches_are_reduced_one_by_one_where_the_compiler_decides(name):
    """As their docstrings say: the partitioner does not move the reduction out of the scan."""
    found = run(name, small_mlp(microbatches=4), "data=2")
    assert found.of("all-reduce") == [found.parameter_bytes + 4] * 4


def test_microbatches_are_reduced_one_by_one_within_their_backward_passes():
    found = run("shard_map_in_backward", small_mlp(microbatches=4), "data=2")
    assert sum(found.of("all-reduce")) == 4 * found.parameter_bytes + 4


def test_zero1_communicates_once_for_all_microbatches():
    found = run("zero1", small_mlp(microbatches=4), "data=2")
    assert sum(found.of("reduce-scatter")) == sum(found.of("all-gather")) == found.parameter_bytes


def test_zero2_scatters_every_microbatch_and_gathers_once():
    found = run("zero2", small_mlp(microbatches=4), "data=2")
    assert sum(found.of("reduce-scatter")) == 4 * found.parameter_bytes
    assert sum(found.of("all-gather")) == found.parameter_bytes


@pytest.mark.parametrize(("data", "count"), slow((2, 1), (1, 3), (2, 3), (4, 3), (8, 3)))
def test_owners_get_gradients_and_send_parameters_of_whole_layers(data, count):
    config = gpt2.Config(layers=count, heads=2, width=16, context=16, vocabulary=256)
    problem = gpt2_muon.problem(config, 8, "fp32")
    found = run("owner_computes", problem, f"data={data}")
    layers = 4 * sum(x.size for x in jax.tree.leaves(shapes_of_params(problem)["blocks"]))
    padded = layers // count * (count + -count % data)
    assert sum(found.of("reduce-scatter", data)) == padded
    assert sum(found.of("all-gather")) == (padded if data > 1 else 0)
    # Two scalars: the loss, and the norm of the gradients by which they are clipped.
    assert sum(found.of("all-reduce", data)) == found.parameter_bytes - layers + 8
    assert found.kinds <= {"reduce-scatter", "all-gather", "all-reduce"}


@pytest.mark.parametrize("mesh", ["data=2,fsdp=4", *slow("data=1", "data=8", "fsdp=4")])
def test_a_hierarchical_reduction_moves_a_part_between_hosts(mesh):
    sizes = dict(MeshShape.parse(mesh).axes)
    inner = "fsdp" if "fsdp" in sizes else "data"
    found = run("hierarchical_shard_map", small_mlp(), mesh)
    padded = found.parameter_bytes + 4 + -(found.parameter_bytes + 4) % (4 * sizes[inner])
    if sizes[inner] > 1:
        assert found.over("reduce-scatter", groups(mesh, inner)) == [padded]
        assert found.over("all-gather", groups(mesh, inner)) == [padded]
    between = [padded // sizes["fsdp"]] if len(sizes) > 1 else []
    assert found.of("all-reduce") == between


def test_fsdp_scatters_the_gradients_of_every_microbatch():
    found = run("fsdp_shard_map", small_mlp(microbatches=4), "data=2")
    assert sum(found.of("reduce-scatter")) == 4 * found.parameter_bytes
    # XLA moves the forward pass's gathers out of the loop, and not those of the backward pass.
    assert sum(found.of("all-gather")) == found.parameter_bytes + 4 * gathered_again(small_mlp())
    found = run("fsdp_spmd", small_mlp(microbatches=4), "data=2")
    assert sum(found.of("all-gather")) == found.parameter_bytes
    assert found.of("all-reduce") == [found.parameter_bytes + 4] * 4


def gathered_again(problem):
    """Bytes of what a backward pass needs whole: kernels of all layers but the first."""
    leaves = jax.tree_util.tree_leaves_with_path(shapes_of_params(problem))
    return sum(
        4 * leaf.size
        for path, leaf in leaves
        if path_of(path).endswith("kernel") and "layers/0" not in path_of(path)
    )


@pytest.mark.parametrize("name", ["zero1", "fsdp_shard_map"])
def test_an_axis_of_one_device_divides_nothing(name):
    found = run(name, small_mlp(), "data=2,fsdp=1")
    assert sum(found.of("reduce-scatter", 2)) == found.parameter_bytes
    assert not found.of("all-gather", 1)


def test_the_loop_has_no_collectives():
    assert not run("python_loop", small_mlp(), "data=4").collectives


def test_buckets_are_reduced_apart(monkeypatch):
    monkeypatch.setattr(IMPLEMENTATIONS["shard_map_bucketed"], "BUCKET_BYTES", 600)
    found = run("shard_map_bucketed", small_mlp(), "data=4")
    sizes = found.of("all-reduce", 4)
    assert sum(sizes) == found.parameter_bytes + 4
    assert len(sizes) == 1 if JOINS_AGAIN else len(sizes) >= 3


def test_buckets_are_in_the_order_of_the_backward_pass():
    """Gradients of GPT-2's first layers are made last, wherever their names stand."""
    problem = small_gpt2(heads=2)
    params, state, loss_fn = problem.functional_with_state()
    paths = [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    backward_order = IMPLEMENTATIONS["shard_map_bucketed"].backward_order
    order = backward_order(loss_fn, params, state, problem.batch(0))
    names = [paths[index] for index in order]
    assert sorted(names) == sorted(paths)
    assert names[0].startswith("norm/")
    assert names[-1].startswith("tokens/")
    blocks = [name.split("/")[1] for name in names if name.startswith("blocks/")]
    assert blocks == sorted(blocks, reverse=True)


def test_zero1_scatters_gradients_and_gathers_parameters():
    found = run("zero1", small_mlp(), "data=4")
    assert sum(found.of("reduce-scatter", 4)) == found.parameter_bytes
    assert sum(found.of("all-gather", 4)) == found.parameter_bytes
    assert found.of("all-reduce") == [4], "the loss"


@pytest.mark.parametrize("mesh", ["data=2,fsdp=2", *slow("data=2,fsdp=4")])
def test_fsdp_by_hand_never_all_reduces_whole_gradients(mesh):
    found = run("fsdp_shard_map", small_mlp(), mesh)
    fsdp, data = groups(mesh, "fsdp"), groups(mesh, "data")
    again = 0 if JOINS_AGAIN else gathered_again(small_mlp())
    assert sum(found.over("all-gather", fsdp)) == found.parameter_bytes + again
    assert sum(found.over("reduce-scatter", fsdp)) == found.parameter_bytes
    # Shards of gradients over `data`, and the loss over all.
    assert found.over("all-reduce", data) == [found.parameter_bytes // len(fsdp[0])]
    assert found.over("all-reduce", groups(mesh, "data", "fsdp")) == [4]


@pytest.mark.parametrize("mesh", ["fsdp=4", *slow("data=2,fsdp=4")])
def test_fsdp_by_annotation_gathers_parameters_and_on_cpu_all_reduces_gradients(mesh):
    found = run("fsdp_spmd", small_mlp("bf16"), mesh)
    assert found.over("all-gather", groups(mesh, "fsdp")) == found.of("all-gather")
    assert sum(found.of("all-gather")) == found.parameter_bytes
    over_all = groups(mesh, *(name for name, _ in MeshShape.parse(mesh).axes))
    assert found.over("all-reduce", over_all) == [found.parameter_bytes + 4]


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["", "full"])
@pytest.mark.parametrize("name", ["zero1", "fsdp_shard_map", "fsdp_spmd"])
def test_sharded_states_of_gpt2_are_gathered_and_scattered(name, remat):
    """Rematerialization changes none of it: whole parameters are not kept anyway."""
    mesh = "data=4" if name == "zero1" else "data=2,fsdp=4"
    found = run(name, small_gpt2(remat=remat), mesh)
    gathered = sum(found.of("all-gather")) / found.parameter_bytes
    scattered = sum(found.of("reduce-scatter")) / found.parameter_bytes
    if name == "fsdp_spmd":
        assert (gathered, scattered) == (1, 0)
        whole = [size for size in found.of("all-reduce", 8) if size > TOKEN_TABLE]
        assert whole == [found.parameter_bytes + TOKEN_TABLE + 4]
    elif name == "zero1":
        assert gathered == scattered
        assert 0.95 < scattered <= 1, "all but what does not divide"
    else:
        assert 1 <= gathered <= 2
        assert scattered == 1
        assert max(found.of("all-reduce")) <= found.parameter_bytes / 4


BY_SIZE = pytest.mark.parametrize(
    "data", [2, *(pytest.param(data, marks=pytest.mark.slow) for data in (1, 4))]
)


@BY_SIZE
@pytest.mark.parametrize(
    ("name", "share"), [*slow(("compressed_bf16", 1 / 2)), ("compressed_int8", 1 / 4)]
)
def test_compressed_gradients_are_sent_in_fewer_bytes(name, share, data):
    problem = small_gpt2(layers=1)
    found = run(name, problem, f"data={data}", {"u16", "s8", "f32"})
    least = share * found.parameter_bytes
    most = (share + (0 if share > 1 / 4 else 1 / 256)) * (found.parameter_bytes + 4 * 256 * data)
    for kind in ("all-to-all", "all-gather") if data > 1 else ():
        assert least <= sum(found.of(kind, data)) <= most
    assert found.of("all-reduce", data) in ([4], [], [1]), "the loss"
    assert found.kinds <= {"all-to-all", "all-gather", "all-reduce"}


@BY_SIZE
def test_sparse_gradients_are_gathered_with_their_indices(data):
    found = run("top_k", small_mlp(), f"data={data}", {"f32", "s32"})
    kept = round(found.parameter_bytes / 4 / 4)
    assert sum(found.of("all-gather", data)) == 8 * kept * data
    assert found.kinds <= {"all-gather", "all-reduce"}
    if data > 1:
        assert found.of("all-reduce", data) == [4], "the loss"


@BY_SIZE
def test_local_steps_reduce_parameters_once_in_a_period(data):
    mesh, problem = make_mesh(MeshShape.parse(f"data={data}")), small_mlp()
    step = IMPLEMENTATIONS["local_steps"].build(problem, mesh)
    batch = step.place(problem.batch(0))
    before = live_programs()
    jax.block_until_ready(step.step(step.state, batch)[1])
    programs = new_programs(live_programs(), before)
    (row,) = communication(programs, mesh, share=step.branch_share) if data > 1 else [None]
    if row:
        whole = 4 * sum(x.size for x in jax.tree.leaves(shapes_of_params(problem)))
        assert (row["kind"], row["axes"], row["times"]) == ("all-reduce", ["data"], 1)
        assert row["payload_bytes"] == whole / step.period + 4
        assert row["wire_bytes"] == pytest.approx(2 * (data - 1) / data * row["payload_bytes"])


def groups(mesh, *axes):
    """Places in the mesh that communicate along these axes."""
    shape = MeshShape.parse(mesh).axes
    names = [name for name, _ in shape]
    places = np.arange(8)[: math.prod(size for _, size in shape)].reshape([n for _, n in shape])
    order = [names.index(name) for name in names if name not in axes]
    order += [names.index(name) for name in axes]
    members = math.prod(size for name, size in shape if name in axes)
    return tuple(map(tuple, places.transpose(order).reshape(-1, members).tolist()))


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("tensor_parallel_shard_map", 2),
        *slow(("tensor_parallel_spmd", 1), ("tensor_parallel_spmd_activations", 1)),
    ],
)
@pytest.mark.parametrize(
    ("data", "model", "remat"),
    [(2, 2, ""), *slow((8, 1, ""), (4, 2, ""), (2, 4, ""), (1, 8, ""), (2, 2, "full"))],
)
def test_tensor_parallelism_is_megatrons(name, layers, data, model, remat):
    """Two all-reduces of activations a block forward, two backward; one each for the vocabulary.

    Rematerialization repeats the first of a block's two; nothing needs the second again.
    """
    mesh = f"data={data},model={model}"
    found = run(name, small_gpt2(layers=layers, remat=remat), mesh)
    activations = 4 * (8 // data) * 16 * 16
    large = [c for c in found.over("all-reduce", groups(mesh, "model")) if c >= activations]
    if model > 1:
        # XLA may combine two of them, and lets the loss's numbers a token go along with one.
        count = (5 if remat else 4) * layers + 2
        assert count * activations <= sum(large) <= count * activations + 4 * (8 // data) * 16
        assert remat or len(large) == count
    if data > 1:
        (gradients,) = found.over("all-reduce", groups(mesh, "data"))
        if name == "tensor_parallel_shard_map":
            whole = found.parameter_bytes
            assert whole / model <= gradients < whole / model + 0.2 * whole


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ticks"), [("pipeline_gpipe", 5), ("pipeline_interleaved", 9)])
@pytest.mark.parametrize("mesh", ["data=2,pipe=2", "data=2,model=2,pipe=2"])
def test_pipelines_hand_on_a_microbatch_a_tick(name, ticks, mesh):
    """Four microbatches on two stages, forward and backward."""
    problem = small_gpt2(layers=4, heads=2, microbatches=4)
    found = run(name, problem, mesh)
    activations = 4 * (8 // 2 // 4) * 16 * 16
    assert found.of("collective-permute") == [activations] * 2 * ticks
    # What leaves the last stage is scattered over the stages, and its gradient gathered.
    assert found.over("reduce-scatter", groups(mesh, "pipe")) == [4 * activations]
    assert found.over("all-gather", groups(mesh, "pipe")) == [4 * activations]
    # Gradients of what is beside the blocks, and the loss, are summed over `pipe` as well.
    ends = sum(
        4 * leaf.size
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes_of_params(problem))
        if not path_of(path).startswith("blocks/")
    )
    of_ends = sum(found.over("all-reduce", groups(mesh, "data", "pipe")))
    assert 0.5 * ends <= of_ends <= ends + 4, "half of them, where `model` divides the vocabulary"
    blocks = sum(found.over("all-reduce", groups(mesh, "data")))
    assert 0 < blocks <= (found.parameter_bytes - ends) / 2


@pytest.mark.parametrize(
    "mesh",
    [
        "data=2,fsdp=2,model=2",
        *slow("data=1,model=1", "fsdp=2,model=1", "data=4,model=2", "fsdp=2,model=4"),
    ],
)
@pytest.mark.parametrize("by_hand", [True, *slow(False)])
def test_shards_of_layers_are_gathered_over_one_axis_and_used_over_another(by_hand, mesh):
    sizes = dict(MeshShape.parse(mesh).axes)
    problem, data, ways = small_gpt2(layers=1), sizes.get("data", 1), sizes["model"]
    step_mesh = make_mesh(MeshShape.parse(mesh))
    over = "fsdp" if sizes.get("fsdp", 1) > 1 else "data"
    found = run(f"fsdp_tensor_parallel_{'shard_map' if by_hand else 'spmd'}", problem, mesh)
    if sizes[over] > 1:
        # Each device's shard of a layer, if it is sharded once more.
        layers = partition_specs(problem, TENSOR_PARALLEL, step_mesh)
        specs = jax.tree.leaves(fsdp_specs(problem, step_mesh, over, layers))
        leaves = zip(specs, jax.tree.leaves(shapes_of_params(problem)), strict=True)
        part = sum(4 * x.size // (ways if "model" in s else 1) for s, x in leaves if over in s)
        gathered = sum(found.over("all-gather", groups(mesh, over)))
        assert part <= gathered <= 2 * part if by_hand else gathered == part
        assert sum(found.over("reduce-scatter", groups(mesh, over))) == (part if by_hand else 0)
    if ways > 1:
        activations = 4 * (8 // data // sizes.get("fsdp", 1)) * 16 * 16
        summed = sum(c for c in found.over("all-reduce", groups(mesh, "model")) if c >= activations)
        assert summed >= (4 * 1 + 2) * activations


@pytest.mark.parametrize(("data", "ways"), [(2, 4), *slow((1, 1), (1, 2), (1, 8))])
@pytest.mark.parametrize("name", ["context_ring", *slow("context_gathered", "context_ulysses")])
def test_attention_over_a_divided_sequence_moves_what_theory_says(name, data, ways):
    layers, length, width = 1, 32, 16
    config = gpt2.Config(layers, heads=8, width=width, context=length, vocabulary=256)
    mesh = f"data={data},context={ways}"
    found = run(name, light(gpt2.problem(config, 8, "fp32")), mesh)
    own = 4 * (8 // data) * (length // ways) * width
    # XLA:CPU of jaxlib 0.10 merges the first transfers of both passes, in spite of the barrier.
    ring = 6 * (ways - 1) + (2 if jax.__version_info__ >= (0, 11) else 0)
    expected = {
        "context_ring": {"collective-permute": [own] * layers * ring},
        "context_gathered": {
            kind: [own * ways] * 2 * layers for kind in ("all-gather", "reduce-scatter")
        },
        "context_ulysses": {"all-to-all": sorted([own, own, 3 * own, 3 * own] * layers)},
    }[name]
    if ways > 1:
        assert {kind: found.of(kind) for kind in expected} == expected
        assert found.kinds == {*expected, "all-reduce"}
        assert sum(found.of("all-reduce")) == found.parameter_bytes + 4


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=2,pipe=2", "data=1,pipe=4", "data=2,model=2,pipe=2"])
@pytest.mark.parametrize("name", ["pipeline_1f1b", "pipeline_zero_bubble"])
def test_a_stage_hands_activations_on_and_gradients_back_in_every_tick(name, mesh):
    sizes, count = dict(MeshShape.parse(mesh).axes), 4
    problem = small_gpt2(layers=4, heads=2, microbatches=count)
    found = run(name, problem, mesh)
    activations = 4 * (8 // sizes["data"] // count) * 16 * 16
    ahead = sizes["pipe"] - 1
    ticks = {"pipeline_1f1b": count + 2 * ahead, "pipeline_zero_bubble": 3 * count + ahead}[name]
    assert found.of("collective-permute") == [activations] * 2 * ticks
    assert found.kinds == {"collective-permute", "all-reduce"}
    ends = sum(found.over("all-reduce", groups(mesh, "data", "pipe")))
    assert 0 < ends < found.parameter_bytes / 2


@pytest.mark.parametrize(("data", "ways"), [(2, 4), *slow((1, 1), (1, 2), (1, 8))])
@pytest.mark.parametrize(
    "name", ["expert_all_to_all", *slow("expert_tensor_parallel", "expert_replicated")]
)
def test_tokens_go_to_experts_or_experts_to_tokens(name, data, ways):
    config, mesh = moe.SIZES["tiny"](), f"data={data},expert={ways}"
    problem = light(moe.problem(config, 8, "fp32"))
    found = run(name, problem, mesh)
    slots = moe.CHOICES * config.context // config.experts * config.experts
    own = 4 * (8 // data // ways) * slots * config.width
    moved = {
        "expert_all_to_all": {"all-to-all": [own] * 4},
        "expert_tensor_parallel": {
            kind: [own * ways] * 2 for kind in ("all-gather", "reduce-scatter")
        },
        "expert_replicated": {},
    }[name]
    if ways > 1:
        assert {kind: found.of(kind) for kind in moved} == moved
        assert found.kinds == {*moved, "all-reduce"}
        of_experts = 2 * 4 * config.experts * config.width * 4 * config.width
        whole = found.parameter_bytes - (of_experts if moved else 0)
        over_all = found.over("all-reduce", groups(mesh, "data", "expert"))
        assert sum(over_all) == whole + 4, "the loss goes along"
        if moved and data > 1:
            assert sum(found.over("all-reduce", groups(mesh, "data"))) == of_experts // ways
