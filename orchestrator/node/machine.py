"""The identity of a machine and of a process: boot id, network namespace, and the kernel's record of a process."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Dict, List, Optional

    Json = Dict[str, Any]

STATE, PARENT, GROUP, SESSION, START_TIME = 0, 1, 2, 3, 19  # indices of stat_fields


def boot_id() -> str:
    """Changes when the machine restarts."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def host_id() -> str:
    """Equal for two processes exactly when they share a loopback interface."""
    return f"{boot_id()}/{os.readlink('/proc/self/ns/net')[len('net:[') : -1]}"


def stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state (field 3) on, a zombie's too; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()  # the name before it may hold anything
    except (FileNotFoundError, ProcessLookupError):
        return None


def live_fields(pid: int) -> Optional[List[str]]:
    """Fields of /proc/PID/stat; None if the process is gone or a zombie."""
    fields = stat_fields(pid)
    return fields if fields and fields[STATE] not in "ZX" else None


def own_record() -> Json:
    """This process, as `is_alive` knows it later: pid, start time and boot id are never used twice."""
    fields = stat_fields(os.getpid())
    assert fields is not None, "a process finds itself in /proc"
    return {"pid": os.getpid(), "start_time": int(fields[START_TIME]), "boot_id": boot_id()}


def is_alive(record: Optional[Mapping[str, Any]]) -> bool:
    """Report whether the process of a record runs on this machine; a record without a boot id is of this boot."""
    if record is None or not isinstance(record.get("pid"), int):
        return False
    fields = live_fields(record["pid"])
    if fields is None or int(fields[START_TIME]) != record.get("start_time"):
        return False
    here = boot_id()
    return bool(record.get("boot_id", here) == here)
