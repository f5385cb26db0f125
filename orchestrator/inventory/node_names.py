"""What the names in an inventory and after --nodes stand for: expanded, and refused where one is named twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.errors import UsageError
from orchestrator.inventory.document import Document, Problem, Tree
from orchestrator.names.hostlist import MAX_NAMES, expand, fold, repeated


def name_problems(document: Document) -> Iterator[Problem]:
    """Find what no single field shows: lists of unequal length, and a name that is given twice."""
    entries = document.tree.get("nodes")
    first: dict[str, int] = {}
    for index, entry in enumerate(entries if isinstance(entries, list) else []):
        if not isinstance(entry, dict):
            continue
        try:
            names, addresses = _expanded_or_empty(entry.get("name")), _expanded_or_empty(entry.get("address"))
        except ValueError:
            continue  # reported as the field's own problem
        if addresses and names and len(addresses) != len(names):
            text = f"stands for {len(addresses)} nodes, name for {len(names)}; both must list the same number"
            yield Problem(("nodes", index, "address"), text)
        for where in sorted({first[name] for name in names if name in first}):
            twice = fold(name for name in names if first.get(name) == where)
            line = document.line(("nodes", where, "name"))
            yield Problem(("nodes", index, "name"), f"{twice} is named already in nodes[{where}], line {line}")
        if twice := fold(repeated(names)):
            yield Problem(("nodes", index, "name"), f"{twice} is named twice")
        first.update({name: index for name in names if name not in first})
        if len(first) > MAX_NAMES:
            yield Problem(("nodes",), f"more than {MAX_NAMES} nodes")
            return


def _expanded_or_empty(pattern: Tree) -> list[str]:
    return expand(pattern) if isinstance(pattern, str) else []


def expanded(names: str) -> list[str]:
    """
    Expand what was typed after --nodes.

    Raises:
        UsageError: it is no host list.
    """
    try:
        return expand(names)
    except ValueError as error:
        raise UsageError(f"--nodes: {error}", hint="write a list such as n[0-3],x") from error


def refuse_twice(names: Sequence[str]) -> None:
    """Raise a UsageError where a node was typed twice."""
    if twice := fold(repeated(names)):
        raise UsageError(f"--nodes: {twice} is named twice", hint="name every node once")
