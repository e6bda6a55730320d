"""The membership of this process in a distributed run: its rank, and where rank 0 listens."""

import contextlib
import json
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bench.measure.environment import child_environment
from bench.measure.processes.guarded import ask
from bench.plan.distributed_config import DistributedConfig
from bench.plan.option_values import BadInput
from bench.records.paths import module_command

RENDEZVOUS = module_command("bench.worker.answer.rendezvous")
COME_S = 300.0
"""Time limit for all processes to connect."""

TOKEN = "LOCKSTEP_TOKEN"  # noqa: S105 (the name of a variable)
"""Variable with the token of a run whose processes are configured by variables. If it is not set,
anyone who can reach the port may join, as with jax's own coordinator."""


class ClusterError(Exception):
    """The processes cannot connect or do not fit together; the message says why."""


@dataclass(frozen=True)
class Membership:
    """One process's place in a run."""

    config: DistributedConfig
    """Its rank, the number of processes, and where rank 0 listens."""
    token: bytes
    server: socket.socket | None = None
    """The listening socket of rank 0, if it is open already."""


def membership(how: str) -> Membership:
    """Determine this process's place in a run.

    `how` is `auto` (the variables MASTER_ADDR, WORLD_SIZE and RANK if they are set, otherwise jax's
    own detection), `env` (these variables only), or the path of a TOML file of a DistributedConfig,
    whose ranks are replaced by the variables that are set. Raises ClusterError if the place cannot
    be determined, and BadInput if the variables or the file are wrong.
    """
    if how == "auto" and not {"MASTER_ADDR", "WORLD_SIZE", "RANK"} <= os.environ.keys():
        return _detected()
    unset = [name for name in ("WORLD_SIZE", "RANK") if how == "env" and name not in os.environ]
    if not unset:
        config = DistributedConfig.from_environment() if how in ("auto", "env") else _read(how)
        if config.enabled:
            return Membership(config, os.environ.get(TOKEN, "lockstep").encode())
    which = f" (not set: {', '.join(unset)})" if unset else ""
    raise ClusterError(
        f"--distributed {how}: this is not known to be one of several processes{which}; "
        "set MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK in each, or `enabled` in the file"
    )


def _read(path: str) -> DistributedConfig:
    try:
        config = DistributedConfig.from_toml(Path(path).read_text(encoding="utf-8"))
    except BadInput as error:
        raise BadInput([f"--distributed {path}: {fault}" for fault in error.faults]) from error
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", "it is not UTF-8")
        what = f"{path!r} is neither auto nor env, and no file that can be read: {why}"
        raise ClusterError(f"--distributed: {what}") from error
    ranks = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK") if name in os.environ}
    others = config.model_dump(exclude={"rank", "local_rank"} if ranks else None)
    return DistributedConfig.from_environment(ranks, **others)


def _detected() -> Membership:
    """Use jax's own detection, in a child process."""
    name = socket.gethostname()
    try:
        # Every process listens, as none knows its rank yet; at this host's own name, as gloo does.
        server = socket.create_server((name, 0), backlog=socket.SOMAXCONN)
    except OSError as error:
        raise ClusterError(
            f"--distributed auto: cannot listen at this host's own name, {name}: {error.strerror}"
        ) from error
    address, port = server.getsockname()
    with server:
        found = _meet({"master_addr": address, "master_port": port, "token": secrets.token_hex(16)})
        token = found.pop("token").encode()
        config = DistributedConfig(enabled=True, **found)
        return Membership(config, token, server.dup() if config.is_main_process() else None)


def _meet(own: dict[str, str | int]) -> dict[str, Any]:
    """Return rank 0's address and token, with the number of processes and this one's rank."""
    answer = ask(RENDEZVOUS, json.dumps(own), child_environment(), 2 * COME_S)
    with contextlib.suppress(ValueError):
        return cast("dict[str, Any]", json.loads(answer.out))
    address, hint = str(own["master_addr"]), ""
    if address.startswith("127."):
        hint = f"\n  (Other hosts cannot reach {address}, the address of this host's own name.)"
    raise ClusterError(
        "--distributed auto: MASTER_ADDR, WORLD_SIZE and RANK are not all set, and jax's own "
        f"detection, which {answer.ending}, finds no cluster, or only a part of it. Its last "
        f"lines:\n{answer.quoted_lines()}{hint}"
    )
