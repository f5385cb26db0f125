"""The strays of a machine, processes of a run whose agent has ended; and other users' processes on its cards."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

from orchestrator.node.protocol.operations import STRAYS, answers
from orchestrator.node.run.ownership import agent_owner, key_of, rank_owner, signal_exactly, user_ids, user_processes
from orchestrator.node.run.run_folder import read_agent
from orchestrator.node.run.run_id import RUN_ID
from orchestrator.node.system.machine import PARENT, START_TIME, is_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Container, Dict, Iterable, List, Set, Tuple

    from orchestrator.node.protocol.runs import CardUserBody, StrayBody, StraysReply, StraysRequest
    from orchestrator.node.run.ownership import Key, Owner

    Family = Tuple[str, str]  # run id and node

CARD = re.compile(r"/dev/(nvidia|gcu)\d+\Z")
TOOL_WAIT_S = 10.0
KILL_WAIT_S = 5.0
POLL_S = 0.02


def age_s(fields: List[str]) -> float:
    with open("/proc/uptime", encoding="ascii") as file:
        up_s = float(file.read().split()[0])
    return up_s - int(fields[START_TIME]) / os.sysconf("SC_CLK_TCK")


def find_strays(min_age_s: float, orphaned: Set[Family]) -> Dict[Key, StrayBody]:
    """
    Find the processes of each run and node whose agent has ended, if the oldest of them is at least min_age_s old.

    Processes of the families in `orphaned` are strays at any age; the families found are added to it.
    """
    processes = user_processes()
    agents = {pid: owner for pid, owner in ((pid, agent_owner(pid)) for pid in processes) if owner is not None}
    with_agent = {(owner[0], owner[2]) for owner in agents.values()}
    families: Dict[Family, Dict[int, Owner]] = {}
    for pid in processes:
        owner = None if pid in agents else rank_owner(pid)
        if owner is not None and RUN_ID.match(owner[0]) and os.path.basename(owner[3]) == owner[0]:
            families.setdefault((owner[0], owner[2]), {})[pid] = owner
    strays: Dict[Key, StrayBody] = {}
    for family, owners in families.items():
        if family in with_agent or has_agent_ancestor(owners, agents, processes):
            continue
        if any(map(has_living_agent, set(owners.values()))):
            continue
        if family in orphaned or any(age_s(processes[pid]) >= min_age_s for pid in owners):
            orphaned.add(family)
            for pid in owners:
                strays[key_of(pid, processes[pid])] = {
                    "pid": pid,
                    "run": family[0],
                    "node": family[1],
                    "command": command_name(pid),
                    "age_s": age_s(processes[pid]),
                    "alive": True,
                }
    return strays


def has_agent_ancestor(pids: Iterable[int], agents: Container[int], processes: Dict[int, List[str]]) -> bool:
    """
    Return whether one of the processes descends from an agent.

    The agent's record may not identify it: in a container its pid is another one.
    """
    for pid in pids:
        ancestor = pid
        while ancestor in processes and ancestor not in agents:
            ancestor = int(processes[ancestor][PARENT])
        if ancestor in agents:
            return True
    return False


def has_living_agent(owner: Owner) -> bool:
    """Return whether the record of an agent of that run and node, in any attempt, is of a living process."""
    _, _, node, folder = owner
    attempts = os.listdir(folder) if os.path.isdir(folder) else []
    records = [read_agent(os.path.join(folder, attempt, node)) for attempt in attempts]
    return any(is_alive(record) for record in records)


def command_name(pid: int) -> str:
    """The name of a process, without its arguments, which may hold secrets."""
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@answers(STRAYS)
def strays(request: StraysRequest, _payload: bytes) -> Tuple[StraysReply, bytes]:
    """
    End the strays of this machine, by SIGTERM and after grace_s by SIGKILL, or only list them (dry_run).

    The reply lists the strays and other users' processes on the cards.
    """
    sweep = StraySweep(request["min_age_s"])
    if not request["dry_run"]:
        sweep.signal_all(signal.SIGTERM, time.monotonic() + request["grace_s"])
        sweep.signal_all(signal.SIGKILL, time.monotonic() + KILL_WAIT_S)
    users, tool_error = card_users()
    return {"strays": sweep.found(), "users": users, "tool_error": tool_error}, b""


class StraySweep:
    """The strays of this machine, including those that are forked while the sweep ends them."""

    def __init__(self, min_age_s: float) -> None:
        self._orphaned: Set[Family] = set()
        self._alive = find_strays(min_age_s, self._orphaned)
        self._found = dict(self._alive)

    def signal_all(self, number: int, deadline: float) -> None:
        """Signal each stray once, until none is alive or the deadline has passed."""
        signalled: Set[Key] = set()
        while self._alive:
            for key in set(self._alive) - signalled:
                signalled.add(key)
                with contextlib.suppress(PermissionError):  # it is listed as alive
                    signal_exactly(key, number)
            if time.monotonic() >= deadline:
                return
            time.sleep(POLL_S)
            self._alive = find_strays(float("inf"), self._orphaned)
            self._found = {**self._alive, **self._found}

    def found(self) -> List[StrayBody]:
        """All strays that were found, and whether they are still alive."""
        return [{**stray, "alive": key in self._alive} for key, stray in self._found.items()]


def card_users() -> Tuple[List[CardUserBody], str]:
    """Other users' processes on the cards, as far as this user may see them; and the error of a vendor's tool."""
    cards: Dict[int, str] = {}  # by pid
    for name in os.listdir("/proc"):
        if name.isdigit() and os.geteuid() not in user_ids(int(name)):
            for card in open_cards(int(name)):
                cards[int(name)] = card
    tool_pids, tool_error = query_nvidia_smi()
    for pid in tool_pids:
        cards.setdefault(pid, "nvidia")
    users: List[CardUserBody] = []
    for pid, card in sorted(cards.items()):
        uids = user_ids(pid)
        if os.geteuid() not in uids:
            users.append({"pid": pid, "uid": min(uids, default=None), "command": command_name(pid), "card": card})
    return users, tool_error


def open_cards(pid: int) -> List[str]:
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    return sorted({os.path.basename(link) for link in links if CARD.match(link)})


def query_nvidia_smi() -> Tuple[List[int], str]:
    """Pids with a compute context, and the error of nvidia-smi; no error if the machine has none."""
    from orchestrator.node.vendor.tool import run_tool  # most connections do not need it

    tool = run_tool(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader,nounits"], TOOL_WAIT_S)
    if tool.error:
        return [], f"nvidia-smi: {tool.error}" if tool.is_installed else ""
    return [int(line) for line in tool.output.split() if line.isdigit()], ""
