"""Copy files of a run from its nodes to this machine."""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.endpoint.access import Terminal
from orchestrator.endpoint.files import FoundFiles
from orchestrator.errors import NodeError, UsageError
from orchestrator.fanout import map_parallel, successes
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import AttemptFolder
from orchestrator.plan.plan import LaunchPlan
from orchestrator.progress import OnProgress, OnShare, Reporter
from orchestrator.records.runs import find_run
from orchestrator.usecases.reports.logs import node_names

PART_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Copied:
    """A file or folder that was copied from a node."""

    node: str
    source: str
    target: Path
    files: int
    size_bytes: int
    left_out: Sequence[str]
    """Absolute links, links that lead out of it, and special files, which are not copied."""


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """A path of the run on a node, and the folder through which its machine is reached."""

    folder: AttemptFolder
    found: FoundFiles

    @property
    def name(self) -> str:
        return self.found.node


def copy(run: str, path: str, destination: Path, names: str | None, *, on_progress: OnProgress) -> list[Copied]:
    """
    Copy a path of a run from all nodes that have it: from one node to DIR/NAME, from several to DIR/NODE/NAME.

    Args:
        path: relative to the folder that the ranks run in, to the node's folder or to the run's folder.
        names: only from these nodes.

    Raises:
        UsageError: no node has the path, the run has no such node, or a target exists.
        NodesError: nodes could not be read; what was copied from the others stays.
    """
    folder = find_run(run)
    plan = folder.read_plan()
    wanted = node_names(names, plan)
    normal = _normal(path)
    with closing(launcher_for(plan, Terminal(), on_progress)) as launcher:
        folders = launcher.attempt_folders(launcher.attempt(), wanted)
        limit = int(plan.ssh["fanout"])
        listed = map_parallel(folders, lambda attempt: _found(attempt, plan, normal, wanted), limit=limit)
        found = [source for sources in listed if isinstance(sources, list) for source in sources]
        distinct: dict[tuple[str, str], _Source] = {}
        for source in found:  # nodes that share a file system report the same file
            distinct.setdefault((source.found.root, source.found.identity), source)
        sources, failures = list(distinct.values()), [error for error in listed if isinstance(error, NodeError)]
        if not sources and not failures:
            hint = "PATH is relative to the ranks' working folder, the node's folder or the run's folder"
            raise UsageError(f"no node of run {folder.path.name} has {path}", hint=hint)
        targets = [_target(destination, source, normal or folder.path.name, len(sources)) for source in sources]
        target_of = dict(zip(sources, targets, strict=True))
        size_bytes = sum(source.found.size_bytes for source in sources)
        reporter = Reporter("copying", [source.name for source in sources], on_progress, size_bytes=size_bytes)

        def copy_from(source: _Source) -> Copied:
            return _copied(source, target_of[source], partial(reporter.advanced, source.name))

        try:
            outcomes = map_parallel(sources, reporter.around(copy_from), limit=limit)
        except BaseException:  # after Ctrl-C the threads that copy may not come to remove their parts
            launcher.close()
            for target in targets:
                _remove(_part(target))
            raise
    return successes([*failures, *outcomes])


def _normal(path: str) -> str:
    """The path without `.` and empty parts; empty for the folder itself."""
    normal = posixpath.normpath(path)
    if normal.startswith(("/", "../")) or normal == "..":
        raise UsageError(f"{path} leads out of the run's folder", hint="name a path below it, as in RUN:checkpoints")
    return "" if normal == "." else normal


def _found(attempt: AttemptFolder, plan: LaunchPlan, path: str, wanted: Collection[str] | None) -> list[_Source]:
    nodes = attempt.nodes if wanted is None or attempt.nodes is not None else sorted(wanted)
    found = attempt.endpoint.list_files(attempt.attempt_dir, nodes, path, cwd=plan.program.cwd or "")
    return [_Source(attempt, files) for files in found]


def _target(destination: Path, source: _Source, path: str, count: int) -> Path:
    parent = destination / source.name if count > 1 else destination
    target = parent / posixpath.basename(path)
    if os.path.lexists(target):
        raise UsageError(f"{target} exists", hint="move it away, or name another DIR")
    return target


def _copied(source: _Source, target: Path, on_share: OnShare) -> Copied:
    """Copy to a temporary name beside the target, and rename it when all is there."""
    done, total = 0, source.found.size_bytes

    def counted(content: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal done
        for data in content:
            yield data
            done += len(data)
            on_share(done / total)

    part = _part(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        in_order = sorted(source.found.entries, key=lambda entry: entry.kind == "link")  # links last: no path uses one
        for entry in in_order:
            path = part / entry.path if entry.path else part
            if entry.kind == "folder":
                path.mkdir(mode=0o700)
            elif entry.kind == "link":
                path.symlink_to(entry.target)
            else:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, entry.mode & 0o700 | 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.writelines(counted(_content(source, entry.path, entry.size)))
        part.rename(target)
    except BaseException:
        _remove(part)
        raise
    found = source.found
    files = sum(entry.kind == "file" for entry in found.entries)
    return Copied(source.name, found.root, target, files, found.size_bytes, found.left_out)


def _part(target: Path) -> Path:
    """The temporary name of a copy that is not complete."""
    return target.with_name(f".{target.name}.part-{os.getpid()}")


def _remove(part: Path) -> None:
    """Remove an incomplete copy; after Ctrl-C, two threads may remove it at the same time."""
    if part.is_dir():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)


def _content(source: _Source, path: str, size: int) -> Iterator[bytes]:
    """The content of a file of this size; NodeError if it has become shorter."""
    folder, offset = source.folder, 0
    while offset < size:
        part = min(PART_BYTES, size - offset)
        data = folder.endpoint.read_file(folder.attempt_dir, source.found.root, path, offset=offset, size=part)
        if not data:
            name = posixpath.join(source.found.root, path)
            raise NodeError(source.name, f"{name} became shorter while it was copied: {offset} of {size} bytes")
        yield data[:part]
        offset += len(data)
