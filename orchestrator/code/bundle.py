"""The bundle that is sent to the nodes: the agent, the trainer and the user's code in one archive, named by its digest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import threading
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from orchestrator.code.exclusions import ORCHIGNORE
from orchestrator.code.files import Code, walk
from orchestrator.code.report import CodeReport, first_names
from orchestrator.errors import OrchError, UsageError
from orchestrator.resources import check_sources, node_folder, trainer_folder

CODE = "code/"  # before the names of files from the user
LIMIT_BYTES = 256 * 1024 * 1024
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # the beginning of a file that Git LFS has not fetched


class Bundle:
    """Files that were read exactly once, so that `digest` identifies the content of `archive`."""

    def __init__(
        self, files: Sequence[tuple[str, Path]], warnings: Sequence[str] = (), code: Code | None = None
    ) -> None:
        """
        Read the files. A file of the code that is gone since it was listed is left out.

        Args:
            files: pairs of the name within the bundle and the file here; a symbolic link is sent as a link.
            warnings: one sentence for each part of the code that is not sent.
            code: the user's code among them.
        """
        self.commit = code.commit if code else ""
        self.root = code.root if code and code.files else None
        read = [(name, path, member) for name, path in files if (member := _member(name, path)) is not None]
        self.files = tuple((name, path) for name, path, _ in read)
        self._describe(member for _, _, member in read)
        self.warnings = tuple(warnings)
        in_code = [(info.name[len(CODE) :], info, text) for info, text in self._members if info.name.startswith(CODE)]
        if pointers := [name for name, _, text in in_code if text.startswith(_LFS_POINTER)]:
            without = f"sent as Git LFS pointers, without their content: {first_names(pointers)}"
            self.warnings += (f"{without}; `git lfs pull` fetches it",)
        self.report = CodeReport(code, {name: info.size for name, info, _ in in_code}) if code else None

    @classmethod
    def from_archive(cls, archive: bytes) -> Bundle:
        """The bundle of this archive, without files and warnings; OSError, EOFError or tarfile.TarError if it is damaged."""
        bundle = cls(())
        try:
            with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as packed:
                files = [info for info in packed if not info.isdir()]
                bundle._describe((info, _content(packed, info)) for info in files)
        except zlib.error as error:
            raise tarfile.ReadError(str(error)) from error
        bundle._members.clear()
        bundle._archive = archive, hashlib.sha256(archive).hexdigest()
        return bundle

    def _describe(self, members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> None:
        self._members = deque(members)
        self.size_bytes = sum(info.size for info, _ in self._members)
        self.code_size_bytes = sum(info.size for info, _ in self._members if info.name.startswith(CODE))
        digests = {info.name: hashlib.sha256(content).hexdigest() for info, content in self._members}
        modes = {info.name: "l" if info.issym() else "x" if info.mode & 0o100 else "-" for info, _ in self._members}
        self._entries = [(info.name, modes[info.name], digests[info.name]) for info, _ in self._members]
        total = hashlib.sha256()
        for name, mode, content in self._entries:
            total.update(f"{name}\0{mode}\0{content}\n".encode(errors="surrogateescape"))
        self.digest = total.hexdigest()[:32]
        """Hex digest of names, modes and contents; a node that has a bundle of this digest is sent none."""
        self.code = {name[len(CODE) :]: text[:16] for name, text in digests.items() if name.startswith(CODE)}
        """The beginning of the digest of each file of the code, by its name."""
        self._lock = threading.Lock()
        self._archive: tuple[bytes, str] | None = None
        self._part: tuple[frozenset[str], tuple[bytes, str]] | None = None

    @property
    def manifest(self) -> bytes:
        """Name, mode and digest of each file, as compressed JSON; `digest` is the digest of it."""
        return zlib.compress(json.dumps(self._entries).encode(), 1)

    def part(self, names: Collection[str]) -> tuple[bytes, str]:
        """As `archive`, of the files of these names and the links only; the newest part is kept for other nodes."""
        wanted = frozenset(names)
        if wanted.issuperset(name for name, mode, _ in self._entries if mode != "l"):
            return self.archive
        with self._lock:
            if self._part is None or self._part[0] != wanted:
                members = ((info, content) for info, content in self._contents() if info.name in wanted or info.issym())
                self._part = wanted, _with_checksum(_pack(members, self._cache_folders()))
            return self._part[1]

    def _contents(self) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
        """The files, which packing has moved to the archive."""
        if self._archive is None:
            yield from self._members
            return
        with tarfile.open(fileobj=io.BytesIO(self._archive[0]), mode="r:gz") as packed:
            yield from ((info, _content(packed, info)) for info in packed if not info.isdir())

    def _cache_folders(self) -> list[str]:
        """A rank would make these folders with mode 0777 less its umask."""
        folders = {PurePosixPath(name).parent for name, _, _ in self._entries if name.startswith("trainer/")}
        return sorted(f"{folder}/__pycache__" for folder in folders)

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
                self._archive = _with_checksum(_pack(_taken(self._members), self._cache_folders()))
            return self._archive


def _with_checksum(archive: bytes) -> tuple[bytes, str]:
    return archive, hashlib.sha256(archive).hexdigest()


def _taken(members: deque[tuple[tarfile.TarInfo, bytes]]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Remove the members from the queue one by one, so that memory holds each content once."""
    while members:
        yield members.popleft()


