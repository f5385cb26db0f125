"""Whether the process that launches a run is still running, here or on another machine."""

from __future__ import annotations

import os
import socket
from typing import Any

from orchestrator.node.machine import boot_id, stat_fields
from orchestrator.run import RunRecord


def this_process() -> dict[str, Any]:
    """What tells this process from all others, now and later."""
    fields = stat_fields(os.getpid())
    assert fields is not None, "a process finds itself in /proc"
    here = {"host": socket.gethostname(), "boot_id": boot_id()}
    return {"pid": os.getpid(), "start_time": int(fields[19]), **here}


def launch_goes_on(record: RunRecord) -> bool:
    """Whether the process that launches the run is still at it; only the machine that launches can tell."""
    mark = record.launching
    if mark is None or record.started or mark["boot_id"] != boot_id():
        return False
    fields = stat_fields(mark["pid"])
    return fields is not None and fields[0] not in "ZX" and int(fields[19]) == mark["start_time"]


def launched_elsewhere(record: RunRecord) -> str | None:
    """The other machine where the run may still be being launched: whether it is cannot be told from here."""
    if record.launching is None or record.started or launch_goes_on(record):
        return None
    host = str(record.launching.get("host", socket.gethostname()))
    return None if host == socket.gethostname() else host
