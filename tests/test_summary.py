"""The closing lines on the terminal say what the report says, in 80 columns."""

from __future__ import annotations

import io

import synthetic
from rich.console import Console

from bench import store
from bench.summary import print_summary


def closing_lines(directory):
    text = io.StringIO()
    print_summary(Console(file=text, width=80), store.load(directory))
    return text.getvalue().splitlines()


def test_names_the_planted_fastest_with_its_ratio_in_80_columns(tmp_path):
    ratios = synthetic.RATIOS | {"shard_map_psum": 0.8}
    plan = synthetic.Plan(devices=(1, 2), ratios=ratios, workloads=("linear-base", "gpt2-nano"))
    lines = closing_lines(synthetic.write(tmp_path, plan))
    assert max(map(len, lines)) <= 80
    (row,) = [line for line in lines if "gpt2-nano/data=2/" in line]
    _, fastest, _, ratio, interval = row.split()
    assert fastest == "shard_map_psum"
    low, high = map(float, interval.strip("()").split("-"))
    assert low <= float(ratio) <= high
    assert abs(float(ratio) - 0.8) < 0.02


def test_says_how_many_cannot_be_told_from_the_fastest(tmp_path):
    plan = synthetic.Plan(devices=(2,))
    (row,) = [line for line in closing_lines(synthetic.write(tmp_path, plan)) if "data=2" in line]
    assert "shard_map_p" in row
    assert "+1" in row


def test_failures_come_with_their_reason(tmp_path):
    endings = {("pmap", 0): ("wrong", "gradients are 2 times too large")}
    lines = closing_lines(synthetic.write(tmp_path, synthetic.Plan(devices=(2,), endings=endings)))
    assert "wrong  mlp-base/data=2/b64/fp32/pmap" in lines
    assert "  gradients are 2 times too large" in lines
    assert lines[-1] == "7 cells: 6 ok, 1 wrong"
