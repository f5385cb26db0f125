"""The inventory that a command uses."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.errors import InventoryError, UsageError
from orchestrator.inventory import model as inventories
from orchestrator.inventory.model import Inventory
from orchestrator.names.hostlist import expand
from orchestrator.resources import inventory_folder

DEFAULT = Path("inventory.yaml")


def load_inventory(given: str | None, names: str | None) -> Inventory:
    """
    Load the inventory given with -i, else $ORCH_INVENTORY, else ./inventory.yaml; else make one of the node names.

    Args:
        given: a path, or the bare name of an inventory that orch ships, such as `local`.
        names: the host list after --nodes, if the command needs no inventory file for hosts of ~/.ssh/config.

    Raises:
        UsageError: there is no inventory, or it is wrong.
    """
    chosen = given or os.environ.get("ORCH_INVENTORY")
    if chosen:
        return inventories.load(_shipped(chosen) or Path(chosen))
    if DEFAULT.exists():
        return inventories.load(DEFAULT)
    if names is None:
        raise InventoryError(
            f"no inventory: none given with -i, ORCH_INVENTORY is not set, and there is no {Path.cwd() / DEFAULT}",
            hint="-i FILE, or -i local for two nodes on this machine, or ssh-launch --nodes n0,n1 for names of ~/.ssh/config",
        )
    try:
        return inventories.from_names(expand(names))
    except ValueError as exc:
        raise UsageError(f"--nodes {names}: {exc}", hint="as in --nodes n0,n1 or --nodes 'n[0-3]'") from exc


def _shipped(name: str) -> Path | None:
    path = inventory_folder() / f"{name}.yaml"
    return path if "/" not in name and "." not in name and path.is_file() else None
