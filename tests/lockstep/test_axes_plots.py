"""Charts of a run on matplotlib axes: they show the stored figures, and only one is drawn."""

from __future__ import annotations

import numpy as np
import pytest

import lockstep
from tests import synthetic


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    reports = tmp_path_factory.mktemp("reports")
    plan = synthetic.Plan(workloads=("mlp-base", "linear-base"), devices=(1, 2, 4))
    return lockstep.load(synthetic.write(reports, plan))


@pytest.fixture
def axes():
    from matplotlib.figure import Figure  # noqa: PLC0415 - not in every process of the tests

    return Figure().subplots()


def test_ratios_are_drawn_with_their_intervals(results, axes):
    block = "mlp-base/data=2/b64/fp32"
    assert results.plot("ratios", block, axes) is axes
    rows = results.verdicts[results.verdicts["block"] == block]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(rows["implementation"])
    drawn = [line.get_xdata() for line in axes.lines]
    np.testing.assert_array_equal(drawn[0:-1:2], rows[["ratio_low", "ratio_high"]])
    np.testing.assert_array_equal(np.ravel(drawn[1:-1:2]), rows["ratio"])


def test_scaling_curves_are_drawn_against_devices(results, axes):
    results.plot("scaling", "linear-base", axes)
    lines = {line.get_label(): line for line in axes.lines}
    cells = results.cells.query("workload == 'linear' and status == 'ok'")
    assert lines.keys() == {*cells["implementation"], "ideal"}
    for name, rows in cells.groupby("implementation"):
        np.testing.assert_array_equal(lines[name].get_xdata(), [1, 2, 4])
        seconds = rows.sort_values("devices")["step_s"]
        np.testing.assert_array_equal(lines[name].get_ydata(), seconds)


@pytest.mark.parametrize(
    ("kind", "of", "message"),
    [
        (
            "ratios",
            "mlp",
            "several charts have 'mlp' in the name; there are\n  mlp-base/data=1/b64/fp32\n",
        ),
        (
            "scaling",
            "vae",
            "no chart has 'vae' in the name; there are\n  linear-base, fp32: Strong scaling",
        ),
        ("pie", "", "kind is 'pie'; it may be 'ratios' or 'scaling'"),
    ],
)
def test_a_chart_is_named_by_a_part_of_its_name(results, kind, of, message):
    with pytest.raises(ValueError, match=r"ratios|name") as caught:
        results.plot(kind, of)
    assert message in str(caught.value)
