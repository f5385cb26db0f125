"""`orch nodes`: print what the nodes of the inventory have."""

from __future__ import annotations

from orchestrator.actions.nodes import (
    COLUMNS,
    HISTORY_COLUMNS,
    histories,
    history_rows,
    query,
    summary,
    suspicions,
    unread,
)
from orchestrator.cli.console import print_json, print_table, warn


def nodes(inventory: str | None, names: str | None, *, as_json: bool) -> int:
    """
    Print the facts of the nodes, as JSON whole.

    Raises:
        NodesError: nodes did not answer; the others are printed.
    """
    history = histories(inventory, names)
    facts, failure = query(inventory, names)
    if as_json:
        past = {name: {"history": of_node.to_json()} for name, of_node in history.items()}
        print_json({name: {**facts.get(name, {}), **past.get(name, {})} for name in dict.fromkeys([*facts, *past])})
    elif facts:
        print_table(COLUMNS, summary(facts))
        for text in unread(facts):
            warn(text)
    if history and not as_json:
        print_table(HISTORY_COLUMNS, history_rows(history), cut=("LAST FAILURE",))
        for text in suspicions(history):
            warn(text)
    if failure:
        raise failure
    return 0
