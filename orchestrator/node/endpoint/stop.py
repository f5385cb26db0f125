"""Stop the runs of a node: end the recorded agent, which ends its ranks; if it has ended, the remaining processes of the run."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from orchestrator.node.protocol.operations import STOP, answers
from orchestrator.node.run.events import read_history
from orchestrator.node.run.ownership import (
    add_relatives,
    agent_owner,
    key_of,
    rank_owner,
    signal_exactly,
    user_processes,
)
from orchestrator.node.run.run_folder import attempt_number, node_folders, process_name, read_agent
from orchestrator.node.system.machine import GROUP, IN_KERNEL, START_TIME, boot_id, is_alive, live_fields, state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Generator, List, Optional, Set, Tuple

    from orchestrator.node.protocol.agents import SignalledBody, StopBody, StopReply, StopRequest
    from orchestrator.node.protocol.operations import Steps
    from orchestrator.node.run.agent_files import AgentBody
    from orchestrator.node.run.events import Event
    from orchestrator.node.run.ownership import Key

AGENT_MARGIN_S = 5.0  # after the grace, the agent kills its ranks and ends
KILL_WAIT_S = 5.0
POLL_S = 0.02
SUSPENDED = "Tt"  # states of a process that was stopped, by a signal or a debugger


class Target:
    """One node folder while it is being stopped: the signals that were sent, and the processes that are alive."""

    def __init__(self, node: str, folder: str) -> None:
        self.node, self.folder = node, folder
        run, attempt = os.path.split(os.path.dirname(folder))
        self._owner = (os.path.basename(run), str(attempt_number(attempt)), node, os.path.realpath(run))
        self.signalled: List[SignalledBody] = []
        self._known: Set[Key] = set()  # processes of the run: they stay so when their parents have ended
        self._sent: Set[Tuple[Key, int]] = set()

    def alive(self) -> Dict[Key, str]:
        """Process -> its role: the agent while it is alive, else the remaining processes of the run."""
        agent = read_agent(self.folder)
        if agent is not None and agent.get("boot_id") != boot_id():
            return {}
        if agent is not None and is_alive(agent):
            return {(agent["pid"], agent["start_time"]): "agent"}
        history = read_history(self.folder)
        # An agent, or its guard, writes the last event when no descendant is alive.
        return {} if history.finished is not None else self._remaining(agent, history.rank_starts)

    def _remaining(self, agent: Optional[AgentBody], rank_starts: List[Event]) -> Dict[Key, str]:
        """Find the processes of the run: reads the environment and command line of every process of this user."""
        processes = user_processes()
        roles = {}
        for event in rank_starts:
            if event["pid"] in processes and is_alive(event):
                roles[event["pid"]] = process_name(event["rank"])
        leaders = dict(roles)
        agent_start = agent["start_time"] if agent else 0
        for pid, fields in processes.items():
            leader = leaders.get(int(fields[GROUP]))
            if pid not in roles and leader is not None:
                roles[pid] = f"group of {leader}"
            elif pid not in roles and (key_of(pid, fields) in self._known or self._owns(pid, fields, agent_start)):
                roles[pid] = "process of the run"
        for pid in add_relatives(set(roles), processes, agent["pgid"] if agent else None):
            roles.setdefault(pid, "process of the run")
        found = {key_of(pid, processes[pid]): role for pid, role in roles.items()}
        self._known.update(found)
        return found

    def _owns(self, pid: int, fields: List[str], agent_start: int) -> bool:
        """Return whether a process belongs to this attempt and node. Ranks and their descendants are younger than the agent."""
        owner = rank_owner(pid) if int(fields[START_TIME]) >= agent_start else None
        owner = owner or agent_owner(pid)  # at any age: the guard is older than the agent
        return owner is not None and (*owner[:3], os.path.realpath(owner[3])) == self._owner

    def signal_all(self, number: signal.Signals) -> bool:
        """Send each living process the signal once; return whether any was alive."""
        alive = self.alive()
        for key, role in alive.items():
            if number == signal.SIGKILL and role == "agent" and _state(key[0]) not in SUSPENDED and self._in_kernel():
                continue  # it has killed its ranks, waits for those that have not ended in the kernel, and records their end
            if (key, number) not in self._sent:
                self._sent.add((key, number))
                with contextlib.suppress(PermissionError):  # reported as remaining
                    if signal_exactly(key, number):
                        self.signalled.append({"pid": key[0], "role": role, "signal": number.name})
        return bool(alive)

    def _in_kernel(self) -> List[int]:
        remaining = self._remaining(read_agent(self.folder), read_history(self.folder).rank_starts)
        return sorted(pid for pid, _ in remaining if _state(pid) == IN_KERNEL)

    def result(self) -> StopBody:
        """The signals that were sent, and what is left: not an agent that only waits for processes in the kernel."""
        alive = self.alive()
        in_kernel = self._in_kernel() if alive else []
        left = {pid for (pid, _), role in alive.items() if role != "agent" or not in_kernel}
        return {
            "node": self.node,
            "signalled": self.signalled,
            "remaining": sorted(left.union(in_kernel)),
            "in_kernel": in_kernel,
        }


def _state(pid: int) -> str:
    """State letter of a process; X if it has ended."""
    fields = live_fields(pid)
    return state_of(pid, fields) if fields else "X"


def sweep(targets: List[Target], number: signal.Signals, deadline: float) -> Generator[float, None, List[Target]]:
    """Signal living processes until none is left or the deadline has passed; return the targets that still have some."""
    while True:
        targets = [target for target in targets if target.signal_all(number)]
        if not targets or time.monotonic() >= deadline:
            return targets
        yield POLL_S


@answers(STOP)
def stop(request: StopRequest, _payload: bytes) -> Steps[StopReply]:
    """End the agents of all node folders at once, within grace_s and a margin; then kill the remaining processes."""
    from orchestrator.node.endpoint.standby import end_standby  # not needed for a start

    for _, folder in node_folders(request):
        end_standby(folder, keeps_own=request["keeps_standby"])
    targets = [Target(node, folder) for node, folder in node_folders(request)]
    margin_s = AGENT_MARGIN_S if any("agent" in target.alive().values() for target in targets) else 0.0
    alive = yield from sweep(targets, signal.SIGTERM, time.monotonic() + request["grace_s"] + margin_s)
    yield from sweep(alive, signal.SIGKILL, time.monotonic() + KILL_WAIT_S)
    if not request["keeps_standby"]:  # no other attempt follows
        from orchestrator.node.run.memory_folder import memory_folder, remove_memory  # most runs have none

        for node, folder in node_folders(request):
            remove_memory(memory_folder(os.path.basename(os.path.dirname(os.path.dirname(folder))), node))
    return {"nodes": [target.result() for target in targets]}, b""
