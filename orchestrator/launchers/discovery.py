"""Finds a run that this machine has no record of: its plan is read from the run's folder on the nodes of an inventory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.endpoint.access import Terminal, TransportFactory, transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.observation import RunTrace
from orchestrator.errors import NodeError, NodesError, OrchError, RunNotFound, Unreachable, UsageError
from orchestrator.fanout import map_parallel, successes
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.launchers.slurm.host import slurm_host
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm.login_node import login_node
from orchestrator.node.endpoint import report
from orchestrator.plan.node_plans import assign_ranks
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.names.hostlist import fold
from orchestrator.run import Program


@dataclass(frozen=True, slots=True)
class NodeSearch:
    """The result of a search for the run on one node; `endpoint` is open, `trace` None if the node does not have the run."""

    node: Node
    endpoint: Endpoint
    trace: RunTrace | None


def find_run(inventory: Inventory, run_id: str) -> tuple[LaunchPlan, Launcher]:
    """
    Find a run; return its plan, complete enough for reading, and a launcher that reaches it.

    Raises:
        RunNotFound: no node has it.
        NodesError: some nodes cannot be reached, and no other has it.
        UsageError: it exists, but cannot be reached with this inventory.
    """
    local_trace = _slurm_run_here(inventory, run_id)
    if local_trace is not None:
        plan = _plan(inventory, run_id, local_trace)
        return plan, SlurmLauncher(plan, slurm_host(replace(plan, slurm={**plan.slurm, "login": None})))
    terminal = Terminal()  # for all logins: a passphrase is prompted for once
    login_trace = _trace_on_login_node(inventory, run_id, terminal)
    if isinstance(login_trace, RunTrace) and login_trace.by_slurm:
        plan = _plan(inventory, run_id, login_trace)
        return plan, SlurmLauncher(plan, slurm_host(plan, terminal), terminal)
    transport = transport_factory(inventory.transport, inventory.ssh, terminal)
    return _find_on_nodes(inventory, run_id, transport, [login_trace] if isinstance(login_trace, OrchError) else [])


def active_runs(inventory: Inventory) -> dict[str, list[str]]:
    """
    The runs that have living processes on nodes of the inventory; run id -> these nodes.

    Raises:
        NodesError: some nodes cannot be reached.
    """
    transport = transport_factory(inventory.transport, inventory.ssh)

    def query(node: Node) -> list[str]:
        with Endpoint.connect(transport(node), node.python) as endpoint:
            return endpoint.active_runs(node.workdir)

    nodes_of: dict[str, list[str]] = {}
    results = successes(map_parallel(inventory.nodes, query, limit=inventory.ssh.fanout))
    for node, runs in zip(inventory.nodes, results, strict=True):
        for run in runs:
            nodes_of.setdefault(run, []).append(node.name)
    return nodes_of


def _slurm_run_here(inventory: Inventory, run_id: str) -> RunTrace | None:
    """Search the workdirs on this machine, which shares them with the nodes of Slurm; other runs are on their nodes only."""
    for workdir in dict.fromkeys(node.workdir for node in inventory.nodes):
        try:
            reply = report.find({"workdir": workdir, "run": run_id, "log_bytes": 0}, b"")[0]
        except OSError:
            continue  # a folder of another user on this machine, not the nodes' workdir
        if reply["trace"] is not None and reply["trace"]["by_slurm"]:
            try:
                return RunTrace.of(reply)
            except ValueError as exc:
                raise RunNotFound(f"{workdir}/runs/{run_id}: {exc}") from exc
    return None


def _trace_on_login_node(inventory: Inventory, run_id: str, terminal: Terminal) -> RunTrace | OrchError | None:
    """Search the login node; an error if it cannot be searched, None if it does not have the run or there is no login node."""
    login = login_node(inventory.slurm.login, inventory.nodes[0], inventory.ssh)
    if login is None:
        return None
    try:
        with Endpoint.connect(transport_factory("ssh", inventory.ssh, terminal)(login), login.python) as endpoint:
            return endpoint.find(login.workdir, run_id)
    except NodeError as exc:
        return exc


def _find_on_nodes(
    inventory: Inventory, run_id: str, transport: TransportFactory, login_failures: Sequence[OrchError]
) -> tuple[LaunchPlan, Launcher]:
    """Search all nodes; the launcher takes over the connections to the nodes of the run, the others are closed."""
    results = map_parallel(inventory.nodes, lambda node: _search(node, transport, run_id), limit=inventory.ssh.fanout)
    searches = [result for result in results if isinstance(result, NodeSearch)]
    members: set[str] = set()
    try:
        plan = _plan(inventory, run_id, _newest(inventory, run_id, [*results, *login_failures]))
        members = {node.name for node in plan.nodes}
    finally:
        for search in searches:
            if search.node.name not in members:
                search.endpoint.close()
    connected = {search.node.name: search.endpoint for search in searches if search.node.name in members}
    pairs = zip(inventory.nodes, results, strict=True)
    warnings = [_missing_warning(node, run_id, result) for node, result in pairs if node.name in members]
    return replace(plan, warnings=tuple(filter(None, warnings))), DirectLauncher(plan, transport, connected)


def _search(node: Node, transport: TransportFactory, run_id: str) -> NodeSearch:
    endpoint = Endpoint.connect(transport(node), node.python)
    try:
        return NodeSearch(node, endpoint, endpoint.find(node.workdir, run_id))
    except BaseException:
        endpoint.close()
        raise


def _newest(inventory: Inventory, run_id: str, results: Sequence[NodeSearch | OrchError]) -> RunTrace:
    """The trace with the newest attempt."""
    traces = [result.trace for result in results if isinstance(result, NodeSearch) and result.trace is not None]
    folders = _folders(inventory)
    if not traces:
        hint = f"looked for in {folders}; the right inventory is the one it was launched with"
        try:
            successes(results)
        except NodesError as exc:
            exc.hint = f"no other node of {inventory.file} has the run {run_id}, {hint}"
            raise
        raise RunNotFound(f"no node of {inventory.file} has a run {run_id}", hint=hint)
    newest = max(traces, key=lambda trace: trace.attempt)
    if newest.by_slurm:
        hint = f"run this on a machine that shares {folders} with the nodes, or name one in the inventory, slurm: {{login: HOST}}"
        raise UsageError(f"run {run_id} was submitted through Slurm, and its folder is not on this machine", hint=hint)
    return newest


def _folders(inventory: Inventory) -> str:
    """The folders that are searched, as text for a message."""
    first, *rest = dict.fromkeys(f"{node.workdir}/runs" for node in inventory.nodes)
    return f"{first} and {len(rest)} more folders" if len(rest) > 1 else " and ".join([first, *rest])


def _missing_warning(node: Node, run_id: str, result: NodeSearch | OrchError) -> str:
    """The warning for a node that lacks its part of the run; empty if there is none. Readers report unreachable nodes."""
    if isinstance(result, NodeSearch):
        folder = f"{node.workdir}/runs/{run_id}"
        return "" if result.trace else f"{node.name} has no {folder}, though the run is on it: its lines are missing"
    return "" if isinstance(result, Unreachable) else str(result)


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
