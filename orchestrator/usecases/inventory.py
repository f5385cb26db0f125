"""The inventory that a command uses, and its forms for `orch inventory`."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.errors import InventoryError, UsageError
from orchestrator.inventory import model as inventories
from orchestrator.inventory.model import Inventory
from orchestrator.node.number_text import counted
from orchestrator.portable.names.hostlist import expand, fold
from orchestrator.resources import inventory_folder
from orchestrator.usecases.config_file import default_inventory

DEFAULT = Path("inventory.yaml")


def load_inventory(given: str | None, names: str | None) -> Inventory:
    """
    Load the inventory given with -i, else $ORCH_INVENTORY, else ./inventory.yaml, else that of config.yaml; else make one of the node names.

    Args:
        given: a path, or the name of an inventory that orch ships, such as `local` or `h800.yaml`; a file has priority over `.yaml`.
        names: the host list after --nodes, if the command needs no inventory file for hosts of ~/.ssh/config.

    Raises:
        UsageError: there is no inventory, or it is wrong.
    """
    chosen = given or os.environ.get("ORCH_INVENTORY")
    if chosen:
        path = _shipped(chosen) or Path(chosen)
        if not path.exists() and path.name == str(path):
            name = path.stem if path.suffix == ".yaml" else path.name
            if close := difflib.get_close_matches(name, shipped_names(), n=1):
                raise InventoryError(f"{path}: No such file or directory", hint=f"did you mean {close[0]}?")
        return inventories.load(path)
    if DEFAULT.exists():
        return inventories.load(DEFAULT)
    if usual := default_inventory():
        return inventories.load(_shipped(usual) or Path(usual))
    if names is None:
        text = f"no inventory: none given with -i, ORCH_INVENTORY is not set, and there is no {Path.cwd() / DEFAULT}"
        hint = (
            "-i FILE, or -i local for two nodes on this machine, or ssh-launch --nodes n0,n1 for names of ~/.ssh/config"
        )
        raise InventoryError(text, hint=hint)
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
    node_count = counted(len(inventory.nodes), "node")
    return f"{inventory.file} is valid: {node_count}, {counted(devices, 'device')}: {names}"


def shipped_text(name: str) -> str:
    """The text of an inventory that orch ships, to begin one's own with; UsageError if there is none of this name."""
    path = _shipped(name)
    if path is None:
        raise UsageError(f"there is no shipped inventory {name!r}", hint=f"one of {', '.join(shipped_names())}")
    return path.read_text("utf-8")


def shipped_names() -> list[str]:
    """The names of the inventories that orch ships."""
    return sorted(path.stem for path in inventory_folder().glob("*.yaml"))


def import_inventory(source: str, file: Path | None) -> str:
    """The text of an inventory made from another tool's file; None reads standard input, or ~/.ssh/config. UsageError on failure."""
    from orchestrator.inventory.importing import import_hostfile, import_scontrol, import_ssh_config

    of_text: dict[str, Callable[[str, str], str]] = {"hostfile": import_hostfile, "scontrol": import_scontrol}
    if source == "ssh-config":
        return import_ssh_config((file or Path("~/.ssh/config")).expanduser())
    if source not in of_text:
        names = ", ".join(sorted([*of_text, "ssh-config"]))
        hint = f"one of {names}; from other files make lines `host slots=8`, and import them as a hostfile"
        raise UsageError(f"{source!r} cannot be imported", hint=hint)
    name = "standard input" if file is None else str(file)
    try:
        text = sys.stdin.read() if file is None else file.expanduser().read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else f"is not text in UTF-8: {exc.reason}"
        raise UsageError(f"{name}: {problem}", hint="name a readable text file") from exc
    return of_text[source](text.removeprefix("\ufeff"), name)


def _shipped(name: str) -> Path | None:
    stem = name.removesuffix(".yaml")
    path = inventory_folder() / f"{stem}.yaml"
    if "/" in name or "." in stem or (stem != name and Path(name).exists()):
        return None
    return path if path.is_file() else None
