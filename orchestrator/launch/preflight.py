"""Query nodes for the quick checks: all at the same time, each with a deadline, over connections that the caller makes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from orchestrator.endpoint.connection import ANSWER_S
from orchestrator.errors import LaunchError, NodeError, OrchError
from orchestrator.fanout import map_within
from orchestrator.launchers.rendezvous import INTERFACES, check_reachable, parse_rendezvous
from orchestrator.node.rendezvous import is_loopback
from orchestrator.portable.checks.cluster import Cluster, Rendezvous, SharedFolder, host_names, nodes_to_resolve
from orchestrator.portable.environment.discovery import discover
from orchestrator.portable.environment.request import NodeRequest

if TYPE_CHECKING:
    from orchestrator.endpoint.client import Endpoint
    from orchestrator.node.facts import NodeFacts
    from orchestrator.plan.plan import LaunchPlan, NodePlan
    from orchestrator.portable.checks.container_state import ContainerState

REQUIRED_S = 60.0  # for each module and command: torch on a cold file server takes half a minute
FACTS_S, PORT_S, TOKEN_S = 20.0, 4.0, 1.0  # at most 29 s in all with two folders, whatever a connected node does
LOOPBACK = "127.0.0.1"
# File systems of a server, which several machines mount; one of another type, such as 9p or virtiofs, may belong to one machine.
NETWORK_TYPES = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "glusterfs", "fuse.glusterfs", "fuse.juicefs")
)


@dataclass(frozen=True, slots=True)
class CheckedNode:
    """A node, the part of the inventory on it, and the folders of runs by their use."""

    name: str
    expected: NodeRequest
    folders: Mapping[str, str]
    required: Mapping[str, Sequence[str]] = field(default_factory=dict)
    setup: Sequence[str] = ()

    @property
    def required_s(self) -> float:
        """The longest time that the test of what it requires takes."""
        return REQUIRED_S * sum(len(self.required.get(kind, ())) for kind in ("imports", "commands"))


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The facts of a node, the least and the most seconds by which its clock is ahead of this machine's, its container, and what it lacks."""

    facts: NodeFacts
    ahead_s: tuple[float, float]
    container: ContainerState | None
    problems: Sequence[tuple[str, str, str]]


Reach = Callable[[str], "Endpoint"]
"""Returns the connection to a node, by name, and makes it if necessary; NodeError if that fails."""


def checked_nodes(plan: LaunchPlan, *, is_program_known: bool = True) -> tuple[CheckedNode, ...]:
    needs_torch = plan.program.kind == "trainer" if is_program_known else None

    def checked(node: NodePlan) -> CheckedNode:
        address = LOOPBACK if plan.transport == "local" else node.address
        kinds = node.accelerator, node.network
        expected = NodeRequest(
            address, len(node.ranks), *kinds, node.env, node.secrets, needs_torch, has_setup=bool(plan.setup)
        )
        folders = {"workdir": node.workdir}
        if out is not None and 0 in node.ranks:
            folders["out"] = out
        return CheckedNode(node.name, expected, folders, plan.required, plan.setup)

    out = plan.checkpoint_folder
    return tuple(map(checked, plan.nodes))


def survey(
    nodes: Sequence[CheckedNode],
    reach: Reach,
    *,
    code: str | None = None,
    all_names: bool = True,
    known: Mapping[str, NodeFacts] = MappingProxyType({}),
    busy_s: float = 0.0,
) -> Cluster:
    """
    Query all nodes, those on one machine by the first of them. A node that fails or is too slow is among the cluster's failures.

    Args:
        code: the folder on the nodes that has the code.
        all_names: resolve also the names of nodes whose addresses in the inventory are others, which no launch uses.
        known: facts of nodes that are not queried.
        busy_s: the time for which the connections may be used for something else, in addition to the deadlines.
    """
    machines = _machines([node for node in nodes if node.name not in known], reach)
    queried = [machine[0] for machine in machines]
    wait_s = FACTS_S + busy_s + max((node.required_s for node in queried), default=0.0)
    answers, failures = _facts(queried, reach, code, all_names=all_names, wait_s=wait_s)
    if code is not None:
        answers = _without_changing_code(answers, queried, reach, code, wait_s=wait_s)
    found = {**known, **{name: answer.facts for name, answer in answers.items()}}
    cluster = Cluster(
        expected={node.name: node.expected for node in nodes if node in queried or node.name in known},
        facts={node.name: found[node.name] for node in nodes if node.name in found},
        failures={name: _reason(error, wait_s) for name, error in failures.items()},
        hints={name: error.hint for name, error in failures.items() if error is not None and error.hint},
        clocks={name: answer.ahead_s for name, answer in answers.items()},
        containers={name: answer.container for name, answer in answers.items() if answer.container is not None},
        problems={name: answer.problems for name, answer in answers.items() if answer.problems},
    )
    if answers:
        cluster = replace(
            cluster, rendezvous=_rendezvous(cluster, reach, busy_s), shared=_shared(cluster, reach, busy_s)
        )
    return _with_all(cluster, nodes, machines)


