"""Ends what is left of an attempt on all nodes, and on lost ones as soon as they answer again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from orchestrator.endpoint.client import HEARTBEAT_ANSWER_S
from orchestrator.errors import LoginRefused, NotListening, OrchError, Unreachable
from orchestrator.fanout import map_parallel
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.node.run.events import State
from orchestrator.plan.plan import GRACE_S, LaunchPlan, NodePlan
from orchestrator.portable.names.hostlist import fold
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunState
from orchestrator.supervision.poller import NodeState, Poller
from orchestrator.supervision.silence import OF_NODE, RETRY_S, SUSPECT_S
from orchestrator.verdict.judge import Verdict, judge
from orchestrator.verdict.last_lines import with_last_lines
from orchestrator.verdict.missing_files import explain_by_nodes

RETURN_S = 30.0  # after the isolation timeout and this margin, a node that is cut off has ended its ranks itself


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt after its processes were ended where that was possible."""

    verdict: Verdict
    unreached: Sequence[NodePlan]
    """The nodes on which its processes may still run, and which may be reached later."""
    refusing: frozenset[str]
    """The unreached nodes that refuse connections: their hosts are up, so their ranks are not isolated and do not end."""
    running: frozenset[str]
    """The nodes that were reached, or refused the login, and on which processes may still run."""


class Termination:
    """The end of one attempt."""

    def __init__(self, folder: RunFolder, plan: LaunchPlan, launcher: DirectLauncher, poller: Poller) -> None:
        self._folder = folder
        self._plan = plan
        self._launcher = launcher
        self._poller = poller
        self._states = poller.states
        self.return_s = (plan.isolation_timeout_s or 0.0) + RETURN_S
        """The time in which a node that was cut off either answers or has ended its ranks itself."""

    def end(self, verdict: Verdict) -> EndedAttempt:
        """
        End the remaining processes, and add the cause to the verdict.

        Lost connections are not replaced: the login to a node that is cut off would delay the record until its timeout.
        """
        is_by_ranks = self._is_by_ranks(verdict)
        if verdict.state is RunState.LOST:
            verdict = replace(verdict, state=RunState.FAILED, failure=OF_NODE)
        refusing = [name for name, state in self._states.items() if isinstance(state.failure, NotListening)]
        refused = {name for name, state in self._states.items() if state.login_refused and not _has_ended(state)}
        silent = refused | {
            name
            for name, state in self._states.items()
            if isinstance(state.failure, Unreachable) or self._poller.silent_s(state) >= SUSPECT_S
        }
        reached = [state.node for name, state in self._states.items() if name not in silent and not _has_ended(state)]
        connected = self._launcher.without_reconnects(threading.Event())
        results = map_parallel(reached, partial(self.stop, connected), limit=len(reached))
        outcomes = {node.name: outcome for node, outcome in zip(reached, results, strict=True)}
        refused |= {name for name, outcome in outcomes.items() if isinstance(outcome, LoginRefused)}
        left = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, list) and outcome}
        lost = silent | {name for name, outcome in outcomes.items() if _is_worth_a_retry(outcome)}
        unreached = [node for node in self._plan.nodes if node.name in lost]
        last = judge(self._plan, self._poller.observations(), None)
        if last.state is RunState.FAILED and (last.exit is not None or is_by_ranks):
            verdict = last
        verdict = explain_by_nodes(verdict, self._plan, connected, self._plan.attempt)
        if refused:
            text = f"the run may still run on {fold(refused)}, which refused the login"
            verdict = replace(verdict, message="; ".join(filter(None, (verdict.message, text))))
        if left or (lost and verdict.state is RunState.STOPPED):
            texts = [
                f"left on {name} at the end: {process}" for name, processes in left.items() for process in processes
            ]
            texts += (
                [f"the run may still run on {fold(lost - refused)}, which does not answer"] if lost - refused else []
            )
            verdict = replace(verdict, message="; ".join(filter(None, (verdict.message, *texts))))
        verdict = with_last_lines(verdict, connected, self._plan.attempt)
        return EndedAttempt(verdict, unreached, frozenset(refusing), frozenset((refused - lost) | left.keys()))

    def _is_by_ranks(self, verdict: Verdict) -> bool:
        """True if ranks of a node have failed, which others report too: after the end, the verdict may name an earlier one."""
        nodes = self._poller.observations()
        has_failed = any(node.finished is not None and node.finished.state == State.FAILED for node in nodes)
        return has_failed and verdict == judge(self._plan, nodes, None)

    def stop(self, launcher: DirectLauncher, node: NodePlan) -> list[str]:
        """End the processes on a node; return those that are left."""
        endpoint = launcher.reach(node)
        # first a request that is answered at once: a silent node would delay the end of the run by the time that a stop may take
        endpoint.clock_ahead(wait_s=HEARTBEAT_ANSWER_S)
        results = endpoint.stop(self._plan.attempt_dir(node), [node.name], grace_s=GRACE_S, keeps_standby=True)
        [self._states[node.name].observation] = endpoint.observe(self._plan.attempt_dir(node), [node.name])
        return [left for result in results for left in result.left]

    def free_returning_nodes(self, unreached: Sequence[NodePlan], is_used: Callable[[str], bool]) -> None:
        """End what is left on lost nodes that answer again, and free the memory of those that are not used."""
        left, running = self.end_returning_nodes(unreached, self.return_s)
        kept = running.union(node.name for node in left)
        unused = [node for node in unreached if node.name not in kept and not is_used(node.name)]
        map_parallel(unused, self._launcher.end_standby, limit=max(1, len(unused)))

    def end_returning_nodes(
        self, unreached: Sequence[NodePlan], wait_s: float, is_over: Callable[[], bool] = lambda: False
    ) -> tuple[Sequence[NodePlan], frozenset[str]]:
        """
        Retry unreachable nodes and end their processes, for the time in which they end their ranks themselves or until `is_over`.

        Returns:
            The nodes that are still unreachable, and the names of those on which processes may still run: they refused the
            login, or some processes could not be ended.
        """
        deadline, running = time.monotonic() + wait_s, set[str]()
        while unreached and time.monotonic() < deadline and not is_over():
            outcomes = map_parallel(unreached, partial(self.stop, self._launcher), limit=len(unreached))
            for node, outcome in zip(unreached, outcomes, strict=True):
                if isinstance(outcome, LoginRefused):
                    running.add(node.name)
                elif not isinstance(outcome, Exception):
                    result = (
                        f"these could not be ended: {'; '.join(outcome)}"
                        if outcome
                        else "its remaining processes are ended"
                    )
                    self._folder.add_event("node-answered", f"{node.name} answers again, and {result}")
                    running.update([node.name] if outcome else [])
            unreached = [node for node, outcome in zip(unreached, outcomes, strict=True) if _is_worth_a_retry(outcome)]
            time.sleep(RETRY_S if unreached else 0.0)
        return unreached, frozenset(running)


def _has_ended(state: NodeState) -> bool:
    """True if the node's agent has finished, after its ranks, and is gone."""
    return state.observation is not None and state.observation.finished is not None and not state.observation.alive


def _is_worth_a_retry(outcome: object) -> bool:
    return isinstance(outcome, OrchError) and not isinstance(outcome, LoginRefused)
