"""Judges nodes that do not answer: by their peers, whether they are gone, and whether they end their ranks themselves."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from orchestrator.endpoint.observation import AgentRecord
from orchestrator.errors import ContainerEnded, OrchError
from orchestrator.failure_class import FailureClass
from orchestrator.fanout import map_parallel
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.launchers.rendezvous import parse_rendezvous
from orchestrator.node.isolation import SILENT_S
from orchestrator.plan.plan import GRACE_S, LaunchPlan, NodePlan
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunState
from orchestrator.supervision.poller import NodeState, Poller
from orchestrator.verdict.judge import Verdict

SUSPECT_S = 7.0  # after this silence of a node, other nodes are queried whether they reach it
WITNESS_RETRY_S = 5.0
WITNESSES = 3
OF_NODE = (FailureClass.NODE, FailureClass.NODE.retry)
END_S = 5.0  # that an agent needs to kill its ranks after the grace
RETRY_S = 1.0


class Silence:
    """The silent nodes of one attempt."""

    def __init__(self, folder: RunFolder, plan: LaunchPlan, launcher: DirectLauncher, poller: Poller) -> None:
        self._folder = folder
        self._plan = plan
        self._launcher = launcher
        self._poller = poller
        self._states = poller.states
        self._refused_timeout_s: float | None = plan.ssh.get("refused_timeout_s")

    def node_gone(self) -> Verdict | None:
        """
        The verdict if no machine reaches a node, or its container has ended; a node that only this machine cannot reach continues.
        """
        for state in self._states.values():
            if isinstance(state.failure, ContainerEnded):
                failed = (state.node.name,)
                return Verdict(RunState.FAILED, message=str(state.failure), failure=OF_NODE, failed_nodes=failed)
        answering = [
            state
            for state in self._states.values()
            if state.observation and not state.failure and self._poller.silent_s(state) < SUSPECT_S / 2
        ]
        for state in self._states.values():
            witnesses = [peer for peer in answering[: WITNESSES + 1] if peer is not state][:WITNESSES]
            if not witnesses:
                # this machine may be cut off: that no node answers, or all refuse connections, proves nothing
                state.witnesses_queried_s = time.monotonic()
                state.refusing_s = None
            elif not state.login_refused and self._poller.silent_s(state) >= SUSPECT_S:
                verdict = self._judge_silence(state, witnesses)
                if verdict is not None:
                    return verdict
        return None

    def _judge_silence(self, state: NodeState, witnesses: Sequence[NodeState]) -> Verdict | None:
        """The verdict if the node is gone: no witness reaches it, or it has refused connections for too long; else None."""
        now, name, silence = time.monotonic(), state.node.name, f"{self._poller.silent_s(state):.0f} s"
        refusing_s, failure = state.refusing_s, state.failure  # the poll thread may reset both at any time
        refused_s = 0.0 if refusing_s is None else now - refusing_s
        if self._refused_timeout_s is not None and failure is not None and refused_s >= self._refused_timeout_s:
            text = f"{name} has refused connections for {refused_s:.0f} s, longer than ssh.refused_timeout_s: {failure}"
            return Verdict(RunState.FAILED, message=text, failure=OF_NODE, failed_nodes=(name,))
        if now < state.witnesses_queried_s + WITNESS_RETRY_S:
            return None
        state.witnesses_queried_s = now
        reached_from = self._reached_from(state, witnesses)
        if reached_from and not any(reached_from.values()):
            state.unreached_s = time.monotonic() if self._plan.head.name in reached_from else None
            text = f"{name} is gone: it has not answered for {silence}, and {', '.join(reached_from)} cannot reach it either"
            return Verdict(RunState.FAILED, message=text, failure=OF_NODE, failed_nodes=(name,))
        report = "but others reach it" if reached_from else "and no other node can check whether it is up"
        if report != state.witness_report:
            state.witness_report = report
            self._folder.add_event("node-silent", f"{name} does not answer this machine, {report}: the run continues")
        return None

    def _reached_from(self, state: NodeState, witnesses: Sequence[NodeState]) -> dict[str, bool]:
        """Let the witnesses connect to the host of a silent node; return the result of each that could try."""
        agents = [
            witness.observation.agent for witness in witnesses if witness.observation and witness.observation.agent
        ]
        if not agents:
            return {}
        rendezvous = parse_rendezvous(agents[0].rendezvous)
        address = rendezvous.address if state.node is self._plan.head else _address_of(state)

        def is_reached_by(witness: NodeState) -> bool:
            return address in self._launcher.reach(witness.node).reach([address], rendezvous.port)

        answers = zip(witnesses, map_parallel(witnesses, is_reached_by, limit=WITNESSES), strict=True)
        return {witness.node.name: answer for witness, answer in answers if not isinstance(answer, OrchError)}

    def isolated(self, lost: Collection[str], refusing: Collection[str]) -> set[str]:
        """
        The lost nodes whose ranks have ended with their container, or end after the isolation timeout: no peer reaches them.

        The head is the only peer of another node. If the head itself is lost, another lost node may still reach it, so nothing is
        proved unless it is the only one.
        """
        ended = {name for name in lost if self.has_ended_container(name)}
        return ended | self._isolated_by_peers(set(lost) - ended, refusing)

    def has_ended_container(self, name: str) -> bool:
        """True if nothing of the run is left on the node, because the container in which it ran is not running."""
        return isinstance(self._states[name].failure, ContainerEnded)

    def _isolated_by_peers(self, lost: Collection[str], refusing: Collection[str]) -> set[str]:
        head = self._states[self._plan.head.name]
        agent = head.observation.agent if head.observation else None
        if self._plan.isolation_timeout_s is None or agent is None or not lost:
            return set()
        if head.node.name in lost:
            is_isolated = set(lost) == {head.node.name} and not refusing and self._is_head_isolated(head, agent)
            return set(lost) if is_isolated else set()
        addresses = {
            name: _address_of(self._states[name]) for name in lost if name not in refusing and not self.is_stopped(name)
        }
        try:
            reached = self._launcher.reach(head.node).reach(
                sorted(addresses.values()), parse_rendezvous(agent.rendezvous).port
            )
        except OrchError:
            return set()
        return {name for name, address in addresses.items() if address not in reached}

    def _is_head_isolated(self, head: NodeState, agent: AgentRecord) -> bool:
        """
        True if the head's agent has reached a peer before, so that it ends its ranks when isolated, and no other node reaches it now.

        All other nodes are queried: any of them may be one of the peers that its agent tries to reach.
        """
        peers = [state.node for state in self._states.values() if state is not head]
        if not peers or self.is_stopped(head.node.name) or not (head.observation and head.observation.peer_answered):
            return False
        rendezvous = parse_rendezvous(agent.rendezvous)
        addresses = sorted({rendezvous.address, _address_of(head)})
        answers = map_parallel(
            peers, lambda peer: self._launcher.reach(peer).reach(addresses, rendezvous.port), limit=len(peers)
        )
        return all(answer == set() for answer in answers)

    def is_stopped(self, name: str) -> bool:
        """True if a signal (SIGSTOP) has stopped the node's agent, which then ends no ranks."""
        observation = self._states[name].observation
        return observation is not None and observation.stopped

    def isolation_wait_s(self, unreached: Sequence[NodePlan], polled_until_s: float) -> float:
        """The time after which nodes that are cut off have ended their ranks themselves."""
        unreached = [node for node in unreached if not self.has_ended_container(node.name)]
        if not unreached:
            return 0.0
        # the attempt on the other nodes was ended meanwhile; a node that was not queried may have been cut off just now
        now, cut_s = time.monotonic(), [self._states[node.name].unreached_s for node in unreached]
        passed_s = min(0.0 if since_s is None else now - max(since_s, polled_until_s) for since_s in cut_s)
        # the node counts its isolation only from SILENT_S after the last heartbeat
        return max(RETRY_S, (self._plan.isolation_timeout_s or 0.0) + SILENT_S + GRACE_S + END_S - passed_s)


def _address_of(state: NodeState) -> str:
    agent = state.observation.agent if state.observation else None
    return agent.address if agent and agent.address else state.node.address
