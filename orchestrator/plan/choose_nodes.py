"""Which nodes of the inventory take part in a launch, and with how many ranks each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.node.number_text import counted
from orchestrator.portable.names.hostlist import fold
from orchestrator.run import Allocation, Request

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory, Node

SPARE = "spare"  # the tag of nodes that replace failed ones


@dataclass(frozen=True, slots=True)
class Chosen:
    """The nodes of a launch, with the spare ones at the end, and the number of ranks of each."""

    nodes: tuple[Node, ...]
    ranks_each: Sequence[int]
    node_count: int
    """Without the spare nodes."""
    by_count: bool
    """Slurm chooses that number of nodes among them."""
    warnings: Sequence[str]


def choose_nodes(inventory: Inventory, request: Request) -> Chosen:
    """Choose the nodes, in node order; UsageError if the inventory or the allocation has too few, or too few devices on them."""
    by_count = request.by_scheduler and request.nodes is None and request.allocation is None
    nodes, ranks_each, warnings = _select_nodes(inventory, request, by_count=by_count)
    node_count = request.shape.nodes if request.shape else len(nodes)
    if request.by_scheduler and inventory.slurm.spare_nodes:
        nodes = _with_spares(inventory, nodes, by_count=by_count)
        ranks_each += ranks_each[:1] * (len(nodes) - len(ranks_each))
    return Chosen(nodes, ranks_each, node_count, by_count, warnings)


def _select_nodes(
    inventory: Inventory, request: Request, *, by_count: bool
) -> tuple[tuple[Node, ...], list[int], tuple[str, ...]]:
    """The chosen nodes in node order, the number of ranks of each, and warnings."""
    if request.allocation is not None:
        nodes = _nodes_of_allocation(inventory, request.allocation, request.nodes)
    elif request.nodes is not None:
        nodes = tuple(inventory.select(request.nodes))
    else:
        nodes = tuple(node for node in inventory.nodes if SPARE not in node.tags)
    if not nodes:
        raise UsageError(f"{inventory.file}: every node is tagged {SPARE!r}", hint="name some with --nodes")
    if request.shape is None:
        is_default = inventory.devices is None and any(
            node.accelerator == "auto" and node.devices == 1 for node in nodes
        )
        warning = f"{inventory.file} sets neither accelerator nor devices: one rank per node, whatever cards there are"
        return nodes, [node.devices for node in nodes], (warning,) if is_default else ()
    node_count, ranks = request.shape.nodes, request.shape.ranks
    source = inventory.file if request.allocation is None else f"Slurm job {request.allocation.job}"
    if node_count > len(nodes):
        raise UsageError(
            f"-j {node_count}x{ranks} needs {counted(node_count, 'node')}; {source} has {len(nodes)}: {fold(n.name for n in nodes)}",
            hint="request fewer nodes, or add nodes to the inventory",
        )
    fitting, small = by_size(nodes, ranks)
    if node_count > len(fitting):
        remedy = "correct `devices` in the inventory"
        if not inventory.file:
            remedy = f"write an inventory.yaml with these nodes and the line `devices: {ranks}`"
        enough = f"; only {fold(node.name for node in fitting)} has as many" if fitting else ""
        raise UsageError(
            f"-j {node_count}x{ranks} needs {counted(ranks, 'device')} per node; "
            f"{small[0].name} has {counted(small[0].devices, 'device')}{enough}",
            hint=f"one rank runs on one device: lower R in -j NxR, or {remedy}",
        )
    nodes = fitting if by_count else fitting[:node_count]
    warnings = []
    if small:
        warnings.append(
            f"-j {node_count}x{ranks} leaves out {fold(node.name for node in small)}, with fewer than {ranks} devices"
        )
    if larger := next((node for node in nodes if node.devices > ranks), None):
        warnings.append(f"-j {node_count}x{ranks} uses {ranks} of {counted(larger.devices, 'device')} per node")
    return nodes, [ranks] * len(nodes), tuple(warnings)


def _nodes_of_allocation(inventory: Inventory, allocation: Allocation, names: str | None) -> tuple[Node, ...]:
    """The nodes of the inventory that the allocation has, or those in `names`, in the order of Slurm, which numbers the tasks."""
    chosen = {node.name: node for node in inventory.select(names)}
    if names is not None and (absent := chosen.keys() - set(allocation.nodes)):
        raise UsageError(
            f"--nodes: {fold(absent)} is not in the allocation of Slurm job {allocation.job}, which has {fold(allocation.nodes)}",
            hint="name nodes of the allocation, or omit --here to queue a job",
        )
    nodes = tuple(chosen[name] for name in allocation.nodes if name in chosen)
    if not nodes:
        raise UsageError(
            f"Slurm job {allocation.job} has {fold(allocation.nodes)}, and {inventory.file} has none of them",
            hint="add them to the inventory; `orch inventory import scontrol` writes one",
        )
    return nodes


def _with_spares(inventory: Inventory, chosen: Sequence[Node], *, by_count: bool) -> tuple[Node, ...]:
    """The chosen nodes and their spares: the first `slurm.spare_nodes` of the inventory, or all if Slurm chooses nodes."""
    spares = [node for node in inventory.nodes if SPARE in node.tags and node not in chosen]
    count = inventory.slurm.spare_nodes
    if by_count:
        return (*chosen, *spares)
    if len(spares) < count:
        raise UsageError(
            f"slurm.spare_nodes: {count} needed in addition to {fold(node.name for node in chosen)}; {inventory.file} tags "
            f"{len(spares)} more as spare",
            hint="add `tags: [spare]` to nodes, or let Slurm choose: without --nodes",
        )
    return (*chosen, *spares[:count])


def by_size(nodes: Sequence[Node], ranks: int) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The nodes that have a device for each of the ranks, and the others."""
    fitting = tuple(node for node in nodes if node.devices >= ranks)
    return fitting, tuple(node for node in nodes if node.devices < ranks)


def difference(values_and_nodes: Iterable[tuple[str, str]]) -> str:
    """The first two values, each with a node that has it."""
    return ", ".join(f"{node} has {value}" for value, node in list(values_and_nodes)[:2])


def unequal(nodes: Sequence[Node]) -> Iterator[Node]:
    """The first node, and the first with another number of devices."""
    yield nodes[0]
    yield next(node for node in nodes if node.devices != nodes[0].devices)
