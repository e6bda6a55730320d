"""Programs and dispatch paths that are equal, and planted differences between such."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.records.step_programs import unpacked
from bench.worker.file_loader import load
from bench.worker.read.programs import live_programs, new_programs
from bench.worker.read.step_program import dispatch_path, fingerprint, names_options, read_program
from bench.worker.time.clock import Arm

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
MANY = np.arange(64, dtype=np.float32).reshape(8, 8)
"""Elements of a constant that HLO's text elides."""


def mesh_of(devices, *names):
    shape = (devices,) if len(names) == 1 else (devices // 2, 2)
    types = (AxisType.Auto,) * len(names)
    return jax.make_mesh(shape, names, axis_types=types, devices=jax.devices()[:devices])


def compiled(step, *arguments):
    return step.lower(*arguments).compile().runtime_executable()


def program(step, *arguments, **options):
    return fingerprint([compiled(jax.jit(step, **options), *arguments)])


def body(x):
    return jnp.tanh(x @ x) + 1.5


def placed(devices):
    return jax.device_put(X, NamedSharding(mesh_of(devices, "data"), P("data")))


@pytest.mark.parametrize("devices", [1, 2])
def test_names_do_not_count(devices):
    def another(given):
        with jax.named_scope("scope"):
            product = given @ given
        return jnp.tanh(product) + 1.5

    x = placed(devices)
    elsewhere = jax.device_put(X, NamedSharding(mesh_of(devices, "rows"), P("rows")))
    assert program(body, x) == program(another, x) == program(another, elsewhere)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: jnp.tanh(x @ x) + 2.5,
        lambda x: jnp.sin(x @ x) + 1.5,
        lambda x: jnp.tanh(x @ x)[:4] + 1.5,
        lambda x: (jnp.tanh(x @ x) + 1.5).astype(jnp.bfloat16),
    ],
    ids=["constant", "opcode", "shape", "dtype"],
)
def test_what_is_computed_counts(devices, change):
    x = placed(devices)
    assert program(body, x) != program(change, x)


@pytest.mark.parametrize("devices", [1, 2])
def test_donation_counts(devices):
    x = placed(devices)
    assert program(body, x) != program(body, x, donate_argnums=0)


def test_layouts_count():
    x = placed(1)
    turned = Format(Layout((1, 0)), x.sharding)
    assert program(body, x) != program(body, x, out_shardings=turned)


def test_elements_of_large_constants_count():
    x = placed(1)
    plus, again, other = (lambda x, c=c: x + c for c in (MANY, MANY.copy(), MANY + (MANY == 9)))
    assert program(plus, x) == program(again, x) != program(other, x)


def test_devices_count():
    first, second = (jax.device_put(X, device) for device in jax.devices()[:2])
    assert program(body, first) != program(body, second)


def reduced(mesh, over):
    return jax.shard_map(over, mesh=mesh, in_specs=P(*mesh.axis_names), out_specs=P())


def test_sums_and_means_over_devices_differ_and_names_of_axes_do_not():
    def over(name, reduce):
        return program(reduced(mesh_of(2, name), lambda x: reduce(x, name)), X)

    assert over("data", jax.lax.psum) == over("rows", jax.lax.psum) != over("data", jax.lax.pmean)


def test_device_groups_count():
    mesh = mesh_of(4, "data", "model")

    def over(first, second):
        def sums(x):
            return jax.lax.psum(jnp.tanh(jax.lax.psum(x, first)), second)

        return program(reduced(mesh, sums), X)

    assert over("data", "model") != over("model", "data")


def arm(step, devices):
    found = Arm("arm", step, placed(devices), placed(devices))
    found.run(1)
    return found


def make_step():
    def step(state, batch):
        return state + jnp.tanh(batch @ batch), batch.sum()

    return step


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_what_flax_and_wrappers_add_is_dispatch_alone(devices):
    before = live_programs()
    by_jax = arm(jax.jit(make_step()), devices)
    of_jax = new_programs(live_programs(), before)
    by_flax = arm(nnx.jit(make_step()), devices)
    of_flax = new_programs(live_programs(), [*before, *of_jax])
    wrapped = arm(lambda *arguments, step=by_jax.step: step(*arguments), devices)
    assert len(of_jax) == len(of_flax) == 1
    assert fingerprint(of_jax) == fingerprint(of_flax)
    (path, calls), (of_wrapped, more), (of_nnx, most) = map(
        dispatch_path, (by_jax, wrapped, by_flax)
    )
    assert len({path, of_wrapped, of_nnx, ""}) == 4
    assert calls < more < most
    assert dispatch_path(arm(jax.jit(make_step()), devices)) == (path, calls)


def test_the_place_of_the_batch_counts_as_dispatch():
    step, split = jax.jit(make_step()), NamedSharding(mesh_of(2, "data"), P(None, "data"))
    by_rows, by_columns = arm(step, 2), arm(step, 2)
    by_columns.batch = jax.device_put(X, split)
    by_columns.run(1)
    assert dispatch_path(by_rows)[0] != dispatch_path(by_columns)[0]


def test_a_step_whose_calls_differ_each_time_has_no_dispatch_path():
    calls = []

    def step(state, batch):
        calls.append(batch)
        return state, sum(batch for _ in calls)

    assert dispatch_path(arm(step, 1))[0] == ""


@pytest.mark.slow
def test_operations_are_stored_by_source_line():
    before = live_programs()
    found = arm(jax.jit(make_step()), 2)
    programs = new_programs(live_programs(), before)
    stored = read_program(programs, found, own_options=False)
    operations = unpacked(stored["operations"])
    (product,) = (one for one in operations if one.opcode == "dot")
    assert product.source.startswith("test_step_program.py:")
    assert (product.result, product.runs, product.bytes) == ("f32[4,8]{1,0}", 1, 128)
    assert "all-reduce" in {one.opcode for one in operations}
    assert read_program(programs, found, own_options=True)["fingerprint"] == ""
    assert read_program([], found, own_options=False)["fingerprint"] == ""


def test_files_that_name_compiler_options_are_known(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tuned_helper.py").write_text("def tuned():\n    return {'compiler_options': {}}\n")
    for name, text, named in (
        ("plain", "import jax\nSTEP = jax.jit(abs)\n", False),
        ("own", "import jax\nSTEP = jax.jit(abs, compiler_options={})\n", True),
        ("helped", "from tuned_helper import tuned\nOPTIONS = tuned()\n", True),
    ):
        (tmp_path / f"{name}.py").write_text(text)
        assert names_options(load(tmp_path / f"{name}.py")) == named
