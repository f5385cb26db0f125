"""The names that the shell completes for options and arguments; they are read only when it asks for them."""

from __future__ import annotations

import click


def runs(_context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
    from orchestrator.usecases.completion import run_names

    return [name for name in run_names() if name.startswith(beginning)]


def inventories(_context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
    """Complete an inventory file, or the name of a shipped one."""
    from orchestrator.usecases import completion

    return [name for name in completion.inventories(beginning) if name.startswith(beginning)]


def shipped_inventories(_context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
    from orchestrator.usecases.inventory import shipped_names

    return [name for name in shipped_names() if name.startswith(beginning)]


def nodes_of_run(context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
    """Complete a host list of the run that was typed before it."""
    from orchestrator.usecases import completion

    typed = next(iter(context.args), "")  # click does not assign words before an option that has no value yet
    return _after_comma(completion.nodes_of_run(typed.partition(":")[0] or "latest"), beginning)


def nodes_of_inventory(context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
    """Complete a host list of the inventory that was typed before it."""
    from orchestrator.usecases import completion

    return _after_comma(completion.nodes_of_inventory(context.params.get("inventory")), beginning)


def _after_comma(names: list[str], beginning: str) -> list[str]:
    """Complete the last name of a host list."""
    listed, comma, last = beginning.rpartition(",")
    return [f"{listed}{comma}{name}" for name in names if name.startswith(last)]
