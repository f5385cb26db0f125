"""Finds a run by an inventory alone: what it left on the nodes tells its plan. For a machine that has no record of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.endpoint.access import TransportFactory, transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.replies import RunTrace
from orchestrator.errors import NodeError, NodesError, OrchError, RunNotFound, Unreachable, UsageError
from orchestrator.fanout import each, successes
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.launchers.slurm.host import slurm_host
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm.login_node import login_node
from orchestrator.names.hostlist import fold
from orchestrator.node.endpoint import report
from orchestrator.plan.make import assign_ranks
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import Program


@dataclass(frozen=True, slots=True)
class NodeSearch:
    """A node that was asked, its connection open, and what it has of the run."""

    node: Node
    endpoint: Endpoint
    trace: RunTrace | None


def find_run(inventory: Inventory, run_id: str) -> tuple[LaunchPlan, Launcher]:
    """
    The run's plan, as far as its readers need it, and a launcher that reaches it.

    Raises:
        RunNotFound: no node has it.
        NodesError: no node that can be reached has it.
        UsageError: it is there, but not by way of this inventory.
    """
    trace = _seen_here(inventory, run_id)
    if trace is not None:
        plan = _plan(inventory, run_id, trace)
        return plan, SlurmLauncher(plan, slurm_host(replace(plan, slurm={**plan.slurm, "login": None})))
    at_login = _asked_at_login(inventory, run_id)
    if isinstance(at_login, RunTrace) and at_login.by_slurm:
        plan = _plan(inventory, run_id, at_login)
        return plan, SlurmLauncher(plan, slurm_host(plan))
    transport = transport_factory(inventory.transport, inventory.ssh)
    found = each(inventory.nodes, lambda node: _visit(node, transport, run_id), limit=inventory.ssh.fanout)
    visits = [visit for visit in found if isinstance(visit, NodeSearch)]
    members: set[str] = set()
    try:
        failed = [at_login] if isinstance(at_login, OrchError) else []
        plan = _plan(inventory, run_id, _newest(inventory, run_id, [*found, *failed]))
        members = {node.name for node in plan.nodes}
    finally:
        for visit in visits:
            if visit.node.name not in members:
                visit.endpoint.close()
    connected = {visit.node.name: visit.endpoint for visit in visits if visit.node.name in members}
    silent = [(node, one) for node, one in zip(inventory.nodes, found, strict=True) if node.name in members]
    warnings = [text for node, one in silent if (text := _without_trace(node, run_id, one))]
    return replace(plan, warnings=tuple(warnings)), DirectLauncher(plan, transport, connected)


def _seen_here(inventory: Inventory, run_id: str) -> RunTrace | None:
    """A run through Slurm, whose working folder this machine shares; any other is asked of its nodes."""
    for workdir in dict.fromkeys(node.workdir for node in inventory.nodes):
        try:
            found = report.find({"workdir": workdir, "run": run_id}, b"")[0]
        except OSError:
            continue  # a folder of somebody else's here is not the one that the nodes have by that name
        if found["trace"] is not None and found["trace"]["by_slurm"]:
            try:
                return RunTrace.of(found)
            except ValueError as exc:
                raise RunNotFound(f"{workdir}/runs/{run_id}: {exc}") from exc
    return None


def _asked_at_login(inventory: Inventory, run_id: str) -> RunTrace | OrchError | None:
    """What the login node has of the run, where one is named and it is not this machine; or why that is not known."""
    login = login_node(inventory.slurm.login, inventory.nodes[0], inventory.ssh)
    if login is None:
        return None
    try:
        with Endpoint.connect(transport_factory("ssh", inventory.ssh)(login), login.python) as endpoint:
            return endpoint.find(login.workdir, run_id)
    except NodeError as exc:
        return exc


def _visit(node: Node, transport: TransportFactory, run_id: str) -> NodeSearch:
    endpoint = Endpoint.connect(transport(node), node.python)
    try:
        return NodeSearch(node, endpoint, endpoint.find(node.workdir, run_id))
    except BaseException:
        endpoint.close()
        raise


def _newest(inventory: Inventory, run_id: str, found: Sequence[NodeSearch | OrchError]) -> RunTrace:
    """What the node with the newest attempt has."""
    traces = [visit.trace for visit in found if isinstance(visit, NodeSearch) and visit.trace is not None]
    folders = _folders(inventory)
    if not traces:
        hint = f"looked for in {folders}; the right inventory is the one it was launched with"
        try:
            successes(found)
        except NodesError as exc:
            exc.hint = f"no other node of {inventory.file} has the run {run_id}, {hint}"
            raise
        raise RunNotFound(f"no node of {inventory.file} has a run {run_id}", hint=hint)
    newest = max(traces, key=lambda trace: trace.attempt)
    if newest.by_slurm:
        hint = f"ask on a machine that shares {folders} with the nodes, or name one in the inventory, slurm: {{login: HOST}}"
        raise UsageError(f"run {run_id} went through Slurm, and its folder is not on this machine", hint=hint)
    return newest


def _folders(inventory: Inventory) -> str:
    """Where runs are looked for, for a message."""
    first, *others = dict.fromkeys(f"{node.workdir}/runs" for node in inventory.nodes)
    return f"{first} and {len(others)} more folders" if len(others) > 1 else " and ".join([first, *others])


def _without_trace(node: Node, run_id: str, found: NodeSearch | OrchError) -> str:
    """What to say of a node of the run that answers, but does not have it; empty when it has."""
    if isinstance(found, NodeSearch):
        where = f"{node.workdir}/runs/{run_id}"
        return "" if found.trace else f"{node.name} has no {where}, though the run is on it: its lines are missing"
    return "" if isinstance(found, Unreachable) else str(found)


def _plan(inventory: Inventory, run_id: str, trace: RunTrace) -> LaunchPlan:
    names = [node.name for node in inventory.nodes] if trace.nodes is None else trace.nodes
    known = {node.name: node for node in inventory.nodes}
    if missing := [name for name in names if name not in known]:
        hint = "take the inventory that it was launched with"
        raise UsageError(f"run {run_id} is on {fold(missing)} too, which {inventory.file} does not have", hint=hint)
    ranks_each = trace.ranks if trace.nodes is not None else [max(trace.ranks, default=0)] * len(names)
    return LaunchPlan(
        run_id=run_id,
        attempt=trace.attempt,
        launcher="slurm" if trace.by_slurm else "ssh",
        transport=inventory.transport,
        name=inventory.name,
        nodes=assign_ranks(inventory, [known[name] for name in names], ranks_each),
        node_count=len(trace.ranks),
        world_size=sum(trace.ranks),
        by_count=trace.nodes is None,
        program=Program("executable", ()),
        config=None,
        bundle="",
        ssh=inventory.ssh.model_dump(mode="json"),
        slurm={**inventory.slurm.model_dump(mode="json"), "shared": trace.shared},
    )


def probed(inventory: Inventory, names: str | None) -> Inventory:
    """
    Fill in accelerator and devices of the nodes in the host list `names` (None: of all) from the cards they have.

    Raises:
        NodesError: some of them cannot be reached.
    """
    chosen = inventory.nodes if names is None else inventory.select(names)
    found = dict(zip((node.name for node in chosen), _looked_at(inventory, chosen), strict=True))
    return inventory.model_copy(update={"nodes": tuple(found.get(node.name, node) for node in inventory.nodes)})


def _looked_at(inventory: Inventory, nodes: Sequence[Node]) -> list[Node]:
    transport = transport_factory(inventory.transport, inventory.ssh)

    def look(node: Node) -> Node:
        with Endpoint.connect(transport(node), node.python) as endpoint:
            cards = endpoint.facts.cards
        kind = next((kind for kind, count in cards.items() if count), "cpu")
        devices = node.devices if node.devices > 1 else cards.get(kind, 1)  # what somebody wrote down stands
        return node.model_copy(update={"accelerator": kind, "devices": devices})

    return successes(each(nodes, look, limit=inventory.ssh.fanout))
