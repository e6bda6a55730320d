"""Whose turn it is can be read after the worker that wrote it is gone."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.measure.environment import child_environment
from bench.records.current_arm import Turns, TurnWriter

WRITE = """
import os, sys
from bench.records.current_arm import TurnWriter
writer = TurnWriter()
for name in sys.argv[1:]:
    writer.write(name)
os.kill(os.getpid(), 9)
"""


def test_the_last_turn_outlives_its_worker() -> None:
    for names, found in ((["a_long_name", "b"], "b"), (["a", ""], ""), ([], "")):
        turns = Turns()
        subprocess.run(
            [sys.executable, "-c", WRITE, *names],
            env={**child_environment(), **turns.environment},
            pass_fds=(turns.descriptor,),
            check=False,
        )
        name, seconds = turns.read()
        assert name == found
        assert seconds >= 0
        turns.close()


def test_a_worker_that_nobody_asks_writes_nothing() -> None:
    assert "LOCKSTEP_TURN" not in os.environ
    TurnWriter().write("a")
