"""
Access to nodes: the choice of the transport, its settings, and the terminal for a login's prompts.

The rest of orch imports these from here: only endpoint/ imports transports/. A new transport is a line of `transport_factory`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from orchestrator.errors import NodeError, OrchError
from orchestrator.node.system.files import low_size_limit
from orchestrator.progress import OnProgress
from orchestrator.transports.base import Transport
from orchestrator.transports.container import Container, ContainerImage, ContainerName, ContainerTransport
from orchestrator.transports.ssh.commands import login_argv
from orchestrator.transports.ssh.deferred_imports import deferred_imports
from orchestrator.transports.ssh.route import Destination, PlannedSsh, SshSettings
from orchestrator.transports.terminal import PromptCancelled, Terminal

__all__ = [
    "Destination",
    "PlannedSsh",
    "PromptCancelled",
    "SshSettings",
    "Target",
    "Terminal",
    "TransportFactory",
    "between_prompts",
    "container_of",
    "count_gateways",
    "login_argv",
    "require_file_size",
    "require_limits",
    "transport_factory",
]

OPEN_FILES = 1 << 16
MACOS_OPEN_FILES = 10240  # OPEN_MAX in <sys/syslimits.h> there
OTHER_FILES, OTHER_THREADS = 64, 50  # in addition to those of the connections
LEAST_FILE_BYTES = 1 << 24  # records of runs have up to some megabytes
MANY = 20  # times as many as needed: then the threads that exist are not counted, which takes long on a large machine
THREADS = 3  # per node: paramiko's, the supervisor's, and the one that follows its logs
PROXY_COMMAND = 2  # its process, and the thread that copies its errors
PROCESSES = Path("/proc")  # a folder for each on Linux

_TOO_LOW = "the hard limit (`{}`) is too low: ask the administrator to raise it, or launch from another machine"

TransportFactory: TypeAlias = Callable[["Target"], Transport]


class Target(Destination, Protocol):
    """A node of an inventory or a plan: where it is, and the container in it that is entered."""

    @property
    def workdir(self) -> str: ...
    @property
    def container(self) -> Mapping[str, Any] | ContainerSettings | None: ...


class ContainerSettings(Protocol):
    """The fields of a container in an inventory."""

    def model_dump(self) -> dict[str, Any]: ...


def transport_factory(
    kind: str,
    ssh: Mapping[str, Any] | SshSettings,
    terminal: Terminal | None = None,
    *,
    to_host: bool = False,
    for_much_data: bool = False,
) -> TransportFactory:
    """
    Make the function that makes a node's transport, into its container if it has one; at most `fanout` log in at the same time.

    Only ssh imports Fabric, which is slow.

    Args:
        kind: local or ssh.
        ssh: the options of an inventory, or of a plan; unused if `kind` is local.
        terminal: for a login's prompts; by default the terminal of this process.
        to_host: to the node itself, also if it has a container.
        for_much_data: see ChosenTransport.
    """
    to_node = _factory_to_nodes(kind, ssh, terminal, for_much_data=for_much_data)

    def transport(node: Target) -> Transport:
        container = None if to_host else container_of(node)
        return to_node(node) if container is None else ContainerTransport(to_node(node), container)

    return transport


def container_of(node: Target) -> Container | None:
    """The container of a node in which programs start; None: on the node itself."""
    if node.container is None:
        return None
    settings = node.container if isinstance(node.container, Mapping) else node.container.model_dump()
    if settings.get("image") is None:
        return ContainerName.of(settings)
    return ContainerImage.of(settings, node.workdir)


def _factory_to_nodes(
    kind: str, ssh: Mapping[str, Any] | SshSettings, terminal: Terminal | None, *, for_much_data: bool
) -> Callable[[Destination], Transport]:
    if kind == "local":
        from orchestrator.transports.local import LocalTransport

        return lambda node: LocalTransport(node.name)
    with deferred_imports():
        from orchestrator.transports.ssh.chosen import ChosenTransport
        from orchestrator.transports.ssh.user_keys import Keyring

    _raise_limits()
    keyring, settings = Keyring(terminal or Terminal()), PlannedSsh.of(ssh) if isinstance(ssh, Mapping) else ssh
    login_slots = threading.BoundedSemaphore(settings.fanout)
    return lambda node: ChosenTransport(node, settings, keyring, login_slots, for_much_data=for_much_data)


def between_prompts(on_progress: OnProgress) -> OnProgress:
    """Report progress only while no login prompts: its line would be written into the prompt."""
    terminal = Terminal()
    return lambda progress: terminal.unless_prompting(lambda: on_progress(progress))


def count_gateways(nodes: Iterable[Destination], ssh: Mapping[str, Any]) -> int:
    """The threads and processes for the jump hosts and ProxyCommands on the ways to the nodes."""
    from orchestrator.transports.ssh.transport import route_to  # imports paramiko

    settings, count = PlannedSsh.of(ssh), 0
    for node in nodes:
        with contextlib.suppress(NodeError):  # the login reports it
            hops = route_to(node, settings)
            count += len(hops) - 1 + (PROXY_COMMAND if hops[0].proxy_command else 0)
    return count


def require_file_size() -> None:
    """
    Require that this process may write the record of a run: the owner of a run waits until the record is written.

    Raises:
        OrchError: the limit of the size of files is too low.
    """
    if problem := low_size_limit(LEAST_FILE_BYTES, "the record of a run"):
        raise OrchError(problem, hint="raise the limit: ulimit -f unlimited")


def require_limits(nodes: int, *, connected: int = 0, on_the_way: Callable[[], int] = int) -> None:
    """
    Check that the limits of this process allow a run on as many nodes over SSH, some of which are connected already.

    Args:
        on_the_way: returns `count_gateways`; called only if the limit is near, because it is slow with many nodes.

    Raises:
        OrchError: they do not; it has the number that is needed.
    """
    _raise_limits()
    files, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], nodes + OTHER_FILES
    if files != resource.RLIM_INFINITY and files < needed:
        hint = _TOO_LOW.format("ulimit -Hn")
        raise OrchError(f"{nodes} nodes need {needed} open files, and the limit is {files}", hint=hint)
    limit, needed = resource.getrlimit(resource.RLIMIT_NPROC)[0], THREADS * nodes - connected + OTHER_THREADS
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0 or limit > MANY * needed:
        return
    if not (PROCESSES / "self" / "task").is_dir():  # macOS shows no threads, and its limit counts processes
        return
    used = _threads_of_user()
    if used + needed <= limit < used + 2 * needed:
        needed += on_the_way()
    if used + needed > limit:
        text = f"{nodes} nodes need {needed} threads, and of the {limit} processes and threads that the user may have, {used} exist"
        raise OrchError(text, hint=f"end other processes; or {_TOO_LOW.format('ulimit -Hu')}")


def _threads_of_user() -> int:
    """The threads of all processes of this user, as far as they are visible."""
    count = 0
    for folder in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if folder.stat().st_uid == os.geteuid():
                count += sum(1 for _ in (folder / "task").iterdir())
    return count


def _raise_limits() -> None:
    """Raise the soft limits: each connection needs an open file and threads, and by default 1,024 files are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    for limit in (MACOS_OPEN_FILES, wanted):
        if soft != resource.RLIM_INFINITY and soft < limit <= wanted:
            with contextlib.suppress(OSError, ValueError):  # macOS allows less than its hard limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
