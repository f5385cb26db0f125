"""
Receive files of the user into a folder of this node, each under a temporary name beside it until it is complete and its hash is right.

A new folder has a temporary name until everything in it is there. What an earlier transfer has left is continued; nothing goes through a
symbolic link.
"""

from __future__ import annotations

import errno
import os
import stat

from orchestrator.node.protocol.operations import (
    CLAIM_FOLDER,
    DIGEST,
    FINISH,
    KEEP_TIME,
    OFFER,
    PUT_PIECES,
    RELEASE_FOLDER,
    answers,
)
from orchestrator.node.sending import ALIKE, SAME_SIZE, hashed, unpacked
from orchestrator.node.system.files import absolute_path, link_target, open_plain, relative, working_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

    from orchestrator.node.protocol.connection import Empty
    from orchestrator.node.protocol.transfer import (
        ClaimReply,
        ClaimRequest,
        DigestReply,
        DigestRequest,
        FileEntry,
        KeepTimeRequest,
        OfferReply,
        OfferRequest,
        PiecesReply,
        PiecesRequest,
    )

CLAIM = ".orch-put-"
PART = ".orch-part"
LONGEST_NAME = 200  # of the name in that of a part, which may have 255 bytes


class Incoming:
    """The files that one connection offers and sends."""

    def __init__(self) -> None:
        self._folder = ""
        self._entries: List[FileEntry] = []
        self._staged: Dict[str, str] = {}
        """New top-level folder -> the name under which it is filled."""
        self._file: Optional[PartFile] = None

    @answers(CLAIM_FOLDER)
    def claim_folder(self, request: ClaimRequest, _payload: bytes) -> Tuple[ClaimReply, bytes]:
        """
        Make the folder, and claim it for a transfer; the first node on a file system is its owner.

        A symbolic link has its content from its first moment on, also on NFS.
        """
        if request["is_workdir"]:
            folder = working_folder(request["folder"])
        else:
            folder = absolute_path(request["folder"])
            os.makedirs(folder, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "not writable", folder)
        claim, owner = claim_path(folder, request["token"]), request["node"]
        try:
            os.symlink(owner, claim)
        except FileExistsError:
            owner = os.readlink(claim)
        return {"folder": folder, "owner": owner}, b""

    @answers(RELEASE_FOLDER)
    def release_folder(self, request: ClaimRequest, _payload: bytes) -> Tuple[Empty, bytes]:
        claim = claim_path(absolute_path(request["folder"]), request["token"])
        if os.path.lexists(claim):
            os.unlink(claim)
        return {}, b""

    @answers(OFFER)
    def offer(self, request: OfferRequest, payload: bytes) -> Tuple[OfferReply, bytes]:
        """Compare the entries with the folder; remove parts of what is not offered any more, which need space."""
        self._folder, self._entries = absolute_path(request["folder"]), unpacked(payload)
        self._staged = {}
        for entry in self._entries:
            relative(entry["path"])
            if entry["kind"] == "link":
                link_target(entry["path"], entry["target"])
            top = entry["path"].partition("/")[0]
            if (
                entry["kind"] == "folder"
                and entry["path"] == top
                and not os.path.lexists(os.path.join(self._folder, top))
            ):
                self._staged[top] = part_name(top)
        for entry in self._entries:
            if entry["kind"] == "folder":
                make_folder(self._path(entry), entry["mode"])
        self._remove_old_parts()
        states = [self._state(entry) for entry in self._entries]
        needed = sum(
            entry["size"] - state
            for entry, state in zip(self._entries, states)
            if entry["kind"] == "file" and state >= 0
        )
        free = free_bytes(self._folder)
        missing = 0 if free is None else max(0, needed - free)
        return {"states": states, "free_bytes": free or 0, "missing_bytes": missing}, b""

    @answers(DIGEST)
    def digest(self, request: DigestRequest, _payload: bytes) -> Tuple[DigestReply, bytes]:
        path = self._path(self._entries[request["index"]])
        descriptor = open_plain(part_path(path, self._entries[request["index"]]) if request["is_part"] else path)
        try:
            return {"sha256": hashed(descriptor, request["size"]).hexdigest()}, b""
        finally:
            os.close(descriptor)

    @answers(PUT_PIECES)
    def put_pieces(self, request: PiecesRequest, payload: bytes) -> Tuple[PiecesReply, bytes]:
        """Write pieces to the parts of their files; a complete file gets its name, unless its hash is wrong."""
        damaged, position = [], 0
        with memoryview(payload) as view:
            for index, offset, size, sha256 in request["pieces"]:
                if self._file is None or self._file.index != index:
                    self._close()
                    entry = self._entries[index]
                    self._file = PartFile(index, self._path(entry), entry, offset)
                self._file.write(offset, view[position : position + size])
                position += size
                if sha256:
                    file, self._file = self._file, None
                    if not file.finish(sha256):
                        damaged.append(index)
        return {"damaged": damaged}, b""

    @answers(KEEP_TIME)
    def keep_time(self, request: KeepTimeRequest, _payload: bytes) -> Tuple[Empty, bytes]:
        entry = self._entries[request["index"]]
        descriptor = open_plain(self._path(entry))
        try:
            set_mode_and_time(descriptor, entry)
        finally:
            os.close(descriptor)
        return {}, b""

    @answers(FINISH)
    def finish(self, _request: Empty, _payload: bytes) -> Tuple[Empty, bytes]:
        """Make the links, give the folders their modes, and the new ones their names."""
        self._close()
        for entry in self._entries:
            if entry["kind"] == "link":
                make_link(self._path(entry), entry["target"])
        for top, staged in self._staged.items():
            remove_all_but(os.path.join(self._folder, staged), top, {entry["path"] for entry in self._entries})
        for entry in reversed(self._entries):
            if entry["kind"] == "folder":
                os.chmod(self._path(entry), entry["mode"])
        for top, staged in self._staged.items():
            os.rename(os.path.join(self._folder, staged), os.path.join(self._folder, top))
        self._staged = {}
        return {}, b""

    def _path(self, entry: FileEntry) -> str:
        """The path of an entry, until the end below the temporary name of a new folder."""
        top, slash, rest = entry["path"].partition("/")
        return os.path.join(self._folder, self._staged.get(top, top) + slash + rest)

    def _state(self, entry: FileEntry) -> int:
        if entry["kind"] != "file":
            return ALIKE
        path = self._path(entry)
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            pass
        else:
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is a folder here and a file there", path)
            if stat.S_ISREG(found.st_mode) and found.st_size == entry["size"]:
                return ALIKE if found.st_mtime_ns == entry["mtime_ns"] else SAME_SIZE
        try:
            part = os.lstat(part_path(path, entry))
        except FileNotFoundError:
            return 0
        return min(part.st_size, entry["size"]) if stat.S_ISREG(part.st_mode) else 0

    def _remove_old_parts(self) -> None:
        """Remove the parts of earlier versions of the files that are offered."""
        parts: Dict[str, Set[str]] = {}
        prefixes: Dict[str, Set[str]] = {}
        for entry in self._entries:
            if entry["kind"] == "file":
                folder, part = os.path.split(part_path(self._path(entry), entry))
                parts.setdefault(folder, set()).add(part)
                prefixes.setdefault(folder, set()).add(part_stem(part))
        for folder, current in parts.items():
            for name in os.listdir(folder):
                if name.endswith(PART) and name not in current and part_stem(name) in prefixes[folder]:
                    os.unlink(os.path.join(folder, name))

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class PartFile:
    """A file on its way, under its temporary name."""

    def __init__(self, index: int, path: str, entry: FileEntry, offset: int) -> None:
        """Continue at the offset; all after it is dropped."""
        self.index = index
        self._path, self._part, self._entry = path, part_path(path, entry), entry
        self._offset = offset
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._part, flags, 0o600)
        os.ftruncate(self._descriptor, offset)
        self._digest: Any = hashed(self._descriptor, offset)

    def write(self, offset: int, data: memoryview) -> None:
        if offset != self._offset:
            raise ValueError(f"{self._path}: a piece at {offset} bytes where {self._offset} were expected")
        self._digest.update(data)
        while data:
            try:
                written = os.pwrite(self._descriptor, data, self._offset)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._path) from error
            data = data[written:]
            self._offset += written

    def finish(self, sha256: str) -> bool:
        """Give the file its name if it is what was sent, else remove it; return whether it is."""
        is_whole = self._offset == self._entry["size"] and self._digest.hexdigest() == sha256
        if is_whole:
            set_mode_and_time(self._descriptor, self._entry)
        self.close()
        if is_whole:
            os.replace(self._part, self._path)
        else:
            os.unlink(self._part)
        return is_whole

    def close(self) -> None:
        os.close(self._descriptor)


