"""`orch exec`: run a command once per node, and print its output with the node's name."""

from __future__ import annotations

import click

from orchestrator.cli import options
from orchestrator.cli.console import NodeOutput, inform
from orchestrator.errors import CTRL_C


@click.command("exec", context_settings={"allow_interspersed_args": False})
@options.inventory
@options.nodes
@options.to_host
@click.argument("words", nargs=-1, required=True, metavar="[--] COMMAND [ARGS...]")
def exec_(inventory: str | None, nodes: str | None, *, to_host: bool, words: tuple[str, ...]) -> int:
    """Run a command once per node. In its container if it has one; one word is a line for the shell. Ends with the largest exit code."""
    from orchestrator.usecases.execute import execute

    view = NodeOutput()
    try:
        codes, failure = execute(inventory, nodes, words, view.write, to_host=to_host)
    except KeyboardInterrupt:
        inform("interrupted; as with ssh, the command may still be running on nodes where it prints nothing")
        return CTRL_C
    for code in sorted({code for code in codes.values() if code}):
        view.inform_of([node for node, ended in codes.items() if ended == code], f"exited with code {code}")
    if failure:
        raise failure
    return max(codes.values(), default=0)
