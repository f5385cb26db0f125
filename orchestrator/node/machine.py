"""What tells one machine and one process from another: boot id, network namespace, and the kernel's own record of a process."""

from __future__ import annotations

import os


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
