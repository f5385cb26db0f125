"""Expand the host lists in an inventory and after --nodes, and refuse repeated names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.errors import UsageError
from orchestrator.inventory.document import Document, Problem, Tree
from orchestrator.names.hostlist import MAX_NAMES, expand, fold, repeated


def name_problems(document: Document) -> Iterator[Problem]:
    """Find problems across fields: names and addresses of unequal number, and names that occur twice."""
    entries = document.tree.get("nodes")
    first_entry: dict[str, int] = {}
    for index, entry in enumerate(entries if isinstance(entries, list) else []):
        if not isinstance(entry, dict):
            continue
        try:
            names, addresses = _expand_or_empty(entry.get("name")), _expand_or_empty(entry.get("address"))
        except ValueError:
            continue  # reported as the field's own problem
        if addresses and names and len(addresses) != len(names):
            text = f"stands for {len(addresses)} nodes, name for {len(names)}; both must list the same number"
            yield Problem(("nodes", index, "address"), text)
        for earlier in sorted({first_entry[name] for name in names if name in first_entry}):
            twice = fold(name for name in names if first_entry.get(name) == earlier)
            line = document.line(("nodes", earlier, "name"))
            yield Problem(("nodes", index, "name"), f"{twice} is named already in nodes[{earlier}], line {line}")
        if twice := fold(repeated(names)):
            yield Problem(("nodes", index, "name"), f"{twice} is named twice")
        first_entry.update({name: index for name in names if name not in first_entry})
        if len(first_entry) > MAX_NAMES:
            yield Problem(("nodes",), f"more than {MAX_NAMES} nodes")
            return


def _expand_or_empty(pattern: Tree) -> list[str]:
    return expand(pattern) if isinstance(pattern, str) else []


def expand_nodes_option(names: str) -> list[str]:
    """Expand the host list of --nodes; UsageError if it is not a host list."""
    try:
        return expand(names)
    except ValueError as error:
        raise UsageError(f"--nodes: {error}", hint="write a list such as n[0-3],x") from error


def refuse_repeated(names: Sequence[str]) -> None:
    """Raise a UsageError if --nodes names a node twice."""
    if twice := fold(repeated(names)):
        raise UsageError(f"--nodes: {twice} is named twice", hint="name every node once")
