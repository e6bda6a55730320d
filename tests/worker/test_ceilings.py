"""Ceilings are measured on all devices, end with the best that was seen, and cost nothing else."""

from __future__ import annotations

import gc
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh

from bench.records.mesh import MeshShape
from bench.worker import process_exchange
from bench.worker.problems import make_mesh
from bench.worker.process_exchange import EndedError
from bench.worker.read.programs import live_programs
from bench.worker.time import ceilings
from bench.worker.time.ceilings import measure_ceilings
from tests.slow import slow


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(ceilings, "REPETITION_S", 1e-3)
    monkeypatch.setattr(ceilings, "PATIENCE", 1)
    monkeypatch.setattr(ceilings, "cache_bytes", lambda _: 1 << 20)


def alive() -> tuple[int, int]:
    gc.collect()
    return len(jax.live_arrays()), len(live_programs())


def test_figures_of_two_devices_and_nothing_left_on_them():
    before = alive()
    found = measure_ceilings(make_mesh(MeshShape.parse("data=1,model=2")), "fp32")
    assert found is not None
    assert 1e8 < found["matmul_flops"] < 1e13
    assert 1e7 < found["memory_bytes"] < 1e12
    assert 1e5 < found["all_reduce_bytes"] < 1e12
    assert 1e-7 < found["all_reduce_s"] < 1
    assert alive() == before


def test_one_device_has_nobody_to_reduce_with():
    found = measure_ceilings(make_mesh(MeshShape.parse("data=1")), "fp32")
    assert found is not None
    assert found["matmul_flops"] > 1e8
    assert (found["all_reduce_bytes"], found["all_reduce_s"]) == (None, None)


@pytest.mark.parametrize("name", ["all_reduce", *slow("matmul_flops", "memory_bytes")])
def test_a_failure_costs_the_ceilings_alone(name, monkeypatch, capsys):
    before = alive()
    real = ceilings.chained

    def chained(*arguments):
        call = real(*arguments)

        def fails():
            call()
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: planted")

        return fails

    def planted(*arguments):
        monkeypatch.setattr(ceilings, "chained", chained)
        return measure(*arguments)

    measure = getattr(ceilings, name)
    monkeypatch.setattr(ceilings, name, planted)
    assert measure_ceilings(make_mesh(MeshShape.parse("data=2")), "fp32") is None
    assert "not known: RESOURCE_EXHAUSTED: planted" in capsys.readouterr().err
    assert alive() == before


@pytest.fixture
def rated(monkeypatch):
    """What a rate is asked of: the output of the smallest size, and the work that it counts as."""
    made = []

    def best_rate(make, work, sizes):
        call = make(sizes[0])
        first, second = call(), call()
        assert first.is_deleted(), "the second waits for it: both at once may take two cores"
        made.append((second, work(sizes[0])))
        return 1.0

    monkeypatch.setattr(ceilings, "best_rate", best_rate)
    return made


def bytes_on_each(array):
    (size,) = {shard.data.nbytes for shard in array.addressable_shards}
    return size


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", jnp.float32), ("bf16", jnp.bfloat16), ("fp16", jnp.float16)],
)
def test_products_are_of_what_the_workloads_compute_in(precision, dtype, rated):
    ceilings.matmul_flops(Mesh(jax.devices()[:2], "devices"), precision, 1 << 30)
    ((products, flops),) = rated
    assert (products.shape, products.dtype) == ((2 * 256, 256), dtype)
    assert flops == 2 * 256**3


def test_every_byte_in_memory_is_read_once_and_written_once(rated):
    ceilings.memory_bytes(Mesh(jax.devices()[:2], "devices"), 4096)
    ((array, moved),) = rated
    assert (bytes_on_each(array), moved) == (4096, 4096 + 4096)


def test_an_all_reduce_counts_as_what_a_device_sends_on_a_ring(rated, monkeypatch):
    monkeypatch.setattr(ceilings, "fastest", lambda make: bytes_on_each(make()()))
    _, smallest = ceilings.all_reduce(Mesh(jax.devices()[:4], "devices"), 1 << 30)
    ((array, sent),) = rated
    payload = ceilings.PAYLOADS[0]
    assert bytes_on_each(array) == payload
    assert sent == 3 * payload / 4 + 3 * payload / 4, "reduce-scatter, and all-gather"
    assert smallest == 4, "what is timed besides is of a single number"


