"""Log in to a node of the inventory, or run a command on many nodes; in their containers if they have one."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from orchestrator.endpoint.access import Terminal, container_of, login_argv, transport_factory
from orchestrator.endpoint.output import run_program
from orchestrator.errors import NodesError, UsageError
from orchestrator.fanout import failed_nodes, map_parallel
from orchestrator.inventory.model import Node
from orchestrator.usecases.inventory import load_inventory


def login_command(inventory: str | None, name: str, *, to_host: bool = False) -> list[str]:
    """
    The ssh that logs in to a node with all that the inventory says, and there enters its container unless `to_host`.

    Raises:
        UsageError: the node is unknown, these are several, or it is this machine itself.
    """
    loaded = load_inventory(inventory, name)
    node, *more_nodes = loaded.select(name)
    if more_nodes:
        hint = f"give one of them, such as {node.name}; orch exec --nodes {shlex.quote(name)} -- COMMAND: runs a command on all"
        raise UsageError(f"{name}: these are {1 + len(more_nodes)} nodes, and a login is to one", hint=hint)
    container = None if to_host else container_of(node)
    if loaded.transport == "local":
        if container is None:
            text = f"{name} is this machine: {loaded.file} has transport: local"
            raise UsageError(text, hint="you are there already")
        return container.login_shell()
    argv = login_argv(node, loaded.ssh)
    return argv if container is None else [argv[0], "-t", *argv[1:], shlex.join(container.login_shell())]


def execute(
    inventory: str | None,
    names: str | None,
    words: Sequence[str],
    on_line: Callable[[str, str], None],
    *,
    to_host: bool = False,
) -> tuple[dict[str, int], NodesError | None]:
    """
    Run a command on the named nodes, or all of the inventory, at most `ssh.fanout` at once.

    Args:
        words: a program and its arguments, or one line for the shell.
        on_line: takes a node and a line that it printed, from several threads.
        to_host: on the nodes themselves, also if they have containers.

    Returns:
        The exit code of each node where the command ended, and the error of the other nodes.
    """
    loaded = load_inventory(inventory, names)
    nodes = loaded.select(names)
    transport_to = transport_factory(loaded.transport, loaded.ssh, Terminal(), to_host=to_host)

    def work(node: Node) -> int:
        return run_program(transport_to(node), words, lambda line: on_line(node.name, line))

    outcomes = map_parallel(nodes, work, limit=loaded.ssh.fanout)
    failed = failed_nodes(outcomes)
    codes = {node.name: code for node, code in zip(nodes, outcomes, strict=True) if isinstance(code, int)}
    return codes, failed
