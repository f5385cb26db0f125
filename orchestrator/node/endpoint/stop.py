"""Stop the runs of a node: the recorded agent, which ends its ranks; if it is gone, its ranks and whatever else is the run's."""

from __future__ import annotations

import os
import signal
import time

from orchestrator.node.events import read_history
from orchestrator.node.files import read_json
from orchestrator.node.machine import GROUP, START_TIME, boot_id, is_alive
from orchestrator.node.ownership import (
    add_relatives,
    agent_mark,
    key_of,
    own_processes,
    rank_mark,
    signal_exactly,
)
from orchestrator.node.run_folder import node_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

    from orchestrator.node import protocol
    from orchestrator.node.events import Event
    from orchestrator.node.ownership import Key

    Json = Dict[str, Any]

AGENT_MARGIN_S = 5.0  # an agent gives its ranks the grace, then has to end them and itself
KILL_WAIT_S = 5.0
POLL_S = 0.02


class Target:
    """One node folder while it is being stopped: the signals that were sent, and the processes that are left."""

    def __init__(self, node: str, folder: str) -> None:
        self.node, self.folder = node, folder
        run, attempt = os.path.split(os.path.dirname(folder))
        self._mark = (os.path.basename(run), attempt[len("attempt-") :], node, os.path.realpath(run))
        self.signalled: List[protocol.SignalledBody] = []
        self._known: Set[Key] = set()  # once found to be the run's, also after its parent has ended
        self._sent: Set[Tuple[Key, int]] = set()

    def alive(self) -> Dict[Key, str]:
        """Process -> its role: the agent while it is alive, else whatever is left of the run."""
        agent = read_json(os.path.join(self.folder, "agent.json"))
        if agent is not None and agent.get("boot_id") != boot_id():
            return {}
        if agent is not None and is_alive(agent):
            return {(agent["pid"], agent["start_time"]): "agent"}
        history = read_history(self.folder)
        # The agent or its guard writes its last event when nothing below it is alive.
        return {} if history.finished is not None else self._left(agent, history.rank_starts)

    def _left(self, agent: Optional[Json], rank_starts: List[Event]) -> Dict[Key, str]:
        """Find the processes by their environment and command line: this reads those of every process of this user."""
        processes = own_processes()
        names = {}
        for event in rank_starts:
            if event["pid"] in processes and is_alive(event):
                names[event["pid"]] = f"rank {event['rank']}"
        leaders = dict(names)
        since = agent["start_time"] if agent else 0
        for pid, fields in processes.items():
            leader = leaders.get(int(fields[GROUP]))
            if pid not in names and leader is not None:
                names[pid] = f"group of {leader}"
            elif pid not in names and (key_of(pid, fields) in self._known or self._ours(pid, fields, since)):
                names[pid] = "process of the run"
        for pid in add_relatives(set(names), processes, agent["pgid"] if agent else None):
            names.setdefault(pid, "process of the run")
        found = {key_of(pid, processes[pid]): what for pid, what in names.items()}
        self._known.update(found)
        return found

    def _ours(self, pid: int, fields: List[str], since: int) -> bool:
        """A process of this attempt and node; one that is older than the agent cannot be the agent's."""
        mark = rank_mark(pid) if int(fields[START_TIME]) >= since else None
        mark = mark or agent_mark(pid)  # the guard is older than the agent and agent.json
        return mark is not None and (*mark[:3], os.path.realpath(mark[3])) == self._mark

    def signal_all(self, number: signal.Signals) -> bool:
        """Send each living process the signal once; True if any was alive."""
        alive = self.alive()
        for key, what in alive.items():
            if (key, number) not in self._sent:
                self._sent.add((key, number))
                self._send(key, what, number)
        return bool(alive)

    def _send(self, key: Key, what: str, number: signal.Signals) -> None:
        try:
            sent = signal_exactly(key, number)
        except PermissionError:
            return  # reported among what remains
        if sent:
            self.signalled.append({"pid": key[0], "what": what, "signal": number.name})


def sweep(targets: List[Target], number: signal.Signals, deadline: float) -> List[Target]:
    """Signal what is alive until nothing is or the deadline is over; return the targets that still have processes."""
    while True:
        targets = [target for target in targets if target.signal_all(number)]
        if not targets or time.monotonic() >= deadline:
            return targets
        time.sleep(POLL_S)


def stop(request: protocol.StopRequest, _payload: bytes) -> Tuple[protocol.StopReply, bytes]:
    """End the agents of the node folders within grace_s and a margin, all at once; then kill what is left."""
    targets = [Target(node, folder) for node, folder in node_folders(request)]
    margin_s = AGENT_MARGIN_S if any("agent" in target.alive().values() for target in targets) else 0.0
    rest = sweep(targets, signal.SIGTERM, time.monotonic() + request["grace_s"] + margin_s)
    rest = sweep(rest, signal.SIGKILL, time.monotonic() + KILL_WAIT_S)
    remaining = {target.node: sorted(pid for pid, _ in target.alive()) for target in rest}
    results: List[protocol.StopBody] = [
        {"node": target.node, "signalled": target.signalled, "remaining": remaining.get(target.node, [])}
        for target in targets
    ]
    return {"nodes": results}, b""
