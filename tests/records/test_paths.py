"""Commands in texts, as they are typed in a checkout and with an installed package."""

from __future__ import annotations

import pytest

from bench.records import paths


@pytest.mark.parametrize(
    ("text", "installed"),
    [
        ("nox -s bench -- --workloads mlp", "lockstep run --workloads mlp"),
        ("`nox -s report -- RUN --all-plots` draws", "`lockstep report RUN --all-plots` draws"),
        ("`nox -s tensorboard` serves them", "`lockstep tensorboard` serves them"),
    ],
)
def test_an_installed_package_has_no_sessions_of_nox(monkeypatch, text, installed):
    monkeypatch.setattr(paths, "CHECKOUT", True)
    assert paths.adapt_commands(text) == text
    monkeypatch.setattr(paths, "CHECKOUT", False)
    assert paths.adapt_commands(text) == installed
