"""The inventory that a command uses, and its forms for `orch inventory`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from orchestrator.errors import InventoryError, UsageError
from orchestrator.inventory import model as inventories
from orchestrator.inventory.model import Inventory
from orchestrator.names.hostlist import expand, fold
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


def resolved_inventory(given: str | None) -> dict[str, Any]:
    """The inventory as JSON, with patterns expanded, defaults applied and secrets hidden."""
    return inventories.inventory_json(load_inventory(given, None))


def validate_inventory(given: str | None) -> str:
    """Check the inventory; return the numbers of nodes and devices in one sentence."""
    inventory = load_inventory(given, None)
    devices = sum(node.devices for node in inventory.nodes)
    names = fold(node.name for node in inventory.nodes)
    return f"{inventory.file} is valid: {len(inventory.nodes)} nodes, {devices} devices: {names}"


def _shipped(name: str) -> Path | None:
    path = inventory_folder() / f"{name}.yaml"
    return path if "/" not in name and "." not in name and path.is_file() else None
