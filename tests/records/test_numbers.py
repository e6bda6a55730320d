"""Numbers are written with the digits that tell them apart."""

from __future__ import annotations

import pytest

from bench.records import numbers


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0.000"), (0.000361, "0.000361"), (0.004, "0.00400"), (0.01, "0.010"), (0.98765, "0.988"),
     (1, "1.000"), (9.9994, "9.999"), (9.9996, "10.0"), (1059.6, "1060")],
)  # fmt: skip
def test_ratios_have_three_digits_or_thousandths(value: float, shown: str) -> None:
    assert numbers.ratio(value) == shown
