"""Traces of every platform's layout are read alike."""

from __future__ import annotations

import pytest

from bench.worker.trace.xspace import Event, read
from tests.traces import Plane, cpu_op, xspace

STEP = ("jit_spmd", 0.0, 100.0, {"step_num": 0})


def start(at):
    return ("ThreadpoolListener::StartRegion", at, at, {})


def end(name, at, number):
    return (f"end: {name}", at, at, {"_c": number})


def execute(at, until):
    return ("ThunkExecutor::Execute", at, until, {})


def read_cpu(**threads):
    return read(xspace(Plane("/host:CPU", {"python": [STEP], **threads})), "jit_spmd")


def test_an_operation_that_its_thread_finished():
    found = read_cpu(pool=[cpu_op("fusion.1", 10, 20, device=1, number=5), end("fusion.1", 20, 5)])
    assert found.steps == [(0, 100_000)]
    assert found.events == [Event(1, "jit_step", "fusion.1", 7, 10_000, 20_000)]


def test_what_has_the_name_of_the_steps_is_none_of_them():
    found = read_cpu(pool=[cpu_op("jit_spmd", 10, 20)], user=[("jit_spmd", 5, 50, {})])
    assert found.steps == [(0, 100_000)]
    assert [event.op for event in found.events] == ["jit_spmd"]


def test_an_operation_whose_parts_other_threads_finished():
    """Its own event covers starting the parts; the last of them notes its completion."""
    found = read_cpu(
        first=[cpu_op("dot.1", 10, 12, number=5)],
        second=[start(15), end("dot.1", 40, 5)],
    )
    assert [(event.start, event.end) for event in found.events] == [(10_000, 40_000)]


def test_what_waited_for_an_operation_is_not_part_of_it():
    """A thread may run what depends on the operation before it notes the completion."""
    found = read_cpu(
        first=[cpu_op("dot.1", 10, 12, number=5)],
        second=[
            *(execute(1, 2), start(15)),
            *(execute(30, 60), cpu_op("fusion.2", 31, 59, number=6), end("fusion.2", 59, 6)),
            end("dot.1", 60, 5),
        ],
    )
    assert [(event.op, event.end) for event in found.events] == [
        ("dot.1", 30_000),
        ("fusion.2", 59_000),
    ]


def test_an_operation_that_ran_at_once_is_not_part_of_it_either():
    found = read_cpu(
        pool=[
            cpu_op("fusion.1", 10, 20, number=5),
            *(cpu_op("all-reduce.2", 22, 80, number=6), end("all-reduce.2", 80, 6)),
            end("fusion.1", 81, 5),
        ],
    )
    assert [event.end for event in found.events] == [22_000, 80_000]


def test_an_operation_lasts_as_long_as_its_own_event_at_least():
    found = read_cpu(
        first=[cpu_op("dot.1", 10, 50, number=5)],
        second=[start(12), end("dot.1", 20, 5)],
    )
    assert found.events[0].end == 50_000


def test_an_operation_without_a_noted_completion():
    assert read_cpu(pool=[cpu_op("fusion.1", 10, 20, number=5)]).events[0].end == 20_000


def test_streams_of_a_gpu():
    """Lines and statistics are as in real traces of JAX 0.8 on MI300X and of XLA on CUDA.

    The former are those of https://github.com/AMD-AGI/TraceLens, tests/traces/mi300. A library call
    is several kernels of one operation, and the runtime's copies belong to no program.
    """
    stats = {"hlo_module": "jit_step", "program_id": 5, "tf_op": "XlaModule:", "name": "jit(step)"}
    launch = {"correlation_id": 243, "kernel_details": " grid:1280,1,1 block:256,1,1"}
    gpu = Plane(
        "/device:GPU:1",
        {
            "Stream #13(Compute)": [
                ("loop_fusion_kernel", 10, 20, stats | launch | {"hlo_op": "fusion.1"})
            ],
            "Stream #19(Kernel)": [
                ("__amd_rocclr_copyBuffer.kd", 1, 2, launch),
                ("Im3d2Col.kd", 21, 25, stats | launch | {"hlo_op": "cudnn-conv.1"}),
                ("Cijk_Ailk_Bljk_BBS_BH.kd", 26, 29, stats | launch | {"hlo_op": "cudnn-conv.1"}),
            ],
            "Stream #20(Memcpy)": [("MemcpyD2D", 30, 34, {"correlation_id": 4})],
            "XLA Modules": [("jit_step", 10, 20, {"hlo_op": "not an operation"})],
        },
    )
    found = read(xspace(Plane("/host:CPU", {"python": [STEP]}), gpu), "jit_spmd")
    assert found.steps == [(0, 100_000)]
    assert found.events == [
        Event(1, "", "__amd_rocclr_copyBuffer.kd", 0, 1_000, 2_000),
        Event(1, "jit_step", "fusion.1", 0, 10_000, 20_000, 5),
        Event(1, "jit_step", "cudnn-conv.1", 0, 21_000, 25_000, 5),
        Event(1, "jit_step", "cudnn-conv.1", 0, 26_000, 29_000, 5),
        Event(1, "", "MemcpyD2D", 0, 30_000, 34_000),
    ]


def test_kernels_in_a_cuda_graph():
    """Their statistics, as in a trace of JAX 0.11 on an H200, name the graph as the operation."""
    stats = {
        "correlation_id": 1, "cuda_graph_id": 373, "cuda_graph_node_id": 1602022801408,
        "hlo_op": "command_buffer_1", "hlo_module": "jit_step", "program_id": 626169,
    }  # fmt: skip
    kernels = [("loop_subtract_fusion", 10, 20, stats), ("nvjet_sm90_tst", 20, 30, stats)]
    gpu = Plane("/device:GPU:0", {"Stream #14(Compute,Memset)": kernels})
    found = read(xspace(Plane("/host:CPU", {"python3": [STEP]}), gpu), "jit_spmd")
    assert [(event.op, event.in_graph) for event in found.events] == [
        ("loop_subtract_fusion", True),
        ("nvjet_sm90_tst", True),
    ]


def test_operations_of_a_tpu():
    """They are named by their instruction's text, and belong to the program that runs then."""
    tpu = Plane(
        "/device:TPU:0",
        {
            "Steps": [("0", 5, 90, {})],
            "XLA Modules": [("jit_step(1234)", 5, 60, {"run_id": 9})],
            "XLA Ops": [("%fusion.1 = f32[8]{0} fusion(%p)", 10, 20, {})],
            "Async XLA Ops": [("%all-reduce-start.2 = f32[8] all-reduce-start(%f)", 15, 30, {})],
        },
    )
    found = read(xspace(Plane("/host:CPU", {"python": [STEP]}), tpu), "jit_spmd")
    assert found.events == [
        Event(0, "jit_step", "fusion.1", 9, 10_000, 20_000),
        Event(0, "jit_step", "all-reduce-start.2", 9, 15_000, 30_000),
    ]


def test_annotations_of_the_implementations_own_are_no_steps():
    own = ("inner", 10.0, 20.0, {"step_num": 3})
    noise = ("end: of an epoch", 30.0, 30.0, {})
    found = read(xspace(Plane("/host:CPU", {"python": [STEP, own, noise]})), "jit_spmd")
    assert found.steps == [(0, 100_000)]


def test_a_file_that_is_no_trace():
    with pytest.raises(ValueError, match="this is not a profiler's trace"):
        read(b"\xff\xff\xff\xff no", "step")


def test_a_trace_without_a_host():
    assert read(xspace(Plane("/device:CUSTOM")), "step").events == []
