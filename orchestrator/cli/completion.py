"""The names that the shell completes for options and arguments; they are read only when it asks for them."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem


def words(*names: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def complete(_context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
        return [name for name in names if name.startswith(beginning)]

    return complete


def found(function: str, after: str = "") -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Complete a name that a function of usecases/completion.py finds; the text `after` follows it."""

    def complete(_context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
        from orchestrator.usecases import completion

        names: list[str] = getattr(completion, function)()
        return [f"{name}{after}" for name in names if name.startswith(beginning)]

    return complete


runs = found("run_names")


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


def runs_or_files(_context: click.Context, _parameter: click.Parameter, beginning: str) -> list[CompletionItem]:
    from orchestrator.usecases.completion import run_names

    items = [CompletionItem(name) for name in run_names() if name.startswith(beginning)]
    return [*items, CompletionItem(beginning, type="file")]


def _after_comma(names: list[str], beginning: str) -> list[str]:
    """Complete the last name of a host list."""
    listed, comma, last = beginning.rpartition(",")
    return [f"{listed}{comma}{name}" for name in names if name.startswith(last)]
