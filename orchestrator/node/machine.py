"""What tells one machine and one process from another: boot id, network namespace, and the kernel's own record of a process."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # what typing.TYPE_CHECKING is; importing typing costs every process some milliseconds
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    Json = Dict[str, Any]


def boot_id() -> str:
    """Changes when the machine restarts."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def host_id() -> str:
    """Equal for two processes exactly when they share a loopback interface."""
    return f"{boot_id()}/{os.readlink('/proc/self/ns/net')[len('net:[') : -1]}"


def stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state (field 3) on, a zombie's too; None for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()  # the name before it may hold anything
    except (FileNotFoundError, ProcessLookupError):
        return None


def live_fields(pid: int) -> Optional[List[str]]:
    """Fields of /proc/PID/stat; None when the live_pid is gone or only waits to be reaped."""
    fields = stat_fields(pid)
    return fields if fields and fields[0] not in "ZX" else None


def live_pid(record: Json) -> Optional[int]:
    """The pid in the record if that very live_pid still runs on this machine since this boot."""
    fields = live_fields(record["pid"])
    if fields is None or int(fields[19]) != record["start_time"]:
        return None
    return int(record["pid"]) if record.get("boot_id", boot_id()) == boot_id() else None
