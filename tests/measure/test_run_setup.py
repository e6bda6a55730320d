"""What the setup of a run asks before it starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench.measure import run_setup
from bench.measure.processes.group import Hosts
from bench.plan.options import Options


@pytest.mark.parametrize("measures", [False, True])
@pytest.mark.parametrize("revision", [None, "main", "jax==0.11.0"])
def test_a_gate_knows_what_its_files_refuse_only_for_its_estimate(monkeypatch, measures, revision):
    plan, reasons = SimpleNamespace(implementations=("pmap",), margin=0.02), {"block": {"a": "no"}}
    bases, installed = SimpleNamespace(reduced=lambda plan: plan), []
    stubs = {
        "read_catalogue": lambda *_: {},
        "make_plan": lambda *_: plan,
        "with_versions": lambda *given, **_: given,
        "find_bases": lambda *_: bases,
        "find_versions": lambda *_, install: installed.append(install) or bases,
        "resolved_margin": lambda *_: (0.02, ""),
        "replace": lambda given, **_: given,
        "folder_faults": lambda *_, **__: [],
        "earlier_spread": lambda *_: None,
        "find_unsupported": lambda *_: reasons,
        "Engine": lambda *given, **_: given,
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(run_setup, name, stub)
    options = Options(base_revision=revision, implementations=("pmap",))
    *_, found = run_setup.set_up_run(options, Hosts(), measures=measures)
    assert found == ({} if revision and measures else reasons)
    assert installed == [measures] * (revision == "jax==0.11.0"), "a plan installs nothing"
