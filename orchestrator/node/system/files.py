"""Files and folders of a node: opened without following links, written atomically, private to this user."""

from __future__ import annotations

import errno
import os
import stat

from orchestrator.node.number_text import three_digits
from orchestrator.node.system.fast_stdlib import dumps, loads, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO, Any, Dict, Optional

    Json = Dict[str, Any]

JSON_LIMIT_BYTES = 16 << 20


class NotPlainFile(PermissionError):
    """A link, a folder or a pipe where a regular file is expected."""


def open_plain(path: str) -> int:
    """Open a regular file for reading; NotPlainFile for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPlainFile(f"{path} is a symbolic link") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainFile(f"{path} is not a regular file")
    return descriptor


def error_text(error: BaseException) -> str:
    """The message of an exception; of an OSError 'path: reason', without its number."""
    if not (isinstance(error, OSError) and error.strerror):
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def read_at(path: str, offset: int, size: int) -> bytes:
    """Read up to size bytes at the offset; empty if there is no such file."""
    try:
        descriptor = open_plain(path)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)


def tail(path: str, size: int) -> str:
    """The last bytes of a file; empty if there is none."""
    try:
        length = os.lstat(path).st_size
    except FileNotFoundError:
        return ""
    return read_at(path, max(0, length - size), size).decode("utf-8", "replace")


def read_json(path: str) -> Optional[Json]:
    """The JSON object in a file that other programs may write; None if it is missing, incomplete or holds something else."""
    try:
        with open(open_plain(path), "rb") as file:
            value = loads(file.read(JSON_LIMIT_BYTES))
    except (FileNotFoundError, NotPlainFile, ValueError):
        return None
    return value if isinstance(value, dict) else None


def user_name() -> str:
    """The name of this user; the number if it has no name, as in some containers."""
    import pwd  # only Unix has it, and only this function needs it

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def absolute_path(path: str) -> str:
    """An absolute path; `~/` is the home folder of this user, and a folder `$USER` has this user's name."""
    expanded = os.path.expanduser(path)
    if "/$USER" in expanded:
        expanded = "/".join(user_name() if part == "$USER" else part for part in expanded.split("/"))
    if not os.path.isabs(expanded) or "\0" in expanded:
        raise ValueError(f"{path!r} is not an absolute path")
    return os.path.normpath(expanded)


def expanded_argument(argument: str) -> str:
    """An argument of a command, as an absolute path if it is one with `~/` or `$USER`."""
    return absolute_path(argument) if argument.startswith("~/") or "/$USER/" in argument else argument


def relative(path: str) -> str:
    """The same path if it stays below the folder it is relative to; ValueError otherwise."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{path!r} leads out of the folder")
    return path


def link_target(path: str, target: str) -> str:
    """The path that a link at `path` names, relative to the same folder, by its text; ValueError if it is not below the folder."""
    return relative(os.path.normpath(os.path.join(os.path.dirname(path), target)))


def raise_unless_missing(error: OSError) -> None:
    """Raise an error of os.walk, which ignores all by default, unless the folder was removed in the meantime."""
    if not isinstance(error, FileNotFoundError):
        raise error


def check_private_folder(path: str) -> None:
    """Raise unless path is a folder of this user and no link; if other users have access, remove it (mode 0700)."""
    if check_own_folder(path) & 0o077:
        os.chmod(path, 0o700)


def check_own_folder(path: str) -> int:
    """Raise unless path is a folder of this user and no link; return its mode."""
    state = os.lstat(path)
    if stat.S_ISLNK(state.st_mode):
        raise PermissionError(f"{path} is a symbolic link")
    if not stat.S_ISDIR(state.st_mode):
        raise NotADirectoryError(f"{path} is not a folder")
    if state.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {state.st_uid}, not to {os.geteuid()}")
    return state.st_mode


def make_private_folder(path: str) -> None:
    """Make a folder of this user, mode 0700, unless path is one."""
    with suppress(FileExistsError):  # check_private_folder raises if it is not a folder of this user
        os.mkdir(path, 0o700)
    check_private_folder(path)


def working_folder(workdir: str) -> str:
    """Return the working folder's path; make the folder if it is missing."""
    path = absolute_path(workdir)
    with suppress(FileExistsError):  # the check raises if it is no folder
        os.makedirs(path, 0o700)
    check_working_folder(path)
    return path


PRIVATE_FOLDERS = ("bundles", "runs")  # of a working folder


def check_working_folder(path: str) -> None:
    """
    Raise if no run can have this working folder.

    It may be a symbolic link that belongs to this user or root, and it may be readable for a group; the folders in it may not.
    """
    link, state = os.lstat(path), os.stat(path)
    if not stat.S_ISDIR(state.st_mode):
        raise NotADirectoryError(f"{path} is not a folder")
    if link.st_uid not in (0, os.geteuid()) or state.st_uid != os.geteuid():
        owners = f"belongs to user {state.st_uid}, not to {os.geteuid()}"
        raise PermissionError(f"{path} {owners}; each user needs a folder, such as {path}/$USER")
    if state.st_mode & stat.S_IWOTH:
        raise PermissionError(f"{path} is writable for everyone; each user needs a folder, such as {path}/$USER")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} is not writable")


def working_folder_refusal(path: str) -> str:
    """The reason for which a launch would refuse a working folder; empty if it would take it, or make it."""
    try:
        if os.path.lexists(path):
            check_working_folder(path)
        for name in PRIVATE_FOLDERS:
            if os.path.lexists(os.path.join(path, name)):
                check_own_folder(os.path.join(path, name))
    except OSError as error:
        return str(error)
    return ""


def make_parents(root: str, folder: str) -> None:
    """Make every folder between root and folder; PermissionError if one of them is a link."""
    if folder != root:
        make_parents(root, os.path.dirname(folder))
        make_private_folder(folder)


def write_new(path: str, content: IO[bytes], mode: int) -> None:
    """Write a file that must not exist yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        while block := content.read(1 << 20):
            file.write(block)


def open_for_write(path: str, flag: int) -> int:
    """Open a file for writing, mode 0600 if it is new; OSError if the path is a symbolic link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flag, 0o600)


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write a file atomically: readers never get a part of it, not even after a crash of the machine."""
    with open(open_for_write(path + ".tmp", os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(dumps(value))
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


def low_size_limit(least_bytes: int, use: str) -> str:
    """The report that this process may write no files of that size, which `use` needs; empty if it may."""
    import resource  # not on the way of every connection

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY or limit >= least_bytes:
        return ""
    return f"files may have {limit >> 10} KiB here, too little for {use}"


LEAST_FILE_BYTES = 1 << 20  # of an agent's records
FULL_BYTES = 1 << 16  # less than a file system with large blocks may leave free


def full_disk(path: str) -> str:
    """The report that the file system of a path is full; empty if it is not, or cannot be queried."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return ""
    if not disk.f_blocks or disk.f_flag & os.ST_RDONLY:  # it reports no sizes, or never has space
        return ""
    is_root = os.geteuid() == 0  # may use the reserve
    if (disk.f_bfree if is_root else disk.f_bavail) * disk.f_frsize < FULL_BYTES:
        size = disk.f_blocks * disk.f_frsize
        return f"the disk of {path} is full (0 of {three_digits(size / 1e9)} GB free)"
    return (
        f"the disk of {path} has no inodes left"
        if disk.f_files and not (disk.f_ffree if is_root else disk.f_favail)
        else ""
    )