def claim_path(folder: str, token: str) -> str:
    if not (token.isascii() and token.isalnum()):
        raise ValueError(f"{token!r} is not a token")
    return os.path.join(folder, CLAIM + token)


def part_path(path: str, entry: FileEntry) -> str:
    """The temporary name of this version of a file, beside it."""
    folder, name = os.path.split(path)
    return os.path.join(folder, part_name(name, f"{entry['size']} {entry['mtime_ns']}"))


def part_name(name: str, version: str = "") -> str:
    """A hidden name; it begins alike for all versions of a file."""
    import hashlib  # slow to import

    short, digest = os.fsencode(name)[:LONGEST_NAME], hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
    version_part = f".{hashlib.sha256(version.encode()).hexdigest()[:8]}" if version else ""
    return f".{short.decode('utf-8', 'ignore')}.{digest}{version_part}{PART}"


def part_stem(part: str) -> str:
    """The beginning that parts of all versions of a file share."""
    return part[: -len(PART)].rpartition(".")[0]


def make_folder(path: str, mode: int) -> None:
    """Make a folder that this user can fill, unless there is one; a link or a file there is an error."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        state = os.lstat(path)
        if stat.S_ISLNK(state.st_mode):
            raise NotADirectoryError(
                errno.ENOTDIR, "is a symbolic link, through which no files are sent", path
            ) from None
        if not stat.S_ISDIR(state.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "is no folder", path) from None
        if not os.access(path, os.W_OK | os.X_OK):
            os.chmod(path, mode | 0o700)


def make_link(path: str, target: str) -> None:
    """Make a symbolic link, also over a file or an earlier link, in one step."""
    if os.path.islink(path) and os.readlink(path) == target:
        return
    folder, name = os.path.split(path)
    fresh = os.path.join(folder, part_name(name))
    if os.path.lexists(fresh):
        os.unlink(fresh)
    os.symlink(target, fresh)
    os.replace(fresh, path)


def remove_all_but(folder: str, top: str, paths: Set[str]) -> None:
    """Remove what an earlier, different transfer has left in a folder that is new."""
    for parent, folders, files in os.walk(folder, topdown=False):
        below = os.path.join(top, os.path.relpath(parent, folder)) if parent != folder else top
        for name in files + folders:
            if os.path.join(below, name) not in paths:
                path = os.path.join(parent, name)
                if os.path.isdir(path) and not os.path.islink(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)


def set_mode_and_time(descriptor: int, entry: FileEntry) -> None:
    os.fchmod(descriptor, entry["mode"] & 0o777)
    os.utime(descriptor, ns=(entry["mtime_ns"], entry["mtime_ns"]))


def free_bytes(folder: str) -> Optional[int]:
    """The free space for this user; None if the file system reports no sizes."""
    disk = os.statvfs(folder)
    if not disk.f_blocks:
        return None
    return (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