def test_sizes_grow_while_their_calls_are_short(monkeypatch):
    """A device that does a million a second, after a start of a millisecond."""
    tried = []

    def fastest(make):
        tried.append(make())
        return 1e-3 + 1e-6 * tried[-1]

    def rate(sizes):
        return ceilings.best_rate(lambda size: size, float, sizes)

    monkeypatch.setattr(ceilings, "fastest", fastest)
    monkeypatch.setattr(ceilings, "CALL_S", 5e-3)
    assert rate([1000, 1500, 2000, 3000, 8000]) == pytest.approx(3000 / 4e-3)
    assert tried == [1000, 2000, 3000], "1500 was not needed, 8000 takes too long"
    assert rate([1000]) == pytest.approx(1000 / 2e-3)
    with pytest.raises(EndedError, match="too little memory"):
        rate([])


def test_arrays_fit_the_room_that_they_may_use(monkeypatch):
    own = Mesh(jax.devices()[:2], "devices")
    monkeypatch.setattr(ceilings, "best_rate", lambda _make, _work, sizes: sizes)
    monkeypatch.setattr(ceilings, "fastest", lambda _: 0.0)
    three = 3 * 512 * 512 * 2  # the factor, and the products before and after a call
    assert ceilings.matmul_flops(own, "bf16", three) == [256, 512]
    assert ceilings.matmul_flops(own, "bf16", three - 1) == [256]
    two = 2 * 2 * ceilings.PAYLOADS[0]
    assert ceilings.all_reduce(own, two)[0] == [*ceilings.PAYLOADS[:2]]
    assert ceilings.all_reduce(own, two - 1)[0] == [ceilings.PAYLOADS[0]]


def test_the_fastest_repetition_counts_once_no_better_one_comes(monkeypatch):
    took = iter([8.0, 4.0, 5.0, 6.0, 3.0, 3.5, 3.0, 7.0, 1.0])
    monkeypatch.setattr(ceilings, "PATIENCE", 3)
    monkeypatch.setattr(ceilings, "repeat", lambda *_: next(took))  # first to warm up
    assert ceilings.fastest(lambda: None) == 3.0
    assert next(took) == 1.0


def test_a_repetition_takes_as_long_as_its_slowest_process(monkeypatch):
    monkeypatch.setattr(process_exchange, "_exchange", lambda own: [own, own and 5.0])
    monkeypatch.setattr(ceilings, "repeat", lambda *_: 1.0)
    assert ceilings.fastest(lambda: None) == 5.0


def test_what_fails_in_one_process_fails_in_all(monkeypatch):
    failed = {process_exchange.ENDED: ["crashed", "no room on rank 1"]}
    monkeypatch.setattr(process_exchange, "_exchange", lambda own: [own, failed])
    with pytest.raises(EndedError, match="no room on rank 1"):
        ceilings.fastest(lambda: None)


def test_sizes_are_the_same_in_all_processes(monkeypatch):
    """The other host has less memory, and a larger cache."""
    others = [48 << 20, 64 << 20]

    def exchange(own):
        if own is None or isinstance(own, float):
            return [own, own]
        return [own, "another host" if isinstance(own, str) else others.pop(0)]

    monkeypatch.setattr(process_exchange, "_exchange", exchange)
    own = Mesh(jax.devices()[:2], "devices")
    assert ceilings.sizes(own) == (3 << 20, 3 << 20)
    others[:] = [1 << 50, 5 << 20]
    room, array = ceilings.sizes(own)
    assert array == 5 << 20 < room < 1 << 50


def test_bytes_of_a_device_are_what_was_asked_for():
    mesh = Mesh(jax.devices()[:4], "devices")
    array = ceilings.filled(mesh, (4099 // ceilings.FLOAT,), 1.0)
    assert [shard.data.nbytes for shard in array.addressable_shards] == [4096] * 4
    call = ceilings.chained(lambda x: 2 * x, array, mesh)
    assert float(call()[0]) == 2.0
    assert array.is_deleted(), "its memory is taken"
    assert float(call()[-1]) == 4.0
    summed = ceilings.chained(
        partial(jax.lax.psum, axis_name="devices"), ceilings.filled(mesh, (1,), 1.0), mesh
    )()
    assert summed.tolist() == [4.0] * 4
