"""The process that launches a run: its record, and whether it is still alive."""

from __future__ import annotations

import socket
from typing import Any

from orchestrator.node.system.machine import is_alive, process_record
from orchestrator.run import RunRecord


def this_process() -> dict[str, Any]:
    """The record of this process, for RunRecord.launching."""
    return {**process_record(), "host": socket.gethostname()}


def is_launching(record: RunRecord) -> bool:
    """True if the launch has not finished and its process is alive on this machine."""
    return record.launching is not None and not record.started and is_alive(record.launching)


def remote_launch_host(record: RunRecord) -> str | None:
    """The other machine on which an unfinished launch may be running: only that machine can check. None if there is none."""
    if record.launching is None or record.started or is_launching(record):
        return None
    host = str(record.launching.get("host", socket.gethostname()))
    return None if host == socket.gethostname() else host
