"""`orch nodes`: print what the nodes of the inventory have."""

from __future__ import annotations

from orchestrator.actions.nodes import COLUMNS, query, summary, unread
from orchestrator.console import print_json, print_table, warn


def nodes(inventory: str | None, names: str | None, *, as_json: bool) -> int:
    """
    Print the facts of the nodes, as JSON whole.

    Raises:
        NodesError: nodes did not answer; the others are printed.
    """
    facts, failure = query(inventory, names)
    if as_json:
        print_json(facts)
    elif facts:
        print_table(COLUMNS, summary(facts))
        for text in unread(facts):
            warn(text)
    if failure:
        raise failure
    return 0
