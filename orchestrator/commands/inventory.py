"""`orch inventory show|validate|import`, and which inventory a command uses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from orchestrator.console import print_json, print_text, say
from orchestrator.errors import InventoryError, UsageError
from orchestrator.inventory import model as inventories
from orchestrator.inventory.model import Inventory
from orchestrator.names.hostlist import expand, fold
from orchestrator.resources import inventory_folder

DEFAULT = Path("inventory.yaml")


def load_inventory(given: str | None, names: str | None) -> Inventory:
    """
    The inventory: as given, else $ORCH_INVENTORY, else ./inventory.yaml, else made of the node names alone.

    Args:
        given: a path, or the bare name of an inventory that orch ships, as in `local`.
        names: the host list after --nodes, where ~/.ssh/config may stand in for an inventory.

    Raises:
        UsageError: there is none, or it is wrong.
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


def show(given: str | None) -> int:
    """Print the inventory as orch understands it: patterns expanded, defaults applied, secrets hidden."""
    print_json(inventories.describe(load_inventory(given, None)))
    return 0


def validate(given: str | None) -> int:
    """Check it, and say what it holds."""
    inventory = load_inventory(given, None)
    devices = sum(node.devices for node in inventory.nodes)
    say(
        f"{inventory.file} is valid: {len(inventory.nodes)} nodes, {devices} devices: {fold(n.name for n in inventory.nodes)}"
    )
    return 0


def import_(source: str, file: Path | None) -> int:
    """Print an inventory made from what a site already has; `file` None reads standard input, or ~/.ssh/config."""
    from orchestrator.inventory import importing  # noqa: PLC0415  no other command needs it

    readers: dict[str, Callable[[str], str]] = {
        "hostfile": importing.import_hostfile,
        "scontrol": importing.import_scontrol,
    }
    if source == "ssh-config":
        print_text(importing.import_ssh_config((file or Path("~/.ssh/config")).expanduser()))
    elif source in readers:
        print_text(readers[source](_text_of(file)))
    else:
        raise UsageError(f"{source!r} cannot be imported", hint=f"one of {', '.join(sorted([*readers, 'ssh-config']))}")
    return 0


def _text_of(file: Path | None) -> str:
    try:
        return sys.stdin.read() if file is None else file.expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{file}: {exc}", hint="name a readable text file") from exc
