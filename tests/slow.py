"""Parameters with which a test runs only in `nox -s conformance`."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*cases: Any) -> list[Any]:
    """Mark each case as slow. A tuple holds one value for each of the test's parameters."""
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*each, marks=pytest.mark.slow) for each in values]
