"""Kernels in CUDA graphs are named by the instructions that launch them.

The names of kernels and of library calls, and the statistics of a graph's kernels in
`test_xspace.py`, are those of gpt2-124m under JAX 0.11.2 on an H200.
"""

from types import SimpleNamespace

import pytest
from jaxlib._hlo import hlo_module_from_text

from bench.worker.read.hlo import modules_of
from bench.worker.trace.graph_kernels import kind_of
from bench.worker.trace.operations import Operations
from bench.worker.trace.xspace import Event

STEP = """HloModule jit_step, is_scheduled=true

negate { a = f32[8,8] parameter(0)
 ROOT b = f32[8,8] negate(a) }

body { p = (s32[], f32[8,8]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 x = f32[8,8] get-tuple-element(p), index=1
 one = s32[] constant(1)
 j = s32[] add(i, one)
 in-loop = f32[8,8] custom-call(x, x), custom_call_target="__cublas$lt$matmul",
   metadata={op_name="jit(step)/jvp()/while/body/dot_general"}
 ROOT t = (s32[], f32[8,8]) tuple(j, in-loop) }

cond { p = (s32[], f32[8,8]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 n = s32[] constant(3)
 ROOT lt = pred[] compare(i, n), direction=LT }

ENTRY e { x = f32[8,8] parameter(0)
 loop_negate_fusion.1 = f32[8,8] fusion(x), kind=kLoop, calls=negate
 first = f32[8,8] custom-call(x, x), custom_call_target="__cublas$lt$matmul",
   metadata={op_name="jit(step)/jvp()/dot_general"}
 z = s32[] constant(0)
 s = (s32[], f32[8,8]) tuple(z, first)
 w = (s32[], f32[8,8]) while(s), condition=cond, body=body,
   backend_config={"known_trip_count":{"n":"3"}}
 y = f32[8,8] get-tuple-element(w), index=1
 attention = f32[8,8] custom-call(y), custom_call_target="__cudnn$fmhaSoftmax"
 gradient = f32[8,8] custom-call(y), custom_call_target="__cudnn$fmhaSoftmaxBackward",
   metadata={op_name="jit(step)/transpose(jvp())/attention"}
 sum = f32[8,8] all-reduce(gradient), replica_groups={{0,1}}, to_apply=negate
 ROOT last = f32[8,8] custom-call(sum, x), custom_call_target="__cublas$lt$matmul",
   metadata={op_name="jit(step)/transpose(jvp())/dot_general"}
}
"""
GEMM = "nvjet_sm90_tst_128x160_64x5_2x1_v_bz_TNT"
FORWARD = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_kernel0_0"
BACKWARD = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_kernel0_0"
PREPARE = "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*, void const*)"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture(scope="module")
def operations() -> Operations:
    program = SimpleNamespace(hlo_modules=lambda: [hlo_module_from_text(STEP)])
    return Operations(modules_of([program]), 2)


def launched(operations: Operations, *kernels: str, in_graph: bool = True) -> list[str]:
    events = [
        Event(0, "jit_step", name, 0, 10 * at, 10 * at + 5, in_graph=in_graph)
        for at, name in enumerate(kernels)
    ]
    return [event.op for event in operations.launched(events)]


def test_kernels_are_those_of_their_instructions_in_the_programs_order(operations):
    kernels = ("loop_negate_fusion_1", GEMM, GEMM, GEMM, GEMM, FORWARD, PREPARE, BACKWARD, REDUCE)
    names = launched(operations, *kernels, GEMM)
    assert names == [
        *("loop_negate_fusion.1", "first", "in-loop", "in-loop", "in-loop"),
        *("attention", "gradient", "gradient", "sum", "last"),
    ]
    found = [operations.get("jit_step", name) for name in names]
    assert [one.category for one in found[1:3]] == ["matmul", "matmul"]
    assert [one.phase for one in found[-4:]] == ["backward", "backward", "other", "backward"]
    assert found[-2].groups == ((0, 1),)


def test_a_library_that_launches_another_number_of_kernels_is_known_by_their_names(operations):
    """Kernels that belong to no instruction are known by their names too."""
    names = launched(operations, GEMM, "Memset 0", FORWARD, "loop_negate_fusion_1")
    assert names == [GEMM, "Memset 0", "attention", "loop_negate_fusion.1"]
    categories = [operations.get("jit_step", name).category for name in names]
    assert categories == ["matmul", "layout", "matmul", "elementwise"]


def test_instructions_outside_of_graphs_are_not_expected_inside(operations):
    outside = Event(0, "jit_step", "first", 0, 0, 5)
    inside = [Event(0, "jit_step", GEMM, 0, at, at + 5, in_graph=True) for at in (10, 20, 30, 40)]
    found = operations.launched([outside, *inside])
    assert [event.op for event in found] == ["first", "in-loop", "in-loop", "in-loop", "last"]


BRANCHES = """HloModule jit_step, is_scheduled=true

waits { a = f32[8,8] parameter(0)
 ROOT b = f32[8,8] negate(a) }

updates { a = f32[8,8] parameter(0)
 ROOT taken = f32[8,8] custom-call(a, a), custom_call_target="__cublas$lt$matmul" }

ENTRY e { which = s32[] parameter(0)
 x = f32[8,8] parameter(1)
 ROOT c = f32[8,8] conditional(which, x, x), branch_computations={waits, updates} }
"""


def test_kernels_of_a_branch_are_named_if_it_is_taken():
    program = SimpleNamespace(hlo_modules=lambda: [hlo_module_from_text(BRANCHES)])
    operations = Operations(modules_of([program]), 1)
    assert launched(operations, GEMM) == ["taken"]
    assert launched(operations, "negate") == ["negate"]


def test_events_outside_of_graphs_keep_their_names(operations):
    assert launched(operations, "first", "gemm_fusion.1", in_graph=False) == [
        "first",
        "gemm_fusion.1",
    ]


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        (GEMM, "matmul"),
        ("splitKreduce_kernel", "matmul"),
        (PREPARE, "matmul"),
        (REDUCE, "collective"),
        ("MemcpyD2D", "layout"),
        ("memcpy128", "layout"),
        ("another", "unknown"),
    ],
)
def test_kinds_of_kernels(kernel, kind):
    assert kind_of(kernel) == kind
