"""`orch inventory show|validate|new|import`."""

from __future__ import annotations

from pathlib import Path

from orchestrator.actions.inventory import resolved_inventory, shipped_text, validate_inventory
from orchestrator.cli.console import inform, print_json, print_text


def show(given: str | None) -> int:
    """Print the inventory with patterns expanded, defaults applied and secrets hidden."""
    print_json(resolved_inventory(given))
    return 0


def validate(given: str | None) -> int:
    """Check the inventory and print its size."""
    inform(validate_inventory(given))
    return 0


def new(name: str) -> int:
    """Print the text of a shipped inventory."""
    print_text(shipped_text(name))
    return 0


def import_(source: str, file: Path | None) -> int:
    """Print an inventory made from another tool's file; `file` None reads standard input, or ~/.ssh/config."""
    from orchestrator.actions.import_inventory import import_inventory  # no other command needs it

    print_text(import_inventory(source, file))
    return 0
