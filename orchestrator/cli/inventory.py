"""`orch inventory show|validate|new|import`."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import inform, print_json, print_text
from orchestrator.cli.groups import Group


@click.group(cls=Group)
def inventory() -> None:
    """Show, check or make an inventory file."""


@inventory.command()
@options.inventory
def show(inventory: str | None) -> int:
    """Print the inventory as JSON, with patterns expanded and defaults applied."""
    from orchestrator.usecases.inventory import resolved_inventory

    print_json(resolved_inventory(inventory))
    return 0


@inventory.command()
@options.inventory
def validate(inventory: str | None) -> int:
    """Check the inventory."""
    from orchestrator.usecases.inventory import validate_inventory

    inform(validate_inventory(inventory))
    return 0


@inventory.command()
@click.argument("name", shell_complete=completion.shipped_inventories)
def new(name: str) -> int:
    """Print a shipped inventory, to begin one of yours: orch inventory new h800 > inventory.yaml."""
    from orchestrator.usecases.inventory import shipped_text

    print_text(shipped_text(name))
    return 0


@inventory.command("import")
@click.argument(
    "source",
    metavar="hostfile|ssh-config|scontrol",
    shell_complete=completion.words("hostfile", "ssh-config", "scontrol"),
)
@click.argument("file", type=options.PATH, required=False)
def import_(source: str, file: Path | None) -> int:
    """Print an inventory made from a hostfile, an ssh_config or `scontrol show node`; from standard input without FILE."""
    from orchestrator.usecases.inventory import import_inventory

    print_text(import_inventory(source, file))
    return 0
