"""The sizes that the attempts of an elastic run may have, and the plan of a run on other nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from math import lcm
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.node.number_text import counted
from orchestrator.plan.choose_nodes import Chosen, difference, unequal
from orchestrator.plan.plan import LaunchPlan, Sizes
from orchestrator.plan.restart_settings import max_retries
from orchestrator.portable.names.hostlist import fold
from orchestrator.run import Elastic, Program, Request

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory, Node


def first_attempt(
    inventory: Inventory, request: Request, chosen: Chosen
) -> tuple[Chosen, Sizes | None, Sequence[Node]]:
    """
    The nodes of the first attempt of an elastic run, its sizes, and the chosen nodes above the most; without --elastic, all nodes.

    Raises:
        UsageError: the run is not restarted, or the chosen nodes do not fit the option.
    """
    elastic = request.elastic
    if elastic is None:
        return chosen, None, ()
    option = f"--elastic {elastic.least}:{elastic.most}"
    if not max_retries(inventory, request):
        raise UsageError(
            f"{option} needs restarts, and there are none", hint="give --max-retries N, or restart: in the inventory"
        )
    if request.shape is not None and chosen.node_count > elastic.most:
        raise UsageError(
            f"-j {request.shape.nodes}x{request.shape.ranks} needs more nodes than {option} allows",
            hint="omit -j, or raise MAX",
        )
    if chosen.node_count < elastic.least:
        names = fold(node.name for node in chosen.nodes)
        raise UsageError(
            f"{option} needs at least {counted(elastic.least, 'node')}; there are {chosen.node_count}: {names}",
            hint="lower MIN",
        )
    if len(set(chosen.ranks_each)) > 1:
        cause = difference((str(node.devices), node.name) for node in unequal(chosen.nodes))
        raise UsageError(
            f"{option} needs nodes with equal numbers of ranks: {cause}", hint="give one number with -j NxR"
        )
    count = min(chosen.node_count, elastic.most)
    unused = chosen.nodes[count:]
    chosen = replace(chosen, nodes=chosen.nodes[:count], ranks_each=chosen.ranks_each[:count], node_count=count)
    return chosen, elastic_sizes(elastic, count, chosen.ranks_each[0]), unused


def elastic_sizes(elastic: Elastic, count: int, ranks: int) -> Sizes:
    """
    The numbers of nodes, up to `count`, that keep the batch of the shared trainer; for another program, all from the least on.

    Args:
        count: the nodes of the first attempt.
        ranks: on each node.

    Raises:
        UsageError: `count` does not keep the batch, or no smaller number does.
    """
    counts = range(elastic.least, count + 1)
    micro_batch = elastic.micro_batch
    if micro_batch is None:
        return Sizes(tuple(counts))
    per_node = micro_batch * ranks
    batch = elastic.batch or per_node * count * (elastic.accumulation or 1)
    fitting = tuple(nodes for nodes in counts if batch % (per_node * nodes) == 0)
    if count not in fitting or (len(fitting) == 1 and elastic.least < count):
        nodes, remark = (count, "") if count not in fitting else (count - 1, ", and no smaller number of nodes fits")
        raise UsageError(
            f"--elastic {elastic.least}:{elastic.most}: the batch of {batch} samples per step is no multiple of "
            f"micro_batch={micro_batch} x {nodes * ranks} ranks on {nodes} nodes = {per_node * nodes}{remark}",
            hint=f"choose a batch that all sizes divide, such as batch={per_node * lcm(*counts)}, or a smaller micro_batch",
        )
    return Sizes(fitting, micro_batch, batch)


def without_nodes(plan: LaunchPlan, names: Collection[str]) -> LaunchPlan | None:
    """The plan of an elastic run that begins without these nodes; None if too few are left, or the run is not elastic."""
    left = [node.name for node in plan.nodes if node.name not in names]
    count = max((count for count in plan.sizes.counts if count <= len(left)), default=0) if plan.sizes else 0
    return on_nodes(plan, left[:count]) if count else None


def on_nodes(plan: LaunchPlan, names: Collection[str]) -> LaunchPlan:
    """
    The plan on these nodes, which are among its nodes, its spare nodes and the replaced ones.

    A node that is new takes the place and the ranks of one that is left out. If the number of nodes changes, the ranks are renumbered
    in the same order of nodes.
    """
    available = {node.name: node for node in (*plan.spares, *plan.replaced)}
    incoming = iter([available[name] for name in names if name in available])
    kept_or_new = [node if node.name in names else next(incoming, None) for node in plan.nodes]
    chosen = [node for node in (*kept_or_new, *incoming) if node is not None]
    counts = [len(node.ranks) for node in plan.nodes]
    counts += counts[:1] * (len(chosen) - len(counts))  # an elastic run has equal nodes
    firsts = [0, *accumulate(counts)]
    nodes = tuple(
        replace(node, node_rank=rank, ranks=range(firsts[rank], firsts[rank + 1])) for rank, node in enumerate(chosen)
    )
    left_out = tuple(node for node in plan.nodes if node.name not in names)
    return replace(
        plan,
        nodes=nodes,
        node_count=len(nodes),
        world_size=firsts[len(nodes)],
        program=_resized(plan, firsts[len(nodes)]),
        spares=tuple(node for node in plan.spares if node.name not in names),
        replaced=(*(node for node in plan.replaced if node.name not in names), *left_out),
    )


def _resized(plan: LaunchPlan, world_size: int) -> Program:
    """The program with the settings that keep its batch with another number of ranks."""
    if plan.sizes is None or world_size == plan.world_size:
        return plan.program
    settings = plan.sizes.settings(world_size)
    words = [word for word in plan.program.args if not settings or word.partition("=")[0] not in settings]
    return replace(plan.program, args=(*words, *(f"{name}={value}" for name, value in settings.items())))
