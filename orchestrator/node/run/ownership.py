"""
Ownership of processes: the run that a process belongs to, by its environment or command line; and signalling exactly one process.

Ranks and their descendants have the environment that the agent set. An agent and its guard are recognised by their command
line; if an endpoint forked them, by that of the endpoint and their standard error, which is the agent's log. A process that
overwrote its environment (setproctitle does) is found by its parent, group or session, or not at all.
"""

from __future__ import annotations

import errno
import os

from orchestrator.node.run.run_folder import AGENT_LOG, attempt_number
from orchestrator.node.system.fast_stdlib import signal
from orchestrator.node.system.machine import PARENT, SESSION, START_TIME, has_proc, live_fields, stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Set, Tuple

    Key = Tuple[int, int]  # pid and start time: unique within a boot
    Owner = Tuple[str, str, str, str]  # run id, attempt, node, run folder

AGENT_PROGRAM = "/orchestrator/node/__main__.py"
# The only program text on the command line of an endpoint, and of the agents that it forks; agents of other versions are recognised by
# it, too. It has no ! and no newline, which some shells change even within quotes.
LOADER = 'import sys;i=getattr(sys.stdin,"buffer",sys.stdin);exec(i.read(int(i.readline())))'
REMOVED = " (deleted)"  # after the path of such a file in /proc
OWNER_VARIABLES = ("ORCH_RUN_ID", "ORCH_ATTEMPT", "ORCH_NODE", "ORCH_RUN_DIR")


def signal_exactly(key: Key, number: int) -> bool:
    """Signal this process, never a later one with the same pid; False if it has ended. PermissionError as from os.kill."""
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
    """A file descriptor of the process with this pid; None before Python 3.9 or Linux 5.3, or if a container forbids it."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return int(opener(pid))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise


def user_ids(pid: int) -> Set[int]:
    """Real and effective user id of a process; empty if it has ended. Not the owner of /proc/PID, which may be root."""
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:
            line = next(line for line in file if line.startswith("Uid:"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # hidepid
        return set()
    return {int(uid) for uid in line.split()[1:3]}


def user_processes() -> Dict[int, List[str]]:
    """Pid -> fields of /proc/PID/stat, for the processes of this user except this one and its ancestors."""
    excluded, pid = set(), os.getpid()
    while pid:
        excluded.add(pid)
        fields = stat_fields(pid)
        pid = int(fields[PARENT]) if fields else 0
    found = {}
    for name in os.listdir("/proc") if has_proc() else ():
        if name.isdigit() and int(name) not in excluded and user_ids(int(name)) == {os.geteuid()}:
            fields = live_fields(int(name))
            if fields is not None:
                found[int(name)] = fields
    return found


def key_of(pid: int, fields: List[str]) -> Key:
    return pid, int(fields[START_TIME])


def proc_strings(pid: int, name: str) -> List[str]:
    """The strings in /proc/PID/environ or cmdline; empty if the file cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return [os.fsdecode(string) for string in file.read().split(b"\0")]
    except OSError:
        return []


def rank_owner(pid: int) -> Optional[Owner]:
    """The owner of a rank or its descendant, by its environment; None for any other process."""
    variables = {name: value for name, _, value in (entry.partition("=") for entry in proc_strings(pid, "environ"))}
    if any(name not in variables for name in OWNER_VARIABLES):
        return None
    run, attempt, node, folder = (variables[name] for name in OWNER_VARIABLES)
    return run, attempt, node, folder


def agent_owner(pid: int) -> Optional[Owner]:
    """
    The owner of an agent, its guard or a program that wraps them; None for any other process.

    Its command line contains `… AGENT_PROGRAM run JOB.json --node NODE --node-rank …` or, before that, `/bin/sh node.sh --rendezvous …`,
    also after the name of setup.sh, which runs the setup lines. Forked by an endpoint, it has the endpoint's command line.
    """
    argv = proc_strings(pid, "cmdline")
    shell = argv[argv.index("/bin/sh") :] if "/bin/sh" in argv else []
    start = next((index for index, word in enumerate(argv) if word.endswith(AGENT_PROGRAM)), len(argv))
    if len(argv) > start + 5 and (argv[start + 1], argv[start + 3], argv[start + 5]) == (
        "run",
        "--node",
        "--node-rank",
    ):
        attempt, node = os.path.dirname(argv[start + 2]), argv[start + 4]
    elif shell[2:3] == ["--rendezvous"] and shell[1].endswith("/node.sh"):
        attempt, node = os.path.split(os.path.dirname(shell[1]))
    elif LOADER in argv:
        folder, name = os.path.split(standard_error(pid))
        attempt, node = os.path.split(folder) if name == AGENT_LOG else ("", "")
    else:
        return None
    run, name = os.path.split(attempt)
    number = attempt_number(name)
    return None if number is None else (os.path.basename(run), str(number), node, run)


def runs_with_processes() -> Set[str]:
    """The runs with a living process on this machine."""
    owners = [rank_owner(pid) or agent_owner(pid) for pid in user_processes()]
    return {owner[0] for owner in owners if owner is not None}


def standard_error(pid: int) -> str:
    """The path of the file that is the standard error of a process; empty if it cannot be read."""
    try:
        path = os.readlink(f"/proc/{pid}/fd/2")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    return path[: -len(REMOVED)] if path.endswith(REMOVED) else path


def add_relatives(found: Set[int], processes: Dict[int, List[str]], session: Optional[int]) -> Set[int]:
    """Add all descendants, and all processes of the session if it contains one of them (it is the agent's)."""
    found = set(found)
    while True:
        has_session = session is not None and any(int(processes[pid][SESSION]) == session for pid in found)
        relatives = {
            pid
            for pid, fields in processes.items()
            if int(fields[PARENT]) in found or (has_session and int(fields[SESSION]) == session)
        }
        if relatives <= found:
            return found
        found |= relatives
