"""
The processes of a run, recognised by their environment or command line; and how to signal exactly one process.

Ranks and their descendants have the environment that the agent set; an agent and its guard are known by their command line. A
process that overwrote its environment (setproctitle does) is found through its parent, group or session, or not at all.
"""

from __future__ import annotations

import errno
import os
import signal

from orchestrator.node.machine import PARENT, SESSION, START_TIME, live_fields, stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Set, Tuple

    Key = Tuple[int, int]  # pid and start time, never used twice
    Mark = Tuple[str, str, str, str]  # run id, attempt, node, run folder

AGENT = "/orchestrator/node/__main__.py"
MARKS = ("ORCH_RUN_ID", "ORCH_ATTEMPT", "ORCH_NODE", "ORCH_RUN_DIR")


def signal_exactly(key: Key, number: int) -> bool:
    """Signal this process and no later one with its pid; False if it is gone. PermissionError as from os.kill."""
    descriptor = None
    try:
        descriptor = open_pidfd(key[0])
        fields = live_fields(key[0])
        if fields is None or int(fields[START_TIME]) != key[1]:
            return False
        if descriptor is None:
            os.kill(key[0], number)
        else:
            getattr(signal, "pidfd_send_signal")(descriptor, number)  # noqa: B009  new in Python 3.9
    except ProcessLookupError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def open_pidfd(pid: int) -> Optional[int]:
    """A descriptor of the process with this pid; None before Python 3.9 or Linux 5.3, or if a container forbids it."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return int(opener(pid))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise


def users(pid: int) -> Set[int]:
    """Real and effective user of a process; empty if it is gone. Not the owner of /proc/PID, which may be root."""
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:
            line = next(line for line in file if line.startswith("Uid:"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # hidepid
        return set()
    return {int(uid) for uid in line.split()[1:3]}


def own_processes() -> Dict[int, List[str]]:
    """Pid -> fields of /proc/PID/stat, of this user's processes without this one and its ancestors."""
    above, pid = set(), os.getpid()
    while pid:
        above.add(pid)
        fields = stat_fields(pid)
        pid = int(fields[PARENT]) if fields else 0
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in above and users(int(name)) == {os.geteuid()}:
            fields = live_fields(int(name))
            if fields is not None:
                found[int(name)] = fields
    return found


def key_of(pid: int, fields: List[str]) -> Key:
    return pid, int(fields[START_TIME])


def words(pid: int, name: str) -> List[str]:
    """The words of /proc/PID/environ or cmdline; none if they cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def rank_mark(pid: int) -> Optional[Mark]:
    """The owner of a rank or its descendant, by its environment."""
    given = {name: value for name, _, value in (word.partition("=") for word in words(pid, "environ"))}
    if any(name not in given for name in MARKS):
        return None
    run, attempt, node, folder = (given[name] for name in MARKS)
    return run, attempt, node, folder


def agent_mark(pid: int) -> Optional[Mark]:
    """The owner of an agent, its guard or a program that wraps them: `… AGENT run JOB.json --node NODE …`, or node.sh."""
    argv = words(pid, "cmdline")
    at = next((at for at, word in enumerate(argv) if word.endswith(AGENT)), len(argv))
    if len(argv) > at + 5 and (argv[at + 1], argv[at + 3], argv[at + 5]) == ("run", "--node", "--node-rank"):
        attempt, node = os.path.dirname(argv[at + 2]), argv[at + 4]
    elif argv[:1] == ["/bin/sh"] and argv[2:3] == ["--rendezvous"] and argv[1].endswith("/node.sh"):
        attempt, node = os.path.split(os.path.dirname(argv[1]))
    else:
        return None
    run, _, number = attempt.rpartition("/attempt-")
    return (os.path.basename(run), number, node, run) if number.isdigit() else None


def add_relatives(found: Set[int], processes: Dict[int, List[str]], session: Optional[int]) -> Set[int]:
    """Add all descendants; and the whole session, which is the agent's, if one of the processes is in it."""
    found = set(found)
    while True:
        ours = session is not None and any(int(processes[pid][SESSION]) == session for pid in found)
        more = {
            pid
            for pid, fields in processes.items()
            if int(fields[PARENT]) in found or (ours and int(fields[SESSION]) == session)
        }
        if more <= found:
            return found
        found |= more
