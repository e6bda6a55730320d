"""Authentication of the processes that connect to rank 0."""

from __future__ import annotations

import json
import queue
import socket
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, TypeAlias, cast

from bench.measure.cluster.follower import Hello

_POLL_S = 0.1

Arrival: TypeAlias = "tuple[Hello, Connection[Any, Any]]"
"""An authenticated process and the connection with it."""


class Admission:
    """Accepts the processes that have the token.

    Each connection has a thread of its own, because a stranger may stay silent forever.

    Args:
      server: a listening socket.
      token: shared by all processes of the run.
    """

    def __init__(self, server: socket.socket, token: bytes) -> None:
        self._server = server
        self._token = token
        self._arrived: queue.Queue[Arrival] = queue.Queue()
        server.settimeout(_POLL_S)

    def wait(self) -> Arrival | None:
        """Return the next authenticated process; None if there is none for a moment."""
        try:
            accepted, _ = self._server.accept()
        except (TimeoutError, ConnectionError):
            pass
        else:
            accepted.setblocking(True)
            connection: Connection[Any, Any] = Connection(accepted.detach())
            threading.Thread(target=self._admit, args=(connection,), daemon=True).start()
        try:
            return self._arrived.get_nowait()
        except queue.Empty:
            return None

    def _admit(self, connection: Connection[Any, Any]) -> None:
        try:
            deliver_challenge(connection, self._token)
            answer_challenge(connection, self._token)
            hello = cast("Hello", json.loads(connection.recv_bytes()))
        except (AuthenticationError, EOFError, OSError):
            connection.close()
        else:
            self._arrived.put((hello, connection))
