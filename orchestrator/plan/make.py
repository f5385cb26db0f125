"""From inventory and request to a LaunchPlan, without touching anything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.names.hostlist import fold
from orchestrator.names.slurm_options import warn_s
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.run import Request

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory, Node


SPARE = "spare"


def make_plan(
    inventory: Inventory, request: Request, *, run_id: str, bundle: str, home: str | None = None
) -> LaunchPlan:
    """
    Decide everything about a launch.

    Args:
        bundle: digest of the bundle that the nodes need.
        home: the user's home where sbatch is run, for a "~/" that an image might take for another one; None if not known here.

    Raises:
        UsageError: the request does not fit the inventory.
    """
    chosen, ranks_each, warnings = _choose(inventory, request)
    by_count = request.launcher == "slurm" and request.nodes is None
    node_count = request.shape.nodes if request.shape and by_count else len(chosen)
    if request.launcher == "slurm" and inventory.slurm.spare_nodes:
        chosen = _with_spares(inventory, chosen, by_count=by_count)
        ranks_each += ranks_each[:1] * (len(chosen) - len(ranks_each))
    nodes = numbered(inventory, chosen, ranks_each)
    if request.launcher == "slurm":
        _agree_for_slurm(chosen)
        nodes = tuple(replace(node, workdir=_absolute(node.workdir, home, inventory)) for node in nodes)
    slurm = inventory.slurm.model_dump(mode="json")
    device = _device(request, chosen)
    return LaunchPlan(
        run_id=run_id,
        attempt=1,
        launcher=request.launcher,
        transport=inventory.transport,
        name=inventory.name,
        nodes=nodes,
        node_count=node_count,
        spare_count=inventory.slurm.spare_nodes if request.launcher == "slurm" else 0,
        world_size=sum(ranks_each[:node_count]),
        by_count=by_count,
        program=request.program,
        config=request.config,
        device=device,
        bundle=bundle,
        ssh=inventory.ssh.model_dump(mode="json"),
        slurm={**slurm, "warn_s": warn_s(slurm)},
        orphan_timeout_s=request.orphan_timeout_s,
        isolation_timeout_s=None if request.launcher == "slurm" else request.isolation_timeout_s,
        warnings=(*warnings, *_about_env(inventory, chosen)),
    )


def _about_env(inventory: Inventory, nodes: Sequence[Node]) -> Iterator[str]:
    """Warn of variables that do more than they seem to."""
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        if having := [node.name for node in nodes if name in inventory.environment(node)]:
            yield f"env: {name} on {fold(having)} loads code into every program there, the agent included"
    if inventory.file in inventory.private_files:
        yield f"{inventory.file} holds secrets, so it does not travel with the code; env_file: is the place for them"


def _choose(inventory: Inventory, request: Request) -> tuple[tuple[Node, ...], list[int], tuple[str, ...]]:
    """The nodes in node order, how many ranks each of them gets, and what to warn about."""
    if request.nodes is not None:
        nodes = tuple(inventory.select(request.nodes))
    else:
        nodes = tuple(node for node in inventory.nodes if SPARE not in node.tags)
    if not nodes:
        raise UsageError(f"{inventory.file}: every node is tagged {SPARE!r}", hint="name some with --nodes")
    if request.shape is None:
        return nodes, [node.devices for node in nodes], _unknown_devices(inventory, nodes)
    wanted, ranks = request.shape.nodes, request.shape.ranks
    if wanted > len(nodes):
        raise UsageError(
            f"-j {wanted}x{ranks} needs {wanted} nodes; {inventory.file} has {len(nodes)}: {fold(n.name for n in nodes)}",
            hint="ask for fewer nodes, or add nodes to the inventory",
        )
    if request.launcher == "ssh":
        nodes = nodes[:wanted]
    short = [node for node in nodes if node.devices < ranks]
    if short:
        raise UsageError(
            f"-j {wanted}x{ranks} asks for {ranks} ranks a node; {short[0].name} has {short[0].devices} devices",
            hint="one rank runs on one device: lower R in -j NxR, or correct `devices` in the inventory",
        )
    idle = [node for node in nodes if node.devices > ranks]
    warnings = (f"{ranks} of {idle[0].devices} devices a node are used: -j {wanted}x{ranks} asks so",) if idle else ()
    return nodes, [ranks] * len(nodes), warnings


def _with_spares(inventory: Inventory, chosen: Sequence[Node], *, by_count: bool) -> tuple[Node, ...]:
    """The chosen nodes and those that may replace one: by name as many as are wanted, else whatever Slurm may take."""
    others = [node for node in inventory.nodes if SPARE in node.tags and node not in chosen]
    wanted = inventory.slurm.spare_nodes
    if by_count:
        return (*chosen, *others)
    if len(others) < wanted:
        raise UsageError(
            f"slurm.spare_nodes: {wanted} are asked for beside {fold(node.name for node in chosen)}; {inventory.file} tags "
            f"{len(others)} more as spare",
            hint="add `tags: [spare]` to nodes, or let Slurm choose: without --nodes",
        )
    return (*chosen, *others[:wanted])


def _device(request: Request, nodes: Sequence[Node]) -> str | None:
    """The accelerator that the nodes have in the inventory, for the shared trainer; None where it says none, or the user does."""
    if request.program.kind != "trainer":
        return None
    settings = {word.partition("=")[0] for word in request.program.args} | set(json.loads(request.config or "{}"))
    if "device" in settings:
        return None
    named = {node.accelerator: node.name for node in nodes if node.accelerator != "auto"}
    if len(named) > 1:
        one, other = list(named.items())[:2]
        raise UsageError(
            f"nodes differ in accelerator: {one[1]} has {one[0]}, {other[1]} has {other[0]}; one training runs on one kind",
            hint="choose nodes that agree with --nodes, or say device=",
        )
    return next(iter(named), None)


def _unknown_devices(inventory: Inventory, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Warn where a default of one rank a node may leave cards idle."""
    if inventory.devices is None and any(node.accelerator == "auto" and node.devices == 1 for node in nodes):
        return (f"{inventory.file} says neither accelerator nor devices: one rank a node, whatever cards there are",)
    return ()


