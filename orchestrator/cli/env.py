"""`orch env`: the environment that every rank of each node gets from orch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from orchestrator.actions import env as action
from orchestrator.actions.env import NodeEnvironment, environments, printable
from orchestrator.cli.console import print_json, print_table, print_text, warn


def env(inventory: str | None, nodes: str | None, node: str | None, *, as_json: bool) -> int:
    """Print the environments of a launch on `nodes`, or only of the nodes in the host list `node`."""
    shown, warnings = environments(inventory, nodes, node)
    for warning in warnings:
        warn(warning)
    if as_json:
        print_json([asdict(environment) for environment in shown])
    else:
        print_text("\n".join(map(_text, shown)))
    return 0


def explain(
    inventory: str | None,
    nodes: str | None,
    node: str | None,
    *,
    facts_file: Path | None,
    debug: bool,
    given: Sequence[str],
    export: bool,
    as_json: bool,
) -> int:
    """Print every variable of a launch with its origin and reason, or with `export` as lines for a shell."""
    explanation = action.explain(inventory, nodes, node, facts_file=facts_file, debug=debug, given=given)
    for warning in explanation.warnings:
        warn(warning)
    if as_json:
        print_json(explanation.to_json())
        return 0
    if export:
        print_text(explanation.exports())
        return 0
    print_table(*explanation.table())
    for line in explanation.cpu_lines():
        print_text(f"{line}\n")
    for line in explanation.setup:
        print_text(f"setup: {line}\n")
    return 0


def _text(shown: NodeEnvironment) -> str:
    """Format for a person; unprintable characters are escaped as in JSON."""
    lines = [f"{shown.node}:"]
    for title, part in (("from the inventory", shown.env), ("from orch", shown.orch)):
        lines += [f"  {title}", *(f"    {_pair(name, value)}" for name, value in part.items())]
    lines += ["  from orch, for each rank"]
    lines += [f"    {' '.join(_pair(*item) for item in rank.items())}" for rank in shown.ranks]
    lines += ["  from orch, unless the node has it", *(f"    {_pair(*item)}" for item in shown.unless_set.items())]
    lines += ["  from orch, known at the launch", f"    {' '.join(shown.at_launch)}"]
    if shown.setup:
        lines += ["  from the setup lines, which run first", *(f"    {line}" for line in shown.setup)]
    return "\n".join([*lines, ""])


def _pair(name: str, value: str) -> str:
    return f"{name}={printable(value)}"
