"""Starts the agents without a scheduler: over ssh, or on this machine. Only the transport differs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from orchestrator.connections.pool import ConnectionPool
from orchestrator.endpoint.access import TransportFactory
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.connection import RendezvousPortTaken
from orchestrator.errors import NodeError, NodesError, folded
from orchestrator.fanout import map_parallel, successes
from orchestrator.launchers.base import AttemptFolder
from orchestrator.launchers.job import JobStatus
from orchestrator.launchers.newest_plan import NewestPlan
from orchestrator.launchers.push import run_content, send_bundle, space_warnings, write_files
from orchestrator.launchers.rendezvous import INTERFACES, check_reachable, parse_rendezvous
from orchestrator.node.run.code_folder import SHARED
from orchestrator.plan.files import (
    PlannedFile,
    agent_start,
    node_script_file,
    start_command,
)
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.plan.resolve import Facts
from orchestrator.portable.names.hostlist import fold
from orchestrator.progress import OnProgress, Reporter, no_progress

if TYPE_CHECKING:
    from orchestrator.code.bundle import Bundle
    from orchestrator.endpoint.logs import BatchLog
    from orchestrator.node.protocol.push import PutRunReply

START_WAIT_S = 30.0
SETUP_WAIT_S = 120.0  # in addition, for all setup lines together
PORT_TRIES = 3
UNSHARED = "does not share the folder of the run"

Result = TypeVar("Result")


class DirectLauncher:
    """One connection per node, kept for push, start and logs."""

    def __init__(
        self,
        plan: LaunchPlan,
        transport: TransportFactory,
        connected: Mapping[str, Endpoint] = MappingProxyType({}),
        on_progress: OnProgress = no_progress,
    ) -> None:
        self._newest = NewestPlan(plan)
        self._connections = ConnectionPool(transport, connected)
        self._on_progress = on_progress
        self._fanout = int(plan.ssh["fanout"])
        self._start_requested: set[str] = set()
        self._reconnects_from: threading.Event | None = None
        """Until it is set, lost connections are left to another launcher; None: there is none."""

    @property
    def plan(self) -> LaunchPlan:
        """The plan of the newest attempt."""
        return self._newest.get()

    def begin_attempt(self, plan: LaunchPlan) -> None:
        """Take the plan of another attempt before its `push` and `start`; `undo` ends only its agents."""
        self._start_requested.clear()
        self._newest.begin(plan)

    def learn_attempt(self, plan: LaunchPlan) -> None:
        """Take the plan of an attempt that another process or thread starts, to read its logs."""
        self._newest.learn(plan)

    def connect(self, plan: LaunchPlan) -> Facts:
        """Open one connection per node, all at once; the warnings are the remarks of the transports."""
        self._on_each([node for node in plan.nodes if not self.connected_endpoint(node)], self.reach, "connecting")
        remarks = self._connections.remarks().items()
        return Facts(warnings=tuple(f"{fold(names)}: {remark}" for remark, names in remarks))

    def start(self, plan: LaunchPlan, bundle: Bundle) -> str | None:  # it is on the nodes
        """Reserve the rendezvous on the head, and start all agents with it."""
        self._newest.begin(plan)
        for tries_left in reversed(range(PORT_TRIES)):
            try:
                self._start_agents()
            except NodesError as exc:
                port_taken = any(isinstance(failure, RendezvousPortTaken) for failure in exc.failures)
                if not port_taken or not tries_left or self.undo():
                    raise
            else:
                break
        return None

    def push(self, plan: LaunchPlan, bundle: Bundle) -> Facts:
        """
        Write the bundle, the run's code folder and the files that are equal on all nodes.

        Of nodes that share a file system, one pushes the code first, and the others find it.

        Raises:
            NodesError: in a later attempt, a node does not share the folder that the first attempt's nodes share.
        """

        def put_run(node: NodePlan, *, claim: bool) -> PutRunReply:
            return self.reach(node).put_run(run_content(plan, node, bundle), claim=claim)

        def push(node: NodePlan) -> PutRunReply:
            on_sent = partial(self._reporter.advanced, node.name)
            send_bundle(self.reach(node), node.workdir, bundle, on_sent)
            return put_run(node, claim=False)

        def follow(node: NodePlan) -> None:
            if not put_run(node, claim=False)["is_written"]:
                push(node)

        replies = self._on_each(plan.nodes, partial(put_run, claim=True), "preparing")
        answers = list(zip(plan.nodes, replies, strict=True))
        first = [node for node, reply in answers if reply["is_first"]]
        if plan.attempt > 1 and plan.is_shared and first:
            raise NodesError([NodeError(node.name, UNSHARED) for node in first], len(plan.nodes))
        # each push on its own would be slow with a thousand at once, and a slow one is taken for a lost node
        lacking = [node for node, reply in answers if reply["is_first"] and not reply["is_written"]]
        pushed = self._on_each(lacking, push, "pushing", size_bytes=bundle.size_bytes, limit=self._fanout)
        self._on_each([node for node, reply in answers if not reply["is_first"]], follow, "preparing")
        if plan.attempt > 1:
            return Facts()
        is_shared = len(first) == 1  # on one file system
        if is_shared:
            self.reach(plan.head).put_files(f"{plan.run_dir(plan.head)}/{SHARED}", [])
        return Facts(space_warnings([*answers, *zip(lacking, pushed, strict=True)]), is_shared)

    def write(self, plan: LaunchPlan, files: Mapping[str, Sequence[PlannedFile]]) -> None:
        """Write files of the run, by node."""

        def write(node: NodePlan) -> None:
            write_files(self.reach(node), plan.run_dir(node), files[node.name])

        self._on_each(plan.nodes, write, "preparing")

    def send_code(self, node: NodePlan, bundle: Bundle) -> bool:
        """Write the bundle and the run's code folder on a spare node; False if it does not see the folder that the nodes share."""
        plan, endpoint = self.plan, self.reach(node)
        if plan.is_shared:
            if endpoint.find(node.workdir, plan.run_id) is None:
                return False
        else:
            run = run_content(plan, node, bundle)
            if not endpoint.put_run(run, claim=False)["is_written"]:
                send_bundle(endpoint, node.workdir, bundle)
                endpoint.put_run(run, claim=False)
        endpoint.put_files(plan.node_dir(node), [])
        return True

    def undo(self) -> list[str]:
        """
        End the agent on every node where a start was requested, confirmed or not; after `close`, over new connections.

        States in memory are kept in a restart, which may begin once more, on another port or with another spare node.
        """
        begun = [node for node in self.plan.nodes if node.name in self._start_requested]
        is_restart = self.plan.attempt > 1
        if not self._connections.is_closed:
            return self.stop_nodes(begun, grace_s=0.0, keeps_standby=is_restart)
        with contextlib.closing(
            DirectLauncher(replace(self.plan, nodes=tuple(begun)), self._connections.transport)
        ) as reconnected:
            return reconnected.stop_nodes(begun, grace_s=0.0, keeps_standby=is_restart)

    def _start_agents(self) -> None:
        record = self._reserve()
        self._on_each(self.plan.nodes, lambda node: self._start_agent(node, record), "starting")

    def attempt(self) -> int:
        """The attempt of the newest plan."""
        return self.plan.attempt

    def attempt_folders(
        self, attempt: int, nodes: Collection[str] | None = None, *, connect: bool = True
    ) -> Sequence[AttemptFolder]:
        """One folder per node."""
        plan = replace(self.plan, attempt=attempt)
        needed = [node for node in self.plan.nodes_of(attempt) if nodes is None or node.name in nodes]
        failures = self._connection_failures(needed) if connect else [None] * len(needed)
        return [
            AttemptFolder(partial(self.reach, node), plan.attempt_dir(node), (node.name,), failure)
            for node, failure in zip(needed, failures, strict=True)
        ]

    def _connection_failures(self, nodes: Sequence[NodePlan]) -> list[NodeError | None]:
        """Connect to the nodes; return the failure of each, None for a success. NodesError if all fail."""
        reporter = Reporter("connecting", [node.name for node in nodes], self._on_progress)
        results = map_parallel(nodes, reporter.around(self.reach), limit=len(nodes))
        try:
            successes(results)
        except NodesError as exc:
            if len(exc.failures) == len(results):
                raise
        return [result if isinstance(result, NodeError) else None for result in results]

    def job_status(self, job: str | None) -> JobStatus | None:  # no scheduler here
        """None: no scheduler."""
        return None

    def batch_log(self, max_bytes: int) -> BatchLog | None:  # no scheduler here
        """Always None."""
        return None

    def position(self, status: JobStatus) -> str:  # no scheduler here
        """Empty: no job waits."""
        return ""

    def stop(self, job: str | None, *, grace_s: float) -> list[str]:  # no scheduler here
        """End the agent and the ranks on every node that can be reached."""
        return self.stop_nodes(self.plan.nodes, grace_s=grace_s)

    def stop_nodes(self, nodes: Sequence[NodePlan], *, grace_s: float, keeps_standby: bool = False) -> list[str]:
        """
        End the agent and the ranks on these nodes; the lines name the nodes that cannot be reached, and what is left.

        Args:
            keeps_standby: see Endpoint.stop.
        """

        def stop_node(node: NodePlan) -> list[str]:
            results = self.reach(node).stop(
                self.plan.attempt_dir(node), [node.name], grace_s=grace_s, keeps_standby=keeps_standby
            )
            return [f"{node.name}: still running: {left}" for result in results for left in result.left]

        # all at once: a stop may take its whole grace, and `reach` limits the logins
        results = map_parallel(nodes, stop_node, limit=len(nodes))
        failures = [result for result in results if isinstance(result, NodeError)]
        left = [line for line, _ in folded(failures, len(nodes))]
        for result in results:
            if isinstance(result, list):
                left += result
            elif not isinstance(result, NodeError):
                left.append(str(result))
        return left

    def close(self) -> None:
        """Close all connections at once, also those that other threads open or wait on; no more are opened."""
        self._connections.close()

    def reach(self, node: NodePlan) -> Endpoint:
        """The node's endpoint; a lost connection is opened again, or Unreachable if that is left to another launcher."""
        event = self._reconnects_from
        return self._connections.reach(node, reconnects=event is None or event.is_set())

    def connected_endpoint(self, node: NodePlan) -> Endpoint | None:
        """The node's endpoint; None without a connection."""
        return self._connections.connected(node)

    def queued_s(self, node: NodePlan) -> float:
        """The seconds that all logins to the node so far have waited for a login slot."""
        return self._connections.queued_s(node)

    def kept_alive(self, nodes: Sequence[NodePlan]) -> AbstractContextManager[None]:
        """See ConnectionPool."""
        return self._connections.kept_alive(nodes)

    def without_reconnects(self, until: threading.Event) -> DirectLauncher:
        """A launcher with the plan and the connections of this one, to which it leaves lost ones until the event."""
        follower = DirectLauncher(self.plan, self._connections.transport, on_progress=self._on_progress)
        follower._newest, follower._connections, follower._reconnects_from = self._newest, self._connections, until
        return follower

    def _reserve(self) -> str:
        """Choose the rendezvous address and hold its port on the head, just before the start; return the record of both."""
        head = self.plan.head
        env = {**head.defaults, **head.env}
        interfaces = {name: env[name] for name in INTERFACES if name in env}
        record = self._connections.reach(head, reconnects=False).reserve([head.address], interfaces)
        hosts = {node.name: self._connections.reach(node, reconnects=False).facts.host_id for node in self.plan.nodes}
        check_reachable(parse_rendezvous(record), head.name, hosts)
        return record

    def _start_agent(self, node: NodePlan, record: str) -> None:
        plan, endpoint = self.plan, self._connections.reach(node, reconnects=False)
        write_files(endpoint, plan.run_dir(node), [node_script_file(plan, node)])
        wait_s = START_WAIT_S + (SETUP_WAIT_S if plan.setup else 0.0)
        self._start_requested.add(node.name)
        agent = agent_start(plan, node, record)
        endpoint.start(start_command(plan, node, record), plan.node_dir(node), agent=agent, wait_s=wait_s)

    def stand_by(self, name: str, rendezvous: str) -> None:
        """Let the ranks of the next attempt import their modules on a node, while the ranks of the newest one run."""
        plan = self.plan  # its nodes have their environment, unlike those of the record
        spares = (with_last_rank(plan, node) for node in plan.spares)
        node = next(node for node in (*plan.nodes, *spares) if node.name == name)
        agent, endpoint = agent_start(self.plan, node, rendezvous), self.connected_endpoint(node)
        if agent is not None and endpoint is not None:  # it ends with the connection
            endpoint.stand_by(agent, self.plan.node_dir(node))

    def end_standby(self, node: NodePlan) -> None:
        """End the processes of `stand_by`, which have ended without a connection, and remove what ranks have left in the node's memory."""
        endpoint = self.connected_endpoint(node)
        if endpoint is not None:
            endpoint.stand_by(None, self.plan.node_dir(node))

    def _on_each(
        self,
        nodes: Sequence[NodePlan],
        work: Callable[[NodePlan], Result],
        participle: str,
        *,
        size_bytes: int | None = None,
        limit: int | None = None,
    ) -> list[Result]:
        """
        Call `work` for all nodes, report the progress, and return the results; raise all failures as one error.

        Without a limit for all at once: a request over an open connection is mostly a wait, and the transports limit the logins.
        """
        names = [node.name for node in nodes]
        self._reporter = Reporter(participle, names, self._on_progress, size_bytes=size_bytes)
        return successes(map_parallel(nodes, self._reporter.around(work), limit=limit or len(nodes)))


def with_last_rank(plan: LaunchPlan, spare: NodePlan) -> NodePlan:
    """A spare node with the ranks of the last node, and with the default variables that were found there: on most clusters, those of any node."""
    last = plan.nodes[-1]
    return replace(spare, node_rank=last.node_rank, ranks=last.ranks, defaults=last.defaults)
