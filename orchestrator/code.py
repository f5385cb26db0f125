"""The user's code: the files of a work tree or a folder that are sent to the nodes, and its revision in git."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.errors import UsageError

_SKIPPED = {"__pycache__", "node_modules", ".git", ".venv", "venv"}
_SUBMODULE = "160000"  # the mode of a submodule in git's index


@dataclass(frozen=True, slots=True)
class Code:
    """The user's code: its root folder, the working folder relative to it, and the files to send."""

    root: Path
    cwd: str
    files: tuple[str, ...]
    absent: tuple[str, ...] = ()
    """Submodules whose files are not here."""
    nested: tuple[str, ...] = ()
    """Other git repositories in the work tree, which are not submodules; git does not list their files."""
    commit: str = ""
    """The git commit, with `-dirty` appended if tracked files differ from it; empty outside of git."""


def find_code(cwd: Path, argv: Sequence[str], private: Sequence[str] = ()) -> Code:
    """
    Find the code that a program started in `cwd` needs.

    In a git work tree: all tracked files, and uncommitted files that are not ignored, also of submodules. Elsewhere, if an argument names a file
    or folder below `cwd`: all files below `cwd` except hidden ones and virtual environments; otherwise no files.

    Args:
        argv: the program and its arguments.
        private: files that are not sent to the nodes.

    Raises:
        UsageError: git cannot list the files; or, outside of git, `cwd` is a home folder or the root, which contain more than
            code.
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
        return Code(cwd, "", tuple(sorted({*walk(cwd)} - {*_below(cwd, private)})))
    root = Path(top.strip())
    listed, absent = _work_tree_files(root)
    names = sorted({name for name in listed if _is_file(root / name)} - {*_below(root, private)})
    below = PurePosixPath(cwd.resolve().relative_to(root.resolve()).as_posix())
    nested = sorted(name.removesuffix("/") for name in listed if name.endswith("/"))
    path = "" if below == PurePosixPath() else str(below)
    return Code(root, path, tuple(names), tuple(absent), tuple(nested), commit=_commit(root))


def _commit(root: Path) -> str:
    """The full commit, with `-dirty` appended if tracked files differ; empty if there is none. No tag matches `/`."""
    return (_git(root, "describe", "--always", "--dirty", "--abbrev=64", "--match=/") or "").strip()


def _work_tree_files(root: Path) -> tuple[list[str], list[str]]:
    """
    List the tracked and the new files of a work tree and its submodules, and the submodules that are not checked out.

    The name of another repository in the work tree ends with a slash.
    """
    names = _git_list(root, "ls-files", "-z", "--others", "--exclude-standard")
    absent: list[str] = []
    for entry in _git_list(root, "ls-files", "-z", "--stage"):
        fields, _, name = entry.partition("\t")
        if not fields.startswith(_SUBMODULE):
            names.append(name)
        elif (root / name / ".git").exists():
            files, missing = _work_tree_files(root / name)
            names += [f"{name}/{file}" for file in files]
            absent += [f"{name}/{submodule}" for submodule in missing]
        else:
            absent.append(name)
    return names, absent


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


def _git(cwd: Path, *args: str) -> str | None:
    """The output of git; None if git fails or is not installed."""
    try:
        result = subprocess.run(["git", *args], cwd=cwd, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return result.stdout.decode(errors="surrogateescape") if result.returncode == 0 else None


def _git_list(root: Path, *args: str) -> list[str]:
    """The entries of git's output, which are separated by NUL; UsageError if git fails: code would be missing on the nodes."""
    result = subprocess.run(["git", *args], cwd=root, capture_output=True, check=False)
    if result.returncode != 0:
        reason = result.stderr.decode(errors="replace").strip() or f"exit status {result.returncode}"
        raise UsageError(f"git cannot list the code in {root}: {reason}", hint=f"git -C {root} status shows why")
    return result.stdout.decode(errors="surrogateescape").split("\0")[:-1]


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()  # not a submodule's folder, not deleted


def walk(root: Path) -> Iterator[str]:
    """Yield the files below a folder, without hidden ones, byte code and virtual environments."""
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
