"""`orch nodes`: print what the nodes of the inventory have."""

from __future__ import annotations

from collections.abc import Mapping

import click

from orchestrator.cli import options
from orchestrator.cli.console import inform, print_error, print_json, print_table, warn


@click.command()
@options.inventory
@options.nodes
@options.as_json
def nodes(inventory: str | None, nodes: str | None, *, as_json: bool) -> int:
    """Show what the nodes have: cards, RDMA devices and versions."""
    from orchestrator.usecases.checks import nodes as action

    history = action.histories(inventory, nodes)
    facts, failure = action.query(inventory, nodes)
    if as_json:
        past = {name: {"history": of_node.to_json()} for name, of_node in history.items()}
        inside = {name: {"container": text} for name, text in action.container_names(inventory, nodes).items()}
        parts: list[Mapping[str, Mapping[str, object]]] = [facts, inside, past]
        by_name = {
            name: {key: value for part in parts for key, value in part.get(name, {}).items()}
            for name in dict.fromkeys([*facts, *past])
        }
        if by_name or not failure:
            print_json(by_name, is_by_name=True)
    elif facts:
        print_table(action.COLUMNS, action.summary(facts))
        for text in action.sides(inventory, nodes, facts):
            inform(text)
        for text in action.unread(facts):
            warn(text)
    if history and not as_json:
        print_table(action.HISTORY_COLUMNS, action.history_rows(history), cut=("LAST FAILURE",))
        for text in action.suspicions(history):
            warn(text)
    if failure is None:
        return 0
    if as_json and (facts or history):  # one JSON document is on stdout already
        print_error(failure)
        return failure.exit_code
    raise failure
