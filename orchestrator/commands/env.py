"""`orch env`: the environment that every rank of each node gets from orch."""

from __future__ import annotations

import json
from dataclasses import asdict

from orchestrator.actions.env import NodeEnvironment, environments
from orchestrator.console import print_json, print_text, warn


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
    return f"{name}={value if value.isprintable() else json.dumps(value)}"
