"""The bundle that is sent to the nodes: the agent, the trainer and the user's code in one archive, named by its digest."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.errors import OrchError, UsageError
from orchestrator.resources import node_folder, trainer_folder

LIMIT_BYTES = 256 * 1024 * 1024
_SKIPPED = {"__pycache__", "node_modules", ".git", ".venv", "venv"}


class Bundle:
    """Files that were read exactly once, so that `digest` identifies the content of `archive`."""

    def __init__(self, files: Sequence[tuple[str, Path]], left_out: Sequence[str]) -> None:
        """
        Read the files.

        Args:
            files: pairs of the name within the bundle and the file here; a symbolic link is sent as a link.
            left_out: symbolic links of the code that point out of it; a node would refuse them.
        """
        self.files, self.left_out = tuple(files), tuple(left_out)
        self._members = deque(_member(name, path) for name, path in files)
        self.digest = _digest(self._members)
        """Hex digest of names, modes and contents; a node that has a bundle of this digest is sent none."""
        self._lock = threading.Lock()
        self._archive: tuple[bytes, str] | None = None

    @property
    def archive(self) -> tuple[bytes, str]:
        """
        A tar.gz, the same for all nodes, and its SHA-256; packed when the first node needs it.

        Raises:
            OrchError: packing has failed before, as for lack of memory; it cannot be repeated.
        """
        with self._lock:
            if self._archive is None:
                if len(self._members) < len(self.files):
                    raise OrchError("the code could not be packed", hint="free memory, or raise the limit: ulimit -v")
                archive = _pack(self._members)
                self._archive = archive, hashlib.sha256(archive).hexdigest()
            return self._archive


def _digest(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> str:
    total = hashlib.sha256()
    for info, content in members:
        mode = "l" if info.issym() else "x" if info.mode & 0o100 else "-"
        total.update(f"{info.name}\0{mode}\0{hashlib.sha256(content).hexdigest()}\n".encode(errors="surrogateescape"))
    return total.hexdigest()[:32]


def _pack(members: deque[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """
    Pack the members, and remove them from the queue one by one, so that memory holds each content once.

    Compression level 1: most files are small, and the network to the nodes is fast.
    """
    buffer = io.BytesIO()
    folders = {PurePosixPath(info.name).parent for info, _ in members if info.name.startswith("trainer/")}
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        while members:
            info, content = members.popleft()
            archive.addfile(info, io.BytesIO(content))
        for folder in sorted(folders):
            # a rank would create this folder with mode 0777 less its umask
            cache = tarfile.TarInfo(f"{folder}/__pycache__")
            cache.type, cache.mode = tarfile.DIRTYPE, 0o700
            archive.addfile(cache)
    return buffer.getvalue()


def _member(name: str, path: Path) -> tuple[tarfile.TarInfo, bytes]:
    """The header of a file, without its owner and times, and its content; the content of a link is its target."""
    info = tarfile.TarInfo(name)
    if path.is_symlink():
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        return info, os.fsencode(info.linkname)
    with path.open("rb") as file:
        content = file.read()
        info.mode = 0o700 if os.fstat(file.fileno()).st_mode & 0o100 else 0o600
    info.size = len(content)
    return info, content


@dataclass(frozen=True, slots=True)
class Code:
    """The user's code: its root folder, the working folder relative to it, and the files to send."""

    root: Path
    cwd: str
    files: tuple[str, ...]


def build(*, trainer: bool, code: Code | None) -> Bundle:
    """
    Read the files of a bundle: the agent, trainer/ if `trainer`, and the user's code if there is any.

    Raises:
        UsageError: the code is larger than LIMIT_BYTES.
    """
    folders = {"orchestrator/node": node_folder(), **({"trainer": trainer_folder()} if trainer else {})}
    files = [(f"{prefix}/{name}", folder / name) for prefix, folder in folders.items() for name in _walk(folder)]
    # empty, because the package of the launching machine imports modules that the nodes do not have
    files.append(("orchestrator/__init__.py", node_folder() / "__init__.py"))
    left_out: tuple[str, ...] = ()
    if code is not None:
        _refuse_large(code)
        left_out = tuple(name for name in code.files if _points_out(code.root, name))
        files += [(f"code/{name}", code.root / name) for name in code.files if name not in left_out]
    files.sort()
    return Bundle(files, left_out)


