"""`orch env`: the environment that every rank of each node gets from orch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import print_json, print_table, print_text, warn
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.usecases.checks.env import NodeEnvironment


@click.command()
@options.inventory
@click.option(
    "--nodes",
    metavar="LIST",
    shell_complete=completion.nodes_of_inventory,
    help="Nodes of the launch, as in n0,n[2-5].",
)
@click.option("--node", metavar="LIST", shell_complete=completion.nodes_of_inventory, help="Show only these nodes.")
@click.option("--explain", is_flag=True, help="Query the nodes, and show origin and reason of every variable.")
@click.option("--export", is_flag=True, help="As --explain, as lines for a shell: for a launch by hand.")
@click.option(
    "--facts", type=options.PATH, metavar="FILE", help="With --explain: the output of an earlier --explain --json."
)
@click.option("--debug", is_flag=True, help="With --explain: as with --debug of the launch.")
@click.option(
    "--env", "given", multiple=True, metavar="NAME=VALUE", help="With --explain: as with --env of the launch."
)
@click.option(
    "--script",
    type=options.PATH,
    metavar="FILE",
    help="With --explain: name the variables that this launch script replaces.",
)
@options.as_json
def env(
    inventory: str | None,
    nodes: str | None,
    node: str | None,
    *,
    explain: bool,
    export: bool,
    facts: Path | None,
    debug: bool,
    given: tuple[str, ...],
    script: Path | None,
    as_json: bool,
) -> int:
    """Show the environment variables that ranks get from orch. Secrets are hidden, nothing is started."""
    from orchestrator.usecases.checks import env as action

    if explain or export:
        explanation = action.explain(inventory, nodes, node, facts_file=facts, debug=debug, given=given, script=script)
        for warning in explanation.warnings:
            warn(warning)
        if as_json:
            print_json(explanation.to_json())
        elif export:
            print_text(explanation.exports())
        else:
            print_table(*explanation.table())
            setup = (f"setup: {line}" for line in explanation.setup)
            print_text("".join(f"{line}\n" for line in (*explanation.sides, *explanation.cpu_lines(), *setup)))
        return 0
    used = {"--debug": debug, "--facts": facts is not None, "--env": bool(given), "--script": script is not None}
    if option := next((name for name, is_given in used.items() if is_given), ""):
        raise UsageError(f"{option} is for --explain and --export", hint="add --explain")
    shown, warnings = action.environments(inventory, nodes, node)
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
    from orchestrator.usecases.checks.env import printable

    return f"{name}={printable(value)}"
