"""The settings of a Slurm job that follow from the inventory and the request, and the nodes that a job cannot have. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.plan.choose_nodes import Chosen, by_size, difference, unequal
from orchestrator.portable.names.hostlist import expand, fold
from orchestrator.portable.names.slurm_options import OPTION_OF, has_count, option_name, option_value, warn_s
from orchestrator.run import Request

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory


def slurm_settings(inventory: Inventory, request: Request, *, by_count: bool) -> dict[str, Any]:
    """The `slurm:` section, and what follows from it and from the request."""
    slurm = inventory.slurm.model_dump(mode="json")
    small = by_size(inventory.nodes, request.shape.ranks)[1] if by_count and request.shape is not None else ()
    if small:  # Slurm, which chooses the nodes, does not know how many devices they have
        given = option_value(slurm, "exclude")
        slurm["exclude"] = fold({*(expand(given) if given else ()), *(node.name for node in small)})
        slurm["options"] = [option for option in slurm["options"] if option_name(option) != OPTION_OF["exclude"]]
    if request.allocation is not None:
        slurm["allocation"] = request.allocation.job
    return {**slurm, "warn_s": warn_s(slurm), "is_warn_s_given": slurm["warn_s"] is not None}


def is_checked_in_job(inventory: Inventory, request: Request) -> bool:
    """
    For every Slurm job, unless its nodes cannot be checked.

    A custom template has its own commands. Pyxis would create the container twice. A step of another job has no batch script.
    """
    if not request.by_scheduler or request.no_check or request.allocation is not None:
        return False
    container = inventory.slurm.container
    return inventory.slurm.template is None and (container is None or container.runtime != "pyxis")


def refuse_containers(inventory: Inventory, chosen: Chosen) -> None:
    """UsageError for nodes with a `container:`, which is entered over SSH: a job starts its ranks in an image."""
    if name := next((node.name for node in chosen.nodes if node.container is not None), ""):
        raise UsageError(
            f"{name}: container: is entered over SSH, and a job of Slurm does not enter it",
            hint=f"write the image in slurm.container of {inventory.file or 'the inventory'} for jobs, or start it with orch ssh-launch",
        )


def refuse_unequal_nodes(inventory: Inventory, chosen: Chosen) -> None:
    """UsageError for nodes of one job that differ in workdir or Python, of which the batch script names one, or in their ranks."""
    for field in ("workdir", "python"):
        node_by_value = {str(getattr(node, field)): node.name for node in chosen.nodes}
        if len(node_by_value) > 1:
            raise UsageError(
                f"nodes differ in {field}: {difference(node_by_value.items())}; under Slurm all nodes need the same",
                hint=f"set {field} once in `defaults:`, or choose equal nodes with --nodes",
            )
    if len(set(chosen.ranks_each)) == 1:
        return
    cause = f"nodes differ in devices: {difference((str(node.devices), node.name) for node in unequal(chosen.nodes))}"
    if chosen.by_count:
        raise UsageError(
            f"{cause}; Slurm chooses the nodes, so all need the same number of ranks",
            hint="name the nodes with --nodes, or give one number of ranks with -j NxR",
        )
    if inventory.slurm.spare_nodes:
        raise UsageError(
            f"{cause}; a spare node can only replace an equal one",
            hint="give one number of ranks with -j NxR, or --set slurm.spare_nodes=0",
        )
    gres = next((gres for gres in (inventory.slurm.gres or "").split(",") if gres and not has_count(gres)), None)
    if gres is not None:
        raise UsageError(
            f"{cause}; slurm.gres: {gres} requests one per rank, and a job requests the same of each node",
            hint=f"give one number of ranks with -j NxR, or a count that each node has: --set slurm.gres={gres}:N",
        )


def expanded_workdir(path: str, home: str | None, user: str | None, inventory: Inventory) -> str:
    """The workdir with home folder and user's name, where known; UsageError if one is left that may be another in the container."""
    if home is not None and path.startswith("~/"):
        path = f"{home}/{path[2:]}"
    parts = [user if user is not None and part == "$USER" else part for part in path.split("/")]
    if inventory.slurm.container is not None and (parts[0] == "~" or "$USER" in parts):
        hint = "write workdir as an absolute path on the login node, without variables"
        raise UsageError(
            f"workdir {path}: in a container ~ and $USER may be others than on {inventory.slurm.login}", hint=hint
        )
    return "/".join(parts)
