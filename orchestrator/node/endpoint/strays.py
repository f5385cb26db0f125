"""The strays of a machine, processes of a run whose agent is gone; and the other users of its cards."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

from orchestrator.node.files import read_json
from orchestrator.node.machine import PARENT, START_TIME, is_alive
from orchestrator.node.ownership import (
    agent_mark,
    key_of,
    own_processes,
    rank_mark,
    signal_exactly,
    users,
)
from orchestrator.node.run_folder import RUN_ID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Set, Tuple

    from orchestrator.node import protocol
    from orchestrator.node.ownership import Key, Mark

    Json = Dict[str, Any]
    Family = Tuple[str, str]  # run id and node

CARD = re.compile(r"/dev/(nvidia|gcu)\d+\Z")
TOOL_WAIT_S = 10.0
KILL_WAIT_S = 5.0
POLL_S = 0.02


def age_s(fields: List[str]) -> float:
    """How long ago a process was started."""
    with open("/proc/uptime", encoding="ascii") as file:
        up_s = float(file.read().split()[0])
    return up_s - int(fields[START_TIME]) / os.sysconf("SC_CLK_TCK")


def find_strays(young_s: float, condemned: Set[Family]) -> Dict[Key, protocol.StrayBody]:
    """
    The processes of a run and a node whose agent is gone, if one of them is older than young_s.

    Those of `condemned` are strays at any age; the families found are added to it.
    """
    processes = own_processes()
    agents = {pid: mark for pid, mark in ((pid, agent_mark(pid)) for pid in processes) if mark is not None}
    living = {(mark[0], mark[2]) for mark in agents.values()}
    families: Dict[Family, Dict[int, Mark]] = {}
    for pid in processes:
        mark = None if pid in agents else rank_mark(pid)
        if mark is not None and RUN_ID.match(mark[0]) and os.path.basename(mark[3]) == mark[0]:
            families.setdefault((mark[0], mark[2]), {})[pid] = mark
    found: Dict[Key, protocol.StrayBody] = {}
    for family, marks in families.items():
        if family in living or agent_above(marks, agents, processes) or any(map(recorded_agent, set(marks.values()))):
            continue
        if family in condemned or any(age_s(processes[pid]) >= young_s for pid in marks):
            condemned.add(family)
            found.update({key_of(pid, processes[pid]): stray_body(pid, family, processes[pid]) for pid in marks})
    return found


def agent_above(pids: Dict[int, Mark], agents: Dict[int, Mark], processes: Dict[int, List[str]]) -> bool:
    """One of them descends from an agent, whose record may name another pid: that of its container."""
    for pid in pids:
        while pid in processes and pid not in agents:
            pid = int(processes[pid][PARENT])  # noqa: PLW2901  a walk upwards
        if pid in agents:
            return True
    return False


def recorded_agent(mark: Mark) -> bool:
    """An agent of that run and node is alive by its record, in any attempt."""
    _, _, node, folder = mark
    attempts = os.listdir(folder) if os.path.isdir(folder) else []
    records = [read_json(os.path.join(folder, attempt, node, "agent.json")) for attempt in attempts]
    return any(is_alive(record) for record in records)


def stray_body(pid: int, family: Family, fields: List[str]) -> protocol.StrayBody:
    age = age_s(fields)
    return {"pid": pid, "run": family[0], "node": family[1], "command": command_name(pid), "age_s": age, "alive": True}


def command_name(pid: int) -> str:
    """The name of a process, without its arguments, which may hold secrets."""
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def strays(request: protocol.StraysRequest, _payload: bytes) -> Tuple[protocol.StraysReply, bytes]:
    """End the strays of this machine, TERM and after grace_s KILL, unless dry_run; list them and the other users of its cards."""
    hunt = Hunt(request["young_s"])
    if not request["dry_run"]:
        hunt.sweep(signal.SIGTERM, time.monotonic() + request["grace_s"])
        hunt.sweep(signal.SIGKILL, time.monotonic() + KILL_WAIT_S)
    others, note = card_users()
    return {"strays": hunt.listed(), "users": others, "note": note}, b""


class Hunt:
    """The strays of this machine, including those that are forked while they are ended."""

    def __init__(self, young_s: float) -> None:
        self._condemned: Set[Family] = set()
        self._left = find_strays(young_s, self._condemned)
        self._seen = dict(self._left)

    def sweep(self, number: int, deadline: float) -> None:
        """Signal each stray once, until none is left or the deadline is over."""
        signalled: Set[Key] = set()
        while self._left:
            for key in set(self._left) - signalled:
                signalled.add(key)
                with contextlib.suppress(PermissionError):  # it is listed as alive
                    signal_exactly(key, number)
            if time.monotonic() >= deadline:
                return
            time.sleep(POLL_S)
            self._left = find_strays(float("inf"), self._condemned)
            self._seen = {**self._left, **self._seen}

    def listed(self) -> List[protocol.StrayBody]:
        """All that were found, and whether they are still alive."""
        return [{**stray, "alive": key in self._left} for key, stray in self._seen.items()]


def card_users() -> Tuple[List[protocol.CardUserBody], str]:
    """Other users' processes on the cards, as far as this user may see them; and the error of a vendor's tool."""
    holders: Dict[int, str] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and os.geteuid() not in users(int(name)):
            for card in open_cards(int(name)):
                holders[int(name)] = card
    from_tool, note = ask_nvidia_smi()
    for pid in from_tool:
        holders.setdefault(pid, "nvidia")
    found: List[protocol.CardUserBody] = []
    for pid, card in sorted(holders.items()):
        uids = users(pid)
        if os.geteuid() not in uids:
            found.append({"pid": pid, "uid": min(uids, default=None), "command": command_name(pid), "card": card})
    return found, note


def open_cards(pid: int) -> List[str]:
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    return sorted({os.path.basename(link) for link in links if CARD.match(link)})


def ask_nvidia_smi() -> Tuple[List[int], str]:
    """Pids with a compute context, and the error of nvidia-smi; a driver that hangs must not hang this."""
    import shutil  # noqa: PLC0415  slow to import, and most connections do without
    import subprocess  # noqa: PLC0415

    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [], ""
    argv = [tool, "--query-compute-apps=pid", "--format=csv,noheader,nounits"]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output = process.communicate(timeout=TOOL_WAIT_S)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in the driver it may be beyond any signal
            process.wait(1.0)
        if process.stdout is not None:
            process.stdout.close()
        return [], f"nvidia-smi gave no answer in {TOOL_WAIT_S:g} s"
    if process.returncode != 0:
        return [], f"nvidia-smi: {output.strip()}"
    return [int(line) for line in output.split() if line.isdigit()], ""