def _absolute(path: str, home: str | None, inventory: Inventory) -> str:
    if not path.startswith("~/"):
        return path
    if home is None and inventory.slurm.container is not None:
        hint = "write workdir as it is on the login node, from / on"
        raise UsageError(
            f"workdir {path}: in a container ~ may be another home than on {inventory.slurm.login}", hint=hint
        )
    return path if home is None else f"{home}/{path[2:]}"


def _agree_for_slurm(nodes: Sequence[Node]) -> None:
    """One batch script serves all nodes, so what it names must be the same on all of them."""
    for field in ("workdir", "python", "devices"):
        values = {str(getattr(node, field)): node.name for node in nodes}
        if len(values) > 1:
            one, other = list(values.items())[:2]
            raise UsageError(
                f"nodes differ in {field}: {one[1]} has {one[0]}, {other[1]} has {other[0]}; under Slurm it must be one",
                hint=f"set {field} once in `defaults:`, or choose nodes that agree with --nodes",
            )


def numbered(inventory: Inventory, nodes: Sequence[Node], ranks_each: Sequence[int]) -> tuple[NodePlan, ...]:
    """Give every node its global ranks, contiguous from 0 in node order."""
    firsts = accumulate(ranks_each, initial=0)
    return tuple(
        NodePlan(
            name=node.name,
            address=node.address,
            node_rank=node_rank,
            ranks=range(first, first + count),
            env=inventory.environment(node),
            user=node.user,
            port=node.port,
            python=node.python,
            workdir=node.workdir,
            is_spare=SPARE in node.tags,
            secrets=inventory.secret_names(node),
        )
        for node_rank, (node, count, first) in enumerate(zip(nodes, ranks_each, firsts, strict=False))
    )
