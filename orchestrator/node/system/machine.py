"""The identity of a machine and of a process: boot id, network namespace, and the kernel's record of a process."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, List, Optional, TypedDict

    class ProcessRecord(TypedDict):
        """The identity of a process."""

        pid: int
        start_time: int
        boot_id: str


PROC = "/proc"  # nodes have it; a machine that only launches, such as a Mac, may not
STAT_BYTES = 1 << 12  # 52 numbers and a name of 64 bytes at most
STATE, PARENT, GROUP, SESSION, THREADS, START_TIME = 0, 1, 2, 3, 17, 19  # indices of stat_fields
IN_KERNEL = "D"  # the state of a thread that no signal ends before its disk or driver has answered


def boot_id() -> str:
    """An id that changes when the machine restarts; empty without /proc, where start times are dates and suffice."""
    if not has_proc():
        return ""
    with open(f"{PROC}/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def host_id() -> str:
    """Boot id and network namespace: equal for two processes exactly if they share a loopback interface."""
    return f"{boot_id()}/{os.readlink('/proc/self/ns/net')[len('net:[') : -1]}"


def stat_fields(pid: int | str) -> list[str] | None:
    """Fields of /proc/PID/stat (or PID/task/TID) from the state (field 3) on, also of a zombie; None if this user sees no such process (hidepid)."""
    try:
        # Not open(), which takes twice as long: a search of descendants reads this of every process of the node.
        descriptor = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, STAT_BYTES)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None if has_proc() else ps_fields(pid)
    return text.rpartition(b")")[2].decode().split()  # the name in parentheses may hold any character


def has_proc() -> bool:
    return os.path.exists(f"{PROC}/self/stat")


def ps_fields(pid: int | str) -> list[str] | None:
    """As stat_fields, by ps: state, parent, group and start time in seconds since the epoch; the other fields are 0."""
    import calendar  # not on nodes
    import subprocess
    import time

    argv = ["ps", "-o", "stat=,ppid=,pgid=,lstart=", "-p", str(pid)]
    done = subprocess.run(argv, env=dict(os.environ, LC_ALL="C", TZ="UTC"), stdout=subprocess.PIPE, check=False)
    state, *words = done.stdout.decode().split() or [""]
    if not words:
        return None
    started = calendar.timegm(time.strptime(" ".join(words[2:7]), "%a %b %d %H:%M:%S %Y"))
    fields = {STATE: state[0], PARENT: words[0], GROUP: words[1], START_TIME: str(started)}
    return [fields.get(index, "0") for index in range(START_TIME + 1)]


def live_fields(pid: int) -> Optional[List[str]]:
    """Fields of /proc/PID/stat; None if the process has ended, also if it is a zombie."""
    fields = stat_fields(pid)
    return fields if fields and state_of(pid, fields) not in "ZX" else None


def state_of(pid: int, fields: List[str]) -> str:
    """State letter of a process; if its main thread has ended, that of another one, without which it does not end."""
    if fields[STATE] != "Z" or int(fields[THREADS]) <= 1:
        return fields[STATE]
    folder = f"{PROC}/{pid}/task"
    try:
        threads = [stat_fields(f"{pid}/task/{name}") for name in os.listdir(folder)]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
    states = {thread[STATE] for thread in threads if thread} - {"Z", "X"}
    return IN_KERNEL if IN_KERNEL in states else min(states, default="Z")


def process_record() -> ProcessRecord:
    """The identity of this process, for `is_alive`: the combination of pid, start time and boot id is unique."""
    fields = stat_fields(os.getpid())
    assert fields is not None, "this process is alive"
    return {"pid": os.getpid(), "start_time": int(fields[START_TIME]), "boot_id": boot_id()}


def is_alive(record: Optional[Mapping[str, Any]]) -> bool:
    """Return whether the process of a record runs on this machine; a record without a boot id is taken as of this boot."""
    if record is None or not isinstance(record.get("pid"), int):
        return False
    fields = live_fields(record["pid"])
    if fields is None or int(fields[START_TIME]) != record.get("start_time"):
        return False
    this_boot = boot_id()
    return bool(record.get("boot_id", this_boot) == this_boot)


def is_stopped(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP, or a debugger, has stopped the process."""
    fields = stat_fields(pid)
    return fields is not None and fields[STATE] in "Tt"