def find_code(cwd: Path, argv: Sequence[str], private: Sequence[str] = ()) -> Code:
    """
    Find the code that a program started in `cwd` needs.

    In a git work tree: all tracked files, and uncommitted files that are not ignored. Elsewhere, if an argument names a file
    or folder below `cwd`: all files below `cwd` except hidden ones and virtual environments; otherwise no files.

    Args:
        argv: the program and its arguments.
        private: files that are not sent to the nodes.

    Raises:
        UsageError: outside of git, `cwd` is a home folder or the root, which contain more than code.
    """
    top = _git(cwd, "rev-parse", "--show-toplevel")
    if top is None:
        _require_no_repository(cwd)
        if argv[0] != "-m" and not any(word and not word.startswith("/") and (cwd / word).exists() for word in argv):
            return Code(cwd, "", ())
        if cwd in {Path.home(), Path(cwd.anchor)}:
            raise UsageError(
                f"the code in {cwd} is not in a git work tree, and all of that folder would be sent to the nodes",
                hint="start from a folder that holds only the code, or keep it in git",
            )
        return Code(cwd, "", tuple(sorted({*_walk(cwd)} - {*_below(cwd, private)})))
    root = Path(top.strip())
    listed = _git(root, "ls-files", "-z", "--cached", "--recurse-submodules") or ""
    listed += _git(root, "ls-files", "-z", "--others", "--exclude-standard") or ""
    names = sorted({name for name in listed.split("\0") if name and _is_file(root / name)} - {*_below(root, private)})
    below = PurePosixPath(cwd.resolve().relative_to(root.resolve()).as_posix())
    return Code(root, "" if below == PurePosixPath() else str(below), tuple(names))


def _require_no_repository(cwd: Path) -> None:
    """Refuse a git work tree that git cannot read: its ignored files would be sent as code."""
    if any((folder / ".git").exists() for folder in (cwd, *cwd.parents)):
        raise UsageError(
            f"{cwd} is in a git work tree that git cannot read: git is not installed, or another user owns the work tree",
            hint="git -C . status shows why",
        )


def revision(cwd: Path, private: Sequence[str] = ()) -> tuple[str | None, str]:
    """The git commit of the work tree at `cwd`, and the diff against it without `private` files; (None, "") outside of git."""
    commit = _git(cwd, "rev-parse", "--verify", "-q", "HEAD")
    if commit is None:
        return None, ""
    top = Path((_git(cwd, "rev-parse", "--show-toplevel") or "").strip())
    left_out = [f":(top,exclude,literal){name}" for name in _below(top, private)]
    return commit.strip(), _git(cwd, "diff", "--no-color", "--no-ext-diff", "HEAD", "--", ":/", *left_out) or ""


def _below(root: Path, files: Sequence[str]) -> Iterator[str]:
    """The paths, relative to `root`, of the files below it: as given, and with symbolic links resolved."""
    for file in files:
        for path, base in ((Path(file).absolute(), root), (Path(file).resolve(), root.resolve())):
            if path.is_relative_to(base):
                yield path.relative_to(base).as_posix()


def _points_out(root: Path, name: str) -> bool:
    """True if the file is a symbolic link to a target outside of `root`, or an absolute link."""
    path = root / name
    if not path.is_symlink():
        return False
    target = path.readlink()
    return target.is_absolute() or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def _git(cwd: Path, *args: str) -> str | None:
    """The output of git; None if git fails or is not installed."""
    try:
        result = subprocess.run(["git", *args], cwd=cwd, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return result.stdout.decode(errors="surrogateescape") if result.returncode == 0 else None


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()  # not a submodule's folder, not deleted


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED and not name.startswith(".") and not (Path(folder) / name / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            path = Path(folder) / name
            if not name.startswith(".") and not name.endswith(".pyc") and _is_file(path):
                yield path.relative_to(root).as_posix()


def _refuse_large(code: Code) -> None:
    sizes = sorted(((os.lstat(code.root / name).st_size, name) for name in code.files), reverse=True)
    total = sum(size for size, _ in sizes)
    if total <= LIMIT_BYTES:
        return
    largest = ", ".join(f"{name} ({size >> 20} MiB)" for size, name in sizes[:3])
    raise UsageError(
        f"the code below {code.root} is {total >> 20} MiB, and at most {LIMIT_BYTES >> 20} MiB are sent; largest: {largest}",
        hint="list data and checkpoints in .gitignore, or start from a folder that holds only the code",
    )
