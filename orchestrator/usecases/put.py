"""Send files and folders from this machine to nodes: once per file system, and from node to node where they may log in to each other."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.endpoint.access import Terminal, TransportFactory, transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.transfer import (
    Files,
    ForwardTarget,
    LoginBetweenNodesRefused,
    claim_folder,
    forward_files,
    login_from_node,
    release_folder,
    send_files,
)
from orchestrator.errors import NodesError, OrchError, Unreachable, UsageError
from orchestrator.fanout import failed_nodes, map_parallel
from orchestrator.inventory.model import Inventory, Node
from orchestrator.portable.names.hostlist import fold_by_value
from orchestrator.progress import OnProgress, OnShare, Reporter
from orchestrator.usecases.inventory import load_inventory

if TYPE_CHECKING:
    from orchestrator.node.protocol.transfer import FileEntry

MOST_NAMED = 3  # links in an error
UNREADABLE = "get permission to read it, or leave it out"


@dataclass(frozen=True, slots=True)
class Put:
    """Files that are on nodes now: the names of nodes with one folder."""

    nodes: str
    folder: str


def put(
    inventory: str | None,
    names: str | None,
    paths: Sequence[Path],
    folder: str | None,
    *,
    on_progress: OnProgress,
    on_remark: Callable[[str], None],
) -> tuple[list[Put], NodesError | None]:
    """
    Bring files and folders into a folder of the named nodes, or of all; the working folder of each if `folder` is None.

    Args:
        on_remark: takes sentences about what is left out, and about nodes that cannot log in to each other.

    Returns:
        The nodes that have all files now, by folder, and the error of the others.

    Raises:
        UsageError: a path does not exist, cannot be read, or has links that lead out of it.
    """
    loaded = load_inventory(inventory, names)
    nodes = loaded.select(names)
    files, left_out = list_files(paths)
    for name in left_out:
        on_remark(f"{name} is not sent: a special file")
    transport_to = transport_factory(loaded.transport, loaded.ssh, Terminal(), for_much_data=True)
    sender = Sender(loaded, transport_to, on_progress, on_remark)
    folders, failure = sender.send(nodes, files, folder)
    return [Put(names, found) for found, names in fold_by_value(folders.items()).items()], failure


def list_files(paths: Sequence[Path]) -> tuple[Files, list[str]]:
    """
    The files, folders and links at and below these paths, and the special files that are left out.

    A path that is a link itself counts as what it names. Links in it stay links.

    Raises:
        UsageError: a path does not exist or cannot be read, two have one name, or a link leads out of what is sent.
    """
    entries: list[FileEntry] = []
    sources: list[str] = []
    left_out: list[str] = []
    leading_out: list[str] = []
    names: set[str] = set()
    for path in paths:
        try:
            root = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            hint = "name files and folders on this machine"
            raise UsageError(f"{path}: no such file or folder", hint=hint) from error
        name = path.name if path.name not in ("", "..") else root.name
        if not name or name in names:
            text = f"two paths have the name {name}" if name else f"{path} has no name"
            raise UsageError(text, hint="put them into different folders: one orch put for each, with --to")
        names.add(name)
        for source, relative in _below(root, name):
            entry = _entry(source, relative)
            if entry is None:
                left_out.append(source)
            elif entry["kind"] == "link" and not _stays_below(name, entry):
                leading_out.append(source)
            else:
                entries.append(entry)
                sources.append(source)
    if leading_out:
        more = f" and {len(leading_out) - MOST_NAMED} more" if len(leading_out) > MOST_NAMED else ""
        hint = "send the folder that also contains what they name, or a copy with files in their stead: cp -rL"
        raise UsageError(f"links lead out of what is sent: {', '.join(leading_out[:MOST_NAMED])}{more}", hint=hint)
    links_last = sorted(range(len(entries)), key=lambda index: entries[index]["kind"] == "link")
    return Files([entries[index] for index in links_last], [sources[index] for index in links_last]), left_out


def _below(root: Path, name: str) -> Iterator[tuple[str, str]]:
    """All paths at and below the root, parents first, each with its path on the nodes."""

    def refuse(error: OSError) -> None:
        raise UsageError(f"{error.filename}: {error.strerror}", hint=UNREADABLE)

    yield str(root), name
    for folder, folders, files in os.walk(root, onerror=refuse) if root.is_dir() else ():
        for each in sorted(folders + files):
            path = os.path.join(folder, each)  # noqa: PTH118  of many paths, Path takes seconds
            yield path, f"{name}/{os.path.relpath(path, root)}"
        folders.sort()


def _entry(source: str, relative: str) -> FileEntry | None:
    """The description of a path; None for a special file."""
    state = os.lstat(source)
    entry: FileEntry = {
        "path": relative,
        "kind": "file",
        "size": 0,
        "mode": stat.S_IMODE(state.st_mode) & 0o777,
        "mtime_ns": state.st_mtime_ns,
        "target": "",
    }
    if stat.S_ISLNK(state.st_mode):
        return {**entry, "kind": "link", "target": os.readlink(source)}  # noqa: PTH115
    if stat.S_ISDIR(state.st_mode):
        return {**entry, "kind": "folder"}
    if not stat.S_ISREG(state.st_mode):
        return None
    if not os.access(source, os.R_OK):
        raise UsageError(f"{source}: Permission denied", hint=UNREADABLE)
    return {**entry, "size": state.st_size}


def _stays_below(name: str, link: FileEntry) -> bool:
    target = os.path.normpath(os.path.join(os.path.dirname(link["path"]), link["target"]))  # noqa: PTH118, PTH120
    return target == name or target.startswith(f"{name}/")


class Sender:
    """Sends files to nodes of an inventory."""

    def __init__(
        self,
        inventory: Inventory,
        transport_to: TransportFactory,
        on_progress: OnProgress,
        on_remark: Callable[[str], None],
    ) -> None:
        self._inventory = inventory
        self._transport_to = transport_to
        self._on_progress = on_progress
        self._on_remark = on_remark
        self._limit = inventory.ssh.fanout

    def send(self, nodes: Sequence[Node], files: Files, folder: str | None) -> tuple[dict[str, str], NodesError | None]:
        """
        Bring the files into the folder of each node, or its working folder; of nodes that share a folder, to one.

        Returns:
            The absolute folder of each node that has the files now, and the error of the others.
        """
        if folder is not None and not folder.startswith(("/", "~/")):
            raise UsageError(f"--to {folder}: not an absolute path", hint="as in --to /data/models")
        claims, failures = self._claim(nodes, folder)
        leaders = _leaders(nodes, claims)
        leader_of = {claims[node.name][1]: node.name for node in leaders}
        folders = {name: path for name, (path, _) in claims.items()}
        names = [node.name for node in leaders]
        self._reporter = Reporter("sending", names, self._on_progress, size_bytes=files.size_bytes)
        results = self._send_to_leaders(leaders, files, folders)
        failed = {name for name, result in results.items() if isinstance(result, OrchError)}
        failures += [result for result in results.values() if isinstance(result, OrchError)]
        done = {name: path for name, (path, owner) in claims.items() if leader_of[owner] not in failed}
        return done, failed_nodes([*failures, *([None] * (len(nodes) - len(failures)))])

    def connected(self, node: Node) -> Endpoint:
        return Endpoint.connect(self._transport_to(node), node.python)

    def _claim(self, nodes: Sequence[Node], folder: str | None) -> tuple[dict[str, tuple[str, str]], list[OrchError]]:
        """Make the folder on all nodes; return its path and its owner by node, and the failures."""
        token = secrets.token_hex(8)

        def claim(node: Node) -> tuple[str, str]:
            with self.connected(node) as endpoint:
                wanted = folder or node.workdir
                reply = claim_folder(endpoint, wanted, token, is_workdir=folder is None)
                return reply["folder"], reply["owner"]

        def release(node: Node) -> None:
            with self.connected(node) as endpoint:
                release_folder(endpoint, claims[node.name][0], token)

        reporter = Reporter("preparing", [node.name for node in nodes], self._on_progress)
        results = map_parallel(nodes, reporter.around(claim), limit=self._limit)
        pairs = list(zip(nodes, results, strict=True))
        claims = {node.name: result for node, result in pairs if not isinstance(result, OrchError)}
        map_parallel(_leaders(nodes, claims), release, limit=self._limit)  # at worst, a dangling link remains
        return claims, [result for result in results if isinstance(result, OrchError)]

    def _send_to_leaders(
        self, leaders: Sequence[Node], files: Files, folders: dict[str, str]
    ) -> dict[str, OrchError | None]:
        """Send from here to one node, then in rounds from each node that has the files to one that has not."""
        results: dict[str, OrchError | None] = {}
        ready: list[Node] = []
        waiting = list(leaders)
        is_between = self._inventory.transport == "ssh"

        def from_here(node: Node) -> None:
            self._from_here(node, files, folders[node.name])

        def from_node(pair: tuple[Node, Node]) -> None:
            source, target = pair
            argv = login_from_node(target, self._inventory.ssh, target.python)
            to = ForwardTarget(target.name, folders[target.name], argv)
            on_share: OnShare = partial(self._reporter.advanced, target.name)
            with self.connected(source) as endpoint:
                forward_files(endpoint, files, folders[source.name], target=to, on_share=on_share)

        def finish(nodes: Sequence[Node], outcomes: Sequence[OrchError | None]) -> None:
            for node, outcome in zip(nodes, outcomes, strict=True):
                results[node.name] = outcome
                self._reporter.ended(node.name)
                if outcome is None:
                    ready.append(node)

        while waiting:
            if not ready:
                batch, waiting = waiting[:1], waiting[1:]
                finish(batch, map_parallel(batch, from_here, limit=1))
            elif is_between:
                batch, waiting = waiting[: len(ready)], waiting[len(ready) :]
                outcomes = map_parallel(list(zip(ready, batch)), from_node, limit=self._limit)  # noqa: B905  fewer targets
                refused = [outcome for outcome in outcomes if isinstance(outcome, LoginBetweenNodesRefused)]
                if refused:
                    is_between = False
                    self._on_remark(f"sending to each node from here: {ready[0].name} cannot log in to {refused[0]}")
                unsent = [node for node, outcome in zip(batch, outcomes, strict=True) if outcome is not None]
                finish([node for node in batch if node not in unsent], [None] * (len(batch) - len(unsent)))
                finish(unsent, map_parallel(unsent, from_here, limit=self._limit))
            else:
                finish(waiting, map_parallel(waiting, from_here, limit=self._limit))
                waiting = []
        return results

    def _from_here(self, node: Node, files: Files, folder: str) -> None:
        """Send to a node; a lost connection is opened again as long as that brings the transfer forward."""
        best = -1.0

        while True:
            reached = 0.0

            def advance(share: float) -> None:
                nonlocal reached
                reached = max(reached, share)
                self._reporter.advanced(node.name, share)

            try:
                with self.connected(node) as endpoint:
                    return send_files(endpoint, files, folder, advance)
            except Unreachable:
                if reached <= best:
                    raise
                best = reached


def _leaders(nodes: Sequence[Node], claims: Mapping[str, tuple[str, str]]) -> list[Node]:
    """The first node of each file system, by the owners of the claims; an owner's own claim may have failed later."""
    first: dict[str, Node] = {}
    for node in nodes:
        if node.name in claims:
            first.setdefault(claims[node.name][1], node)
    return list(first.values())
