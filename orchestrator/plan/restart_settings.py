"""How often a run is restarted, on which other nodes, and how far a restart is prepared. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.plan.choose_nodes import SPARE, Chosen
from orchestrator.plan.node_plans import assign_ranks, with_debugging
from orchestrator.plan.plan import NodePlan
from orchestrator.run import Request

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory, Node

SLURM_RETRIES = 100  # by default: an unattended job restarts as long as it makes progress


def max_retries(inventory: Inventory, request: Request) -> int:
    """By the command line, else the inventory, where `slurm:` wins for a Slurm job."""
    by_scheduler = request.by_scheduler
    settings = (
        request.max_retries,
        inventory.slurm.max_retries if by_scheduler else None,
        inventory.restart.max_retries,
    )
    return next((value for value in settings if value is not None), SLURM_RETRIES if by_scheduler else 0)


def is_warm(inventory: Inventory, request: Request) -> bool:
    """For a training of the shared trainer that may be restarted over SSH, unless lines of shell start its agents."""
    may_restart = not request.by_scheduler and max_retries(inventory, request) > 0
    is_training = request.program.kind == "trainer" and request.program.module == "trainer"
    return inventory.restart.warm and may_restart and is_training and not inventory.setup


def spares(inventory: Inventory, request: Request, chosen: Chosen, unused: Sequence[Node]) -> tuple[NodePlan, ...]:
    """The nodes that may replace others over SSH: `unused` and tagged as spare, of the same kind, and with a device for each rank."""
    if request.by_scheduler or not max_retries(inventory, request):
        return ()
    kinds, most = {node.accelerator for node in chosen.nodes}, max(chosen.ranks_each)
    tagged = [node for node in inventory.nodes if SPARE in node.tags and node not in (*chosen.nodes, *unused)]
    able = [node for node in (*unused, *tagged) if node.accelerator in kinds and node.devices >= most]
    nodes = assign_ranks(inventory, able, [0] * len(able), request.variables)
    return with_debugging(nodes, able)[0] if request.debug else nodes


def restart_warnings(request: Request) -> Iterator[str]:
    """Warn if the user requests restarts of a program whose steps are not counted."""
    program = request.program
    if not request.max_retries or program.kind == "trainer" or program.is_prepared:
        return
    name = f"{program.args[0]}{' with --bare' if program.bare else ''}"
    yield (
        f"--max-retries {request.max_retries}: steps of {name} are not counted, so it is restarted only after exit code 99, after the loss of a "
        "node, or if it reports its steps (`from orch_progress import report`)"
    )
