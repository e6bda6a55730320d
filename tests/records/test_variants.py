"""Environment variants: read, applied to a worker's environment, compared with the usual one."""

from __future__ import annotations

import pytest

from bench.records.variants import Variant, is_requirement


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("lhs=XLA_FLAGS=--a=true --b", {"XLA_FLAGS": "--a=true --b"}),
        ("n.1=NCCL_ALGO=Ring  NCCL_PROTO=LL", {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}),
        ("both=XLA_FLAGS=--a X_Y=1", {"XLA_FLAGS": "--a", "X_Y": "1"}),
        ("empty=NCCL_ALGO=", {"NCCL_ALGO": ""}),
        ("file=NCCL_TOPO_FILE=/etc/topo.txt", {"NCCL_TOPO_FILE": "/etc/topo.txt"}),
    ],
)
def test_a_value_goes_on_until_the_next_variable(text, variables):
    variant = Variant.parse(text)
    assert variant.name == text.partition("=")[0]
    assert variant.variables == variables


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lhs", "is neither NAME=VARIABLE=VALUE"),
        ("lhs=--xla_flag=1", "one such as old=jax==0.10.2, a requirements file or a wheel"),
        ("a/b=X=1", "is neither NAME=VARIABLE=VALUE"),
        ("=jax==0.10.2", "is neither NAME=VARIABLE=VALUE"),
        ("n=XLA_FLAGS=--a XLA_FLAGS=--b", "sets a variable twice"),
        ("@base=X=1", "'base' names the other side of a gate"),
        ("base=jax==0.10.2", "'base' names the other side of a gate"),
        ("one=NPROC=1 X=1", "sets NPROC, which Lockstep sets itself"),
        ("n=XLA_FLAGS=--xla_force_host_platform_device_count=4", "which the mesh determines"),
    ],
)
def test_what_is_no_variant_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Variant.parse(text)


@pytest.mark.parametrize(
    ("text", "raced", "platforms"),
    [
        ("@lhs=XLA_FLAGS=--xla_gpu_a=1 --xla_cpu_b=2 --xla_dump_to=x", True, {"gpu", "cpu"}),
        ("v=LIBTPU_INIT_ARGS=--xla_enable_async_all_gather=true", False, {"tpu"}),
        ("n=NCCL_ALGO=Ring", False, set()),
    ],
)
def test_a_variant_knows_whether_it_races_and_whose_flags_it_sets(text, raced, platforms):
    variant = Variant.parse(text)
    assert (variant.raced, variant.platforms) == (raced, platforms)


@pytest.mark.parametrize("text", ["jax==0.10.2", "jax[cuda13]>=0.11", "old.txt", "dist/jax-1.whl"])
def test_a_requirement_is_no_variable(text):
    variant = Variant.parse(f"old={text}")
    assert (variant.variables, variant.requirement, str(variant)) == ({}, text, text)
    assert not is_requirement("main")
    assert not is_requirement("HEAD~1")


def test_flags_are_added_and_other_variables_replaced():
    variant = Variant.parse("v=XLA_FLAGS=--b NCCL_ALGO=Ring LIBTPU_INIT_ARGS=--c")
    before = {"XLA_FLAGS": "--a", "NCCL_ALGO": "Tree", "HOME": "/"}
    assert variant.applied(before) == {
        "XLA_FLAGS": "--a --b",
        "NCCL_ALGO": "Ring",
        "LIBTPU_INIT_ARGS": "--c",
        "HOME": "/",
    }
    assert before["XLA_FLAGS"] == "--a", "the environment itself stays as it is"
