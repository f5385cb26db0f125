"""Files of a run for the controller: what a path of the run contains on this machine, and the content of these files."""

from __future__ import annotations

import contextlib
import os
import stat

from orchestrator.node.protocol.operations import LIST_FILES, READ_FILE, answers
from orchestrator.node.run.run_folder import node_folders
from orchestrator.node.system.files import (
    absolute_path,
    link_target,
    raise_unless_missing,
    read_at,
    read_json,
    relative,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Sequence, Tuple

    from orchestrator.node.protocol.connection import Empty
    from orchestrator.node.protocol.output import (
        EntryBody,
        FoundBody,
        ListFilesReply,
        ListFilesRequest,
        ReadFileRequest,
    )
    from orchestrator.node.run.agent_files import NodeFolders

MOST_ENTRIES = 100_000


@answers(LIST_FILES)
def list_files(request: ListFilesRequest, _payload: bytes) -> Tuple[ListFilesReply, bytes]:
    """
    List the files below a path of a run, for each node that has it.

    The path is searched for in the folder that the ranks run in, in the node's folder and in the run's folder; the first one
    that has it counts. Nodes that share the path are listed once.
    """
    folders, path = run_folders(request), relative(request["path"]) if request["path"] else ""
    run = folders[0]
    cwd = relative(request["cwd"]) if request["cwd"] else ""
    found: List[FoundBody] = []
    for node, folder in node_folders(request):
        bases = (os.path.join(run, "code", cwd), os.path.join(folder, "code", cwd), folder, run)
        first = next((base for base in bases if os.path.lexists(os.path.join(base, path))), None)
        if first is not None:
            root = inside(folders, os.path.join(first, path))
            if root not in [body["root"] for body in found]:
                found.append(tree(node, root))
    return {"found": found}, b""


@answers(READ_FILE)
def read_file(request: ReadFileRequest, _payload: bytes) -> Tuple[Empty, bytes]:
    """Read a part of a file that `list_files` has listed."""
    path = os.path.join(request["root"], relative(request["path"])) if request["path"] else request["root"]
    return {}, read_at(inside(run_folders(request), path), request["offset"], request["size"])


def run_folders(request: NodeFolders) -> List[str]:
    """The run's folder, and those that it keeps: their names in the code folder are links."""
    attempt = absolute_path(request["attempt_dir"])
    job = read_json(os.path.join(attempt, "job.json")) or {}
    kept = [os.path.join(absolute_path(job["kept_dir"]), path) for path in job.get("keep", ())]
    return [os.path.realpath(folder) for folder in (os.path.dirname(attempt), *kept)]


def inside(folders: Sequence[str], path: str) -> str:
    """The path with all links resolved; ValueError if it is outside of all the folders."""
    real = os.path.realpath(path)
    if all(os.path.commonpath((folder, real)) != folder for folder in folders):
        raise ValueError(f"{path} leads out of the run's folder, to {real}")
    return real


def tree(node: str, root: str) -> FoundBody:
    """The files, folders and links at and below a path, parents first; absolute links and links that lead out of it are left out."""
    state = os.lstat(root)
    body: FoundBody = {
        "node": node,
        "root": root,
        "identity": f"{state.st_ino} {state.st_mtime_ns}",
        "entries": [],
        "left_out": [],
    }
    for path in paths(root):
        add(body, path)
        if len(body["entries"]) > MOST_ENTRIES:
            raise ValueError(f"{root} contains more than {MOST_ENTRIES} files")
    return body


def paths(root: str) -> Iterator[str]:
    """The path itself, which is empty, and all paths below it, relative to it."""
    yield ""
    for folder, folders, names in os.walk(root, onerror=raise_unless_missing) if os.path.isdir(root) else ():
        for name in sorted(folders + names):
            yield os.path.relpath(os.path.join(folder, name), root)


def add(body: FoundBody, path: str) -> None:
    """Add a path to the entries or to those left out; nothing if it is gone: a living run removes files."""
    with contextlib.suppress(FileNotFoundError):
        entry = entry_of(body["root"], path)
        if entry is None:
            body["left_out"].append(path)
        else:
            body["entries"].append(entry)


def entry_of(root: str, path: str) -> EntryBody | None:
    """The description of a file; None if it is an absolute link, a link to no path below the root, or a special file."""
    full = os.path.join(root, path) if path else root
    state = os.lstat(full)
    entry: EntryBody = {"path": path, "kind": "file", "size": 0, "mode": state.st_mode & 0o700, "target": ""}
    if stat.S_ISREG(state.st_mode):
        return {**entry, "size": state.st_size}
    if stat.S_ISDIR(state.st_mode):
        return {**entry, "kind": "folder"}
    target = os.readlink(full) if stat.S_ISLNK(state.st_mode) else "/"
    try:
        link_target(path, target)  # the controller refuses such a link
        inside([root], full)
    except ValueError:
        return None
    return {**entry, "kind": "link", "target": target}
