"""
Stopping the runs of a node: the recorded agent first, and its ranks only when no agent is left to do it. Nothing else is touched.
"""

from __future__ import annotations

import os
import signal
import time

from orchestrator.node.machine import boot_id
from orchestrator.node.watch import live_fields, node_folders, process, read_events, read_json

TYPE_CHECKING = False  # what typing.TYPE_CHECKING is; importing typing costs every connection some milliseconds
if TYPE_CHECKING:
    from typing import Any, Dict, List, Set, Tuple

    Json = Dict[str, Any]

AGENT_MARGIN_S = 5.0  # an agent gives its ranks the grace, then has to end them and itself
KILL_WAIT_S = 5.0
POLL_S = 0.02


class Target:
    """One node folder while it is being stopped: what was signalled and what is left."""

    def __init__(self, node: str, folder: str) -> None:
        self.node, self.folder = node, folder
        self.signalled: List[Json] = []
        self._sent: Set[Tuple[int, int]] = set()

    def alive(self) -> Dict[int, str]:
        """Pid -> what it is, of the agent while it lives, else of what is left of its ranks."""
        agent = read_json(os.path.join(self.folder, "agent.json"))
        if agent is None or agent.get("boot_id") != boot_id():
            return {}
        pid = process(agent)
        return {pid: "agent"} if pid is not None else self._ranks(agent)

    def _ranks(self, agent: Json) -> Dict[int, str]:
        leaders = {agent["pgid"]: (False, "the agent")}
        for event in read_events(self.folder):
            if event.get("event") == "rank-started":
                leaders[event["pid"]] = (process(event) is not None, f"rank {event['rank']}")
        found = {pid: name for pid, (recorded, name) in leaders.items() if recorded}
        for pid, group in groups().items():
            if group in leaders and group != pid:
                recorded, name = leaders[group]
                # A group keeps its number while it has members. Without its leader the number alone proves nothing.
                if recorded or (live_fields(group) is None and self._ours(pid)):
                    found[pid] = f"group of {name}"
        return found

    def _ours(self, pid: int) -> bool:
        """Whether a process carries this run's environment."""
        run = os.path.basename(os.path.dirname(os.path.dirname(self.folder)))
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                entries = file.read().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False
        return {f"ORCH_RUN_ID={run}".encode(), f"ORCH_NODE={self.node}".encode()} <= set(entries)

    def signal_all(self, number: signal.Signals) -> bool:
        """Send each living process the signal once; whether any was alive."""
        alive = self.alive()
        for pid, what in alive.items():
            if (pid, number) not in self._sent:
                self._sent.add((pid, number))
                self._send(pid, what, number)
        return bool(alive)

    def _send(self, pid: int, what: str, number: signal.Signals) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            return  # reported among what remains
        self.signalled.append({"pid": pid, "what": what, "signal": number.name})


def groups() -> Dict[int, int]:
    """Pid -> process group, of every process there is."""
    found = {}
    for name in os.listdir("/proc"):
        fields = live_fields(int(name)) if name.isdigit() else None
        if fields is not None:
            found[int(name)] = int(fields[2])
    return found


def sweep(targets: List[Target], number: signal.Signals, deadline: float) -> List[Target]:
    """Signal whatever lives until nothing does or the deadline is over; the targets that still have something alive."""
    while True:
        targets = [target for target in targets if target.signal_all(number)]
        if not targets or time.monotonic() >= deadline:
            return targets
        time.sleep(POLL_S)


def stop(request: Json, _payload: bytes) -> Tuple[Json, bytes]:
    """End the agents of the node folders within grace_s and a margin, all at once; with SIGKILL whatever is left then."""
    targets = [Target(node, folder) for node, folder in node_folders(request)]
    rest = sweep(targets, signal.SIGTERM, time.monotonic() + request["grace_s"] + AGENT_MARGIN_S)
    sweep(rest, signal.SIGKILL, time.monotonic() + KILL_WAIT_S)
    results = [
        {"node": target.node, "signalled": target.signalled, "remaining": sorted(target.alive())} for target in targets
    ]
    return {"nodes": results}, b""
