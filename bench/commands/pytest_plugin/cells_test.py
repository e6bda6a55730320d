"""The only test function of a run; each cell is a pytest item.

The first item that runs makes the engine measure everything selected. Each item then passes its
cell's samples to pytest-benchmark, whose timer is replaced in run_plugin.py by one that replays
stored samples.
"""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.commands.pytest_plugin.run_plugin import FRONT


def cell(cell_name: str, benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> None:
    """Replay the samples of a cell; fail or skip, with its reason, if it has none."""
    front = request.config.stash[FRONT]
    row = front.measured(cell_name)
    benchmark.name = benchmark.fullname = cell_name
    benchmark.extra_info.update(front.extra_info(cell_name))
    if row["status"] == "unsupported":
        pytest.skip(row["reason"])
    if row["status"] != "ok":
        pytest.fail(f"{row['status']}: {row['reason']}", pytrace=False)
    benchmark.pedantic(lambda: None, rounds=len(front.step_seconds(cell_name)))  # type: ignore[no-untyped-call]
