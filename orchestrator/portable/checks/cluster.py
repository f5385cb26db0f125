"""The input of every check: the requested part of each node in a launch, and the answers of the nodes."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from orchestrator.node.cards import VISIBLE, visible_devices
from orchestrator.portable.environment.request import NodeRequest

if TYPE_CHECKING:
    from orchestrator.node.facts import Card, NodeFacts
    from orchestrator.portable.checks.container_state import ContainerState

T = TypeVar("T")
GIB = 1 << 30
MOST_NAMES = 64  # that every node resolves


def host_names(node: str, expected: NodeRequest) -> list[str]:
    """The names by which others look for the node: its name and its address, if that is a name; none for a loopback address."""
    try:
        address = ipaddress.ip_address(expected.address.partition("%")[0])
    except ValueError:
        return [] if expected.address == "localhost" else list(dict.fromkeys((node, expected.address)))
    return [] if address.is_loopback else [node]


def _of(by_node: Mapping[str, T], nodes: Sequence[str]) -> dict[str, T]:
    return {node: by_node[node] for node in nodes if node in by_node}


def nodes_to_resolve(nodes: Sequence[T], node: T) -> Sequence[T]:
    """The nodes whose names a node resolves: all of them, or of very many only the head and itself."""
    return nodes if len(nodes) <= MOST_NAMES else (nodes[0], node)


@dataclass(frozen=True)
class Rendezvous:
    """
    A test of the rendezvous: the head's address and port, and the error of each node that could not connect to it.

    `error` is the head's own failure to reserve a port; then no node tried.
    """

    head: str
    address: str
    port: int
    unreachable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    remedy: str = ""
    """The next step after this error, if it is a particular one."""


@dataclass(frozen=True)
class SharedFolder:
    """
    A test of a folder that several nodes should share: `writer` wrote a token there, and `readers` has what each node read.

    A reader's value is empty if it read the token, else the reason why not. `error` is the writer's failure.
    """

    path: str
    writer: str
    readers: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Cluster:
    """
    The nodes of one check, in node order.

    `facts` has the nodes that answered, `failures` the reason of each other one. `clocks` are the least and most seconds by which a
    node's clock may be ahead of this machine's.
    """

    expected: Mapping[str, NodeRequest]
    facts: Mapping[str, NodeFacts]
    failures: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rendezvous: Rendezvous | None = None
    shared: Sequence[SharedFolder] = ()
    containers: Mapping[str, ContainerState] = field(default_factory=dict)
    """The containers of the nodes that are entered over SSH, as far as their runtimes have answered."""
    problems: Mapping[str, Sequence[tuple[str, str, str]]] = field(default_factory=dict)
    """Kind (path, import, command, variable), name and problem of what the inventory requires on a node and is not there."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """The next step after a failure, where it has one."""
    is_job_without_gpus: bool = False
    """The nodes are those of a Slurm job that has requested no GPU."""

    def part(self, nodes: Sequence[str]) -> Cluster:
        """Some of the nodes, without the tests that take several nodes."""
        expected, facts, clocks = _of(self.expected, nodes), _of(self.facts, nodes), _of(self.clocks, nodes)
        containers, failures = _of(self.containers, nodes), _of(self.failures, nodes)
        without_gpus = self.is_job_without_gpus
        problems, hints = _of(self.problems, nodes), _of(self.hints, nodes)
        return Cluster(
            expected, facts, failures, clocks,
            containers=containers, problems=problems, hints=hints, is_job_without_gpus=without_gpus,
        )  # fmt: skip

    def recreate(self, node: str, *options: str) -> str:
        """The line that creates the node's container again with these options; empty if it has none, or its runtime takes no options."""
        state = self.containers.get(node)
        return "" if state is None or state.mounts is None else state.recreated_with(*options)

    def values(self, read: Callable[[NodeFacts], T | None]) -> dict[str, T]:
        """A value of each node that answered, without the nodes where it is None."""
        read_values = ((node, read(facts)) for node, facts in self.facts.items())
        return {node: value for node, value in read_values if value is not None}

    def uses_cards(self, node: str) -> bool:
        """Return whether the ranks of the node run on cards."""
        kind = self.expected[node].accelerator
        return kind != "cpu" and (kind != "auto" or bool(self.facts[node]["cards"]))

    def used_cards(self, node: str) -> list[Card]:
        """The cards that the ranks of the node use: those that the environment names, else the first ones."""
        expected, cards = self.expected[node], self.facts[node]["cards"]
        by_name = {name: card for card in cards for name in (str(card["index"]), card["uuid"]) if name}
        for value in filter(None, map(expected.env.get, VISIBLE.values())):
            if (visible := visible_devices(by_name, value)) is not None:
                return visible
        return cards[: expected.ranks]
