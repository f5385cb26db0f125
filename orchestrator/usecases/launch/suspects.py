"""--exclude-suspects: plan a launch without the nodes on which more runs have failed than chance explains."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory
from orchestrator.portable.names.hostlist import expand, fold
from orchestrator.portable.names.slurm_options import OPTION_OF, option_name, option_value
from orchestrator.records.cache.nodes import node_histories
from orchestrator.records.runs import home_store
from orchestrator.usecases.checks.nodes import suspicion
from orchestrator.usecases.launch_arguments import LaunchArguments


def without_suspects(
    inventory: Inventory, arguments: LaunchArguments
) -> tuple[Inventory, LaunchArguments, tuple[str, ...]]:
    """
    Remove the suspects from the inventory and from --nodes, and let Slurm not choose them; the third value has the evidence.

    Args:
        inventory: with the settings of the command line, which may exclude nodes as well.

    Raises:
        UsageError: no node is left, or the nodes are those of an allocation.
    """
    if arguments.here:
        raise UsageError(
            "--here uses the nodes of the allocation", hint="omit --exclude-suspects, or name some of them with --nodes"
        )
    kept = node_histories(home_store())
    suspects = {
        node.name: kept[node.address]
        for node in inventory.nodes
        if node.address in kept and kept[node.address].is_suspect
    }
    if not suspects:
        return inventory, arguments, ()
    nodes = tuple(node for node in inventory.nodes if node.name not in suspects)
    named = None if arguments.nodes is None else [name for name in expand(arguments.nodes) if name not in suspects]
    if not nodes or named == []:
        raise UsageError(
            f"--exclude-suspects leaves no node: {fold(suspects)} are suspects",
            hint="orch nodes shows why; omit the option to use them nevertheless",
        )
    slurm = inventory.slurm
    if arguments.by_scheduler and named is None:
        given = option_value(slurm.model_dump(mode="json"), "exclude")
        options = tuple(option for option in slurm.options if option_name(option) != OPTION_OF["exclude"])
        excluded = [*(expand(given) if given else ()), *suspects]
        slurm = slurm.model_copy(update={"exclude": ",".join(dict.fromkeys(excluded)), "options": options})
    inventory = inventory.model_copy(update={"nodes": nodes, "slurm": slurm})
    arguments = replace(arguments, nodes=None if named is None else ",".join(named))
    texts = tuple(f"--exclude-suspects: {suspicion(name, history)}" for name, history in suspects.items())
    return inventory, arguments, texts