def _pack(members: Iterable[tuple[tarfile.TarInfo, bytes]], folders: Iterable[str]) -> bytes:
    """Pack the members and make empty folders. Compression level 1: most files are small, and the network to the nodes is fast."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
        for folder in folders:
            cache = tarfile.TarInfo(folder)
            cache.type, cache.mode = tarfile.DIRTYPE, 0o700
            archive.addfile(cache)
    return buffer.getvalue()


def _content(packed: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    """The content of a member as `_member` returns it."""
    file = None if info.issym() else packed.extractfile(info)
    return os.fsencode(info.linkname) if file is None else file.read()


def _member(name: str, path: Path) -> tuple[tarfile.TarInfo, bytes] | None:
    """
    The header of a file, without its owner and times, and its content; the content of a link is its target.

    None if a file of the code is gone, or no file any more: programs may write to the folder meanwhile.
    """
    info = tarfile.TarInfo(name)
    try:
        if path.is_symlink():
            info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
            return info, os.fsencode(info.linkname)
        with path.open("rb") as file:
            content = file.read()
            info.mode = 0o700 if os.fstat(file.fileno()).st_mode & 0o100 else 0o600
    except (FileNotFoundError, IsADirectoryError):
        if name.startswith(CODE):
            return None
        raise
    info.size = len(content)
    return info, content


def build(*, trainer: bool, code: Code | None, checks: bool = False) -> Bundle:
    """
    Read the files of a bundle: the agent, trainer/ if `trainer`, the checks of nodes if `checks`, and the user's code if there is any.

    Raises:
        UsageError: the code is larger than LIMIT_BYTES.
    """
    folders = {"orchestrator/node": node_folder(), **({"trainer": trainer_folder()} if trainer else {})}
    files = [(f"{prefix}/{name}", folder / name) for prefix, folder in folders.items() for name in walk(folder)]
    if checks:
        files += check_sources()
    # empty, because the package of the launching machine imports modules that the nodes do not have
    files.append(("orchestrator/__init__.py", node_folder() / "__init__.py"))
    warnings: list[str] = []
    if code is not None:
        _refuse_large(code)
        left_out = {name for name in code.files if _points_out(code.root, name)}
        files += [(f"{CODE}{name}", code.root / name) for name in code.files if name not in left_out]
        outside = "points out of the code and is not sent to the nodes"
        warnings += [f"the symbolic link {link} {outside}" for link in sorted(left_out)]
        if code.absent:
            submodules = f"submodules that are not checked out are not sent: {first_names(code.absent)}"
            warnings.append(f"{submodules}; `git submodule update --init --recursive` fetches them")
        if code.nested:
            repositories = "git repositories in the work tree that are not submodules are not sent"
            end = "`git submodule add` includes one, .gitignore ends this warning"
            warnings.append(f"{repositories}: {first_names(code.nested)}; {end}")
        if secrets := code.secrets:
            why = "git tracks them or they were asked for" if len(secrets) > 1 else "git tracks it or it was asked for"
            warnings.append(f"files that may hold secrets are sent to the nodes, because {why}: {first_names(secrets)}")
    files.sort()
    return Bundle(files, warnings, code)


def _points_out(root: Path, name: str) -> bool:
    """True if the file is a symbolic link to a target outside of `root`, or an absolute link."""
    path = root / name
    if not path.is_symlink():
        return False
    target = path.readlink()
    return target.is_absolute() or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def _refuse_large(code: Code) -> None:
    paths = ((code.root / name, name) for name in code.files)
    sizes = sorted(((os.lstat(path).st_size, name) for path, name in paths if os.path.lexists(path)), reverse=True)
    total = sum(size for size, _ in sizes)
    if total <= LIMIT_BYTES:
        return
    largest = ", ".join(f"{name} ({size >> 20} MiB)" for size, name in sizes[:3])
    raise UsageError(
        f"the code below {code.root} is {total >> 20} MiB, and at most {LIMIT_BYTES >> 20} MiB are sent; largest: {largest}",
        hint=f"list what the nodes do not need in {ORCHIGNORE}, which is written as .gitignore and also leaves out files that git tracks; "
        "pass data by an absolute path that exists on the nodes",
    )
