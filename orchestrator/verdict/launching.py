"""The process that launches a run: its record, and whether it is alive."""

from __future__ import annotations

import socket
from typing import Any

from orchestrator.node.machine import is_alive, own_record
from orchestrator.run import RunRecord


def this_process() -> dict[str, Any]:
    """This process as the record of a run keeps it."""
    return {**own_record(), "host": socket.gethostname()}


def is_launching(record: RunRecord) -> bool:
    """Report whether the process that launches the run is alive on this machine."""
    return record.launching is not None and not record.started and is_alive(record.launching)


def remote_launch_host(record: RunRecord) -> str | None:
    """The other machine that may still be launching the run, which only that machine knows."""
    if record.launching is None or record.started or is_launching(record):
        return None
    host = str(record.launching.get("host", socket.gethostname()))
    return None if host == socket.gethostname() else host
