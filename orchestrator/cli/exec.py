"""`orch exec`: run a command once per node, and print its output with the node's name."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.actions.execute import execute
from orchestrator.cli.console import NodeOutput, inform
from orchestrator.errors import CTRL_C


def run_on_nodes(inventory: str | None, nodes: str | None, words: Sequence[str]) -> int:
    """
    Run the command; returns the largest exit code.

    Raises:
        NodesError: nodes could not be reached; the command has ended on all others.
    """
    view = NodeOutput()
    try:
        codes, failure = execute(inventory, nodes, words, view.write)
    except KeyboardInterrupt:
        inform("interrupted; as with ssh, the command may still be running on nodes where it prints nothing")
        return CTRL_C
    for code in sorted({code for code in codes.values() if code}):
        view.inform_of([node for node, ended in codes.items() if ended == code], f"exited with code {code}")
    if failure:
        raise failure
    return max(codes.values(), default=0)
