"""What of the environment is written down, and what never is."""

from __future__ import annotations

import pytest

from bench.measure.environment import recorded_variables


def test_only_what_changes_how_programs_run_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"XLA_FLAGS": "--xla_cpu_x=1", "NCCL_ALGO": "Ring", "JAX_ENABLE_X64": "0", "NPROC": "2"}
    left_out = {
        "AWS_SECRET_ACCESS_KEY": "x",
        "HOME": "/home/ada",
        "JAX_COORDINATOR_ADDRESS": "10.1.2.3:1234",
        "LOCKSTEP_TOKEN": "x",
        "MASTER_ADDR": "node1",
        "MY_XLA_FLAGS": "x",
        "NCCL_COMM_ID": "10.1.2.3:1234",
        "NCCL_SOCKET_IFNAME": "eth0",
        "SLURM_NTASKS_PER_NODE": "3",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "node1",
    }
    for name, value in {**kept, **left_out}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XLA_DUMP", "/home/ada/dump")
    recorded = recorded_variables()
    assert kept.items() <= recorded.items()
    assert recorded["XLA_DUMP"] == "(a path)"
    assert not left_out.keys() & recorded.keys()
