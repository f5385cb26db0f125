"""`orch inventory show|validate|import`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from orchestrator.actions.inventory import load_inventory
from orchestrator.console import inform, print_json, print_text
from orchestrator.errors import UsageError
from orchestrator.inventory.model import inventory_json
from orchestrator.names.hostlist import fold


def show(given: str | None) -> int:
    """Print the inventory with patterns expanded, defaults applied and secrets hidden."""
    print_json(inventory_json(load_inventory(given, None)))
    return 0


def validate(given: str | None) -> int:
    """Check the inventory and print its size."""
    inventory = load_inventory(given, None)
    devices = sum(node.devices for node in inventory.nodes)
    inform(
        f"{inventory.file} is valid: {len(inventory.nodes)} nodes, {devices} devices: {fold(n.name for n in inventory.nodes)}"
    )
    return 0


def import_(source: str, file: Path | None) -> int:
    """Print an inventory made from another tool's file; `file` None reads standard input, or ~/.ssh/config."""
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