def _machines(nodes: Sequence[CheckedNode], reach: Reach) -> list[list[CheckedNode]]:
    """
    The nodes by machine, network namespace, container, user, Python and folders: loopback addresses have the same facts then.

    Nodes at other addresses stay alone: there, several on one machine are containers, or a mistake that a check must find.
    """
    groups: dict[object, list[CheckedNode]] = {}
    for node in nodes:
        key: object = node.name
        if is_loopback(node.expected.address):
            with suppress(OrchError):  # `_facts` reports it
                endpoint = reach(node.name)
                facts = endpoint.facts
                key = facts.host_id, endpoint.container, facts.user, facts.python, *sorted(node.folders.items())
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def _with_all(cluster: Cluster, nodes: Sequence[CheckedNode], machines: Sequence[Sequence[CheckedNode]]) -> Cluster:
    """The cluster with all nodes: those that were not queried have the answer of the first node on their machine."""
    first = {node.name: machine[0].name for machine in machines for node in machine}
    origin = {node.name: first.get(node.name, node.name) for node in nodes}
    facts = {name: cluster.facts[source] for name, source in origin.items() if source in cluster.facts}
    return replace(
        cluster,
        expected={node.name: node.expected for node in nodes},
        facts={
            name: of_first if name == origin[name] else {**of_first, "node": name} for name, of_first in facts.items()
        },
        failures={name: cluster.failures[source] for name, source in origin.items() if source in cluster.failures},
        hints={name: cluster.hints[source] for name, source in origin.items() if source in cluster.hints},
        clocks={name: cluster.clocks[source] for name, source in origin.items() if source in cluster.clocks},
        problems={name: cluster.problems[source] for name, source in origin.items() if source in cluster.problems},
        containers={
            name: cluster.containers[source] for name, source in origin.items() if source in cluster.containers
        },
    )


def _facts(
    nodes: Sequence[CheckedNode], reach: Reach, code: str | None, *, all_names: bool, wait_s: float
) -> tuple[dict[str, NodeAnswer], dict[str, OrchError | None]]:
    """The answers of the nodes that answer in time, and the errors of the others; None for one that is late."""
    names, addresses = [node.name for node in nodes], {node.expected.address for node in nodes}

    def query(node: CheckedNode) -> NodeAnswer:
        endpoint = reach(node.name)
        ahead_s = endpoint.clock_ahead(wait_s=FACTS_S)
        resolved = nodes_to_resolve(nodes, node)
        hosts = [host for named in resolved for host in host_names(named.name, named.expected)]
        wanted = hosts if all_names else [host for host in hosts if host in addresses]
        facts = endpoint.probe(wanted, node.folders, code, wait_s=FACTS_S)
        return NodeAnswer(facts, ahead_s, endpoint.container_state(), _problems(endpoint, node))

    answers: dict[str, NodeAnswer] = {}
    failures: dict[str, OrchError | None] = {}
    results = map_within(nodes, query, limit=max(1, len(nodes)), wait_s=wait_s)
    for name, result in zip(names, results, strict=True):
        if isinstance(result, NodeAnswer):
            answers[name] = result
        else:
            failures[name] = result
    return answers, failures


def _problems(endpoint: Endpoint, node: CheckedNode) -> list[tuple[str, str, str]]:
    """Everything that the inventory requires and the node lacks; of variables whose value is a path, those that name none."""
    env = node.expected.env
    variables = {name: value for name, value in env.items() if value.startswith("/") and not set(value) & set(":,; ")}
    public = {name: value for name, value in variables.items() if name not in node.expected.private}
    required = node.required.get("paths", ())
    paths = [*required, *(path for path in dict.fromkeys(public.values()) if path not in required)]
    if not paths and not any(node.required.values()):
        return []
    found = endpoint.problems({**node.required, "paths": paths}, env, node.setup, each_s=REQUIRED_S)
    absent = {path: problem for kind, path, problem in found if kind == "path"}
    named = [("variable", f"{name}={value}", absent[value]) for name, value in public.items() if value in absent]
    return [*(entry for entry in found if entry[0] != "path" or entry[1] in required), *named]


