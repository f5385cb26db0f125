"""The user's code on the node: commit, uncommitted changes and a digest of the program files."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat

from orchestrator.node.excluded_folders import reason_not_code
from orchestrator.node.probe.disks import identity
from orchestrator.node.system.files import absolute_path
from orchestrator.node.system.mounts import MOUNTINFO, mount_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Optional, Tuple

    from orchestrator.node.facts import Code
    from orchestrator.node.probe.source import Source

SUFFIXES = (".py", ".pyi", ".pyx", ".sh", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
MAX_NAMES, MAX_BYTES = 20_000, 256 << 20
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")
GIT_S = 3.0


def code(source: Source, path: str) -> Code:
    folder = absolute_path(path)
    top = work_tree(source, folder)
    commit, dirty = (None, None) if top is None else state_of(source, top)
    return {
        "path": folder,
        "identity": folder_identity(source, folder),
        "commit": commit,
        "dirty": dirty,
        "digest": digest(source, folder),
    }


def folder_identity(source: Source, folder: str) -> str:
    """The name of the file system and of the folder in it; empty if there is no such folder."""
    try:
        real = os.path.realpath(source.path(folder))
        state = os.stat(real)
    except OSError:
        return ""
    return identity(source, state, mount_of(real if source.root == "/" else folder, source.text(MOUNTINFO) or ""))


def work_tree(source: Source, folder: str) -> Optional[str]:
    """The innermost folder above that has a .git; None if there is none."""
    while not source.exists(f"{folder.rstrip('/')}/.git"):
        if folder in ("/", ""):
            return None
        folder = os.path.dirname(folder)
    return folder


def state_of(source: Source, top: str) -> Tuple[Optional[str], Optional[bool]]:
    """Commit, and whether files differ from it: by git, which may be missing or refuse another user's folder; else only the commit."""
    git = ["git", "--no-optional-locks", "-C", source.path(top)]
    commit, error = source.run([*git, "rev-parse", "--verify", "-q", "HEAD"], GIT_S)
    changes = None
    if commit is not None:
        changes, error = source.run([*git, "status", "--porcelain", "--untracked-files=no"], GIT_S)
    if changes is None:
        source.missing["code.dirty"] = f"git: {error}"
    if commit is None:
        commit = head(source, f"{top.rstrip('/')}/.git")
    commit = (commit or "").strip()
    return commit if COMMIT.match(commit) else None, None if changes is None else bool(changes.strip())


def head(source: Source, folder: str) -> Optional[str]:
    """The commit that HEAD names, without git; the .git of a linked work tree is a file that names a folder."""
    pointer = source.text(folder) if os.path.isfile(source.path(folder)) else None
    if pointer is not None and pointer.startswith("gitdir: "):
        folder = os.path.normpath(os.path.join(os.path.dirname(folder), pointer[len("gitdir: ") :]))
    text = source.text(f"{folder}/HEAD") or ""
    if not text.startswith("ref: "):
        return text
    reference = text[len("ref: ") :]
    common = os.path.normpath(os.path.join(folder, source.text(f"{folder}/commondir") or "."))
    packed = re.search(rf"^(\S+) {re.escape(reference)}$", source.text(f"{common}/packed-refs") or "", re.MULTILINE)
    return source.text(f"{folder}/{reference}") or source.text(f"{common}/{reference}") or (packed and packed.group(1))


def digest(source: Source, folder: str) -> Optional[str]:
    """
    The sha256 over names and contents of the program files: logs and outputs change while the nodes read them, and so does orch's workdir.

    None if there are too many files, and for a folder with the user's home in it: each node may have its own.
    """
    real, home = os.path.realpath(folder), os.path.realpath(os.path.expanduser("~"))
    if os.path.commonpath((real, home)) == real:
        source.missing["code.digest"] = "the home folder is in it"
        return None
    total = hashlib.sha256()
    size = 0
    try:
        for name, path in sorted(found_files(source.path(folder))):
            content = content_of(path)
            size += len(content)
            if size > MAX_BYTES:
                source.missing["code.digest"] = f"more than {MAX_BYTES >> 20} MiB"
                return None
            for part in (os.fsencode(name), content):
                total.update(b"%d:%b" % (len(part), part))
    except OSError as error:
        source.missing["code.digest"] = f"{error.filename or folder}: {error.strerror}"
        return None
    return total.hexdigest()


def found_files(folder: str) -> Iterator[Tuple[str, str]]:
    """
    Relative and whole path of each program file and link to one, outside of hidden folders and those that programs write to.

    OSError if too many names are in the folder.
    """

    def fail(error: OSError) -> None:
        raise error

    count = 0
    for parent, folders, names in os.walk(folder, onerror=fail):
        count += len(folders) + len(names)
        if count > MAX_NAMES:
            raise OSError(errno.E2BIG, f"more than {MAX_NAMES} files", folder)
        folders[:] = [
            name for name in folders if not name.startswith(".") and not reason_not_code(os.path.join(parent, name))
        ]
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in [*names, *links]:
            if name.endswith(SUFFIXES) and not name.startswith("."):
                path = os.path.join(parent, name)
                yield os.path.relpath(path, folder), path


def content_of(path: str) -> bytes:
    """The content of a file, the target of a link, nothing of anything else, such as a pipe."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return os.fsencode(os.readlink(path))
    if not stat.S_ISREG(mode):
        return b""
    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)
