"""Who sent SIGKILL, as far as the kernel's counters tell."""

from __future__ import annotations

import pytest

from bench.measure.processes.host_memory import killed_by_kernel, read_counters


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": 1, "b": 0}, {"a": 1, "b": 0}, False),
        ({"a": 1, "b": 0}, {"a": 1, "b": 1}, True),
        ({"a": 1}, {"b": 1}, None),  # none of them was there both times
        ({}, {}, None),
    ],
)
def test_a_counter_that_rises_is_the_kernels_word(before, after, found) -> None:
    assert killed_by_kernel(before, after) is found


@pytest.mark.parametrize(
    ("cgroup", "file"),
    [
        ("0::/user/me\n", "sys/fs/cgroup/user/me/memory.events"),
        ("0::/outside/of/the/container\n", "sys/fs/cgroup/memory.events"),
        ("4:cpu:/x\n7:hugetlb,memory:/me\n", "sys/fs/cgroup/memory/me/memory.oom_control"),
    ],
)
def test_counters_of_the_system_and_of_the_group(tmp_path, cgroup: str, file: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 17\noom_kill 5\nthp_fault_alloc 1\n")
    group = tmp_path / file
    group.parent.mkdir(parents=True)
    group.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert read_counters(tmp_path) == {str(tmp_path / "proc/vmstat"): 5, str(group): 2}


def test_no_counter_is_no_fault(tmp_path) -> None:
    assert read_counters(tmp_path) == {}