def _without_changing_code(
    answers: Mapping[str, NodeAnswer], nodes: Sequence[CheckedNode], reach: Reach, code: str, *, wait_s: float
) -> dict[str, NodeAnswer]:
    """
    The answers without the digest of code that changes while it is read: a program that writes to the folder is no difference.

    If digests differ, they are read a second time: of one folder that several nodes see, the first reading was at different times.
    """
    first = {name: entry["digest"] for name, answer in answers.items() if (entry := answer.facts["code"])}
    if len({*first.values()} - {None}) <= 1:  # equal on all nodes
        return dict(answers)
    second_answers, _ = _facts(
        [replace(node, required={}) for node in nodes if node.name in first],
        reach,
        code,
        all_names=False,
        wait_s=wait_s,
    )
    second = {name: entry["digest"] for name, answer in second_answers.items() if (entry := answer.facts["code"])}

    def settled(name: str, answer: NodeAnswer) -> NodeAnswer:
        entry = answer.facts["code"]
        if entry is None or first[name] == second.get(name):
            return answer
        return replace(answer, facts={**answer.facts, "code": {**entry, "digest": None}})

    return {name: settled(name, answer) for name, answer in answers.items()}


def _reason(error: OrchError | None, wait_s: float) -> str:
    """The reason of a request that failed, without the node's name; None is one that is not answered yet."""
    if error is None:
        return f"no answer for {wait_s:g} s"
    return error.reason if isinstance(error, NodeError) else str(error)


def _answer_s(least_s: float, busy_s: float) -> float:
    """The deadline of a request: a late answer closes the connection, and with it what a busy connection is used for."""
    return max(least_s, ANSWER_S) if busy_s else least_s


def _rendezvous(cluster: Cluster, reach: Reach, busy_s: float) -> Rendezvous | None:
    """Listen on a port of the head, and let all other nodes connect to it; None if the head has not answered, or has no peers."""
    head, expected = next(iter(cluster.expected.items()))
    peers = [name for name in cluster.facts if name != head]
    if head not in cluster.facts or not peers:
        return None
    hosts = _host_ids(cluster.facts, reach)
    if is_loopback(expected.address) and len(set(hosts.values())) == 1:
        return None
    env = {**discover(cluster.facts, cluster.expected).environment(head), **expected.env}  # as the launch will have it
    interfaces = {name: env[name] for name in INTERFACES if name in env}
    wait_s = _answer_s(PORT_S, busy_s)
    try:
        record = parse_rendezvous(reach(head).listen([expected.address], interfaces, wait_s=wait_s))
        check_reachable(record, head, hosts)
    except NodeError as error:
        return Rendezvous(head, expected.address, 0, error=error.reason)
    except LaunchError as error:
        with suppress(NodeError):
            reach(head).stop_listening(wait_s=wait_s)
        return Rendezvous(head, expected.address, 0, error=str(error), remedy=error.hint)

    def connect(name: str) -> str:
        return reach(name).connect_error(record.address, record.port)

    results = map_within(peers, connect, limit=len(peers), wait_s=PORT_S + busy_s)
    with suppress(NodeError):  # then the endpoint has ended, and with it the port
        reach(head).stop_listening(wait_s=wait_s)
    reasons = (result if isinstance(result, str) else _reason(result, PORT_S) for result in results)
    unreachable = {name: reason for name, reason in zip(peers, reasons, strict=True) if reason}
    return Rendezvous(head, record.address, record.port, unreachable)


def _host_ids(names: Iterable[str], reach: Reach) -> dict[str, str]:
    """The machine of each node whose connection is up."""
    hosts = {}
    for name in names:
        with suppress(NodeError):
            hosts[name] = reach(name).facts.host_id
    return hosts


def _shared(cluster: Cluster, reach: Reach, busy_s: float) -> list[SharedFolder]:
    """Test each workdir that is on a network file system on most of the nodes that have it."""
    nodes_of: dict[str, list[str]] = {}
    networked: dict[str, list[str]] = {}
    for name, facts in cluster.facts.items():
        for disk in facts["disks"]:
            if disk["use"] == "workdir":
                nodes_of.setdefault(disk["path"], []).append(name)
                if disk["type"] in NETWORK_TYPES:
                    networked.setdefault(disk["path"], []).append(name)
    return [
        _share(path, names[0], [name for name in nodes_of[path] if name != names[0]], reach, busy_s=busy_s)
        for path, names in networked.items()
        if len(nodes_of[path]) > 1 and 2 * len(names) > len(nodes_of[path])
    ]


def _share(path: str, writer: str, readers: Sequence[str], reach: Reach, *, busy_s: float) -> SharedFolder:
    token, wait_s = secrets.token_hex(16), _answer_s(TOKEN_S, busy_s)
    try:
        file = reach(writer).write_marker(path, token, wait_s=wait_s)
    except NodeError as error:
        return SharedFolder(path, writer, error=error.reason)

    def find(name: str) -> str:
        return "" if reach(name).find_marker(file, wait_s=wait_s) == token else "it has another content"

    results = map_within(readers, find, limit=max(1, len(readers)), wait_s=TOKEN_S + busy_s)
    with suppress(NodeError):
        reach(writer).remove_marker(file, wait_s=wait_s)
    reasons = (result if isinstance(result, str) else _reason(result, TOKEN_S) for result in results)
    return SharedFolder(path, writer, dict(zip(readers, reasons, strict=True)))
