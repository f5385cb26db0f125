"""The user's code: the files of a work tree or a folder that are sent to the nodes, and its revision in git."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from orchestrator.code.exclusions import CodeRules, by_reason, is_secret
from orchestrator.code.ignore_files import IgnoreFiles
from orchestrator.errors import UsageError

GITIGNORE = ".gitignore"
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
    changed: int = 0
    """The number of files that differ from the commit, new ones included."""
    is_unnamed: bool = False
    """No code is sent, because no argument names a file of the folder, which is outside of git, although programs are in it."""
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The files and folders that are not sent, by the rule: a kind of files, or the ignore file."""

    @property
    def secrets(self) -> list[str]:
        """The files that are sent although they usually hold passwords, keys or tokens."""
        return [name for name in self.files if is_secret(name)]


def find_code(cwd: Path, argv: Sequence[str], private: Sequence[str] = (), orch_folders: Sequence[Path] = ()) -> Code:
    """
    Find the code that a program started in `cwd` needs.

    In a git work tree: all tracked files, also of submodules, and new ones that are neither ignored nor left out by the rules of
    exclusions.py. Elsewhere, if an argument, or a word in it, names a file or folder below `cwd`: all files below `cwd` under the same
    rules; otherwise no files. A file that an argument names is sent unless an ignore file leaves it out.

    Args:
        argv: the program and its arguments.
        private: files that are not sent to the nodes.
        orch_folders: folders of orch itself.

    Raises:
        UsageError: git cannot list the files; or, outside of git, `cwd` is a home folder or the root, which contain more than
            code.
    """
    top = _git(cwd, "rev-parse", "--show-toplevel")
    if top is None:
        if any((folder / ".git").exists() for folder in (cwd, *cwd.parents)):  # its ignored files would be sent as code
            cause = "git is not installed, or another user owns the work tree"
            hint = "git -C . status shows why"
            raise UsageError(f"{cwd} is in a git work tree that git cannot read: {cause}", hint=hint)
        return _code_outside_of_git(cwd, argv, private, orch_folders)
    root = Path(top.strip())
    tracked, new, absent = _work_tree_files(root)
    nested = sorted(name.removesuffix("/") for name in new if name.endswith("/"))
    selection = CodeRules(root, _named_files(root, cwd, argv), orch_folders)
    sent = {name for name in tracked if selection.travels(name, is_tracked=True)}
    added = {name for name in new if not name.endswith("/") and selection.travels(name)}
    sent |= added | {*selection.included()}
    files = sorted({name for name in sent if _is_file(root / name)} - {*_below(root, private)})
    below = PurePosixPath(cwd.resolve().relative_to(root.resolve()).as_posix())
    path = "" if below == PurePosixPath() else str(below)
    # the full commit, with `-dirty` appended if tracked files differ; no tag matches `/`
    commit = (_git(root, "describe", "--always", "--dirty", "--abbrev=64", "--match=/") or "").strip()
    changed = len(added) + (len(_git_list(root, "diff", "--name-only", "-z", "HEAD")) if "-dirty" in commit else 0)
    # a whole folder as one name
    ignored_names = _git_list(root, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    ignored = {name: GITIGNORE for name in ignored_names if name not in sent}
    left_out = by_reason({**selection.left_out, **ignored})
    parts = tuple(files), tuple(absent), tuple(nested)
    return Code(root, path, *parts, commit=commit, changed=changed, left_out=left_out)


def _code_outside_of_git(cwd: Path, argv: Sequence[str], private: Sequence[str], orch_folders: Sequence[Path]) -> Code:
    named = _named_files(cwd, cwd, argv)
    if argv[0] != "-m" and not named and not any(_exists(cwd, word) for word in _words(argv)):
        has_programs = not argv[0].startswith("/") and any(path.suffix in (".py", ".sh") for path in cwd.iterdir())
        return Code(cwd, "", (), is_unnamed=has_programs)
    if cwd in {Path.home(), Path(cwd.anchor)}:
        text = f"the code in {cwd} is not in a git work tree, and all of that folder would be sent to the nodes"
        raise UsageError(text, hint="start from a folder that holds only the code, or keep it in git")
    selection = CodeRules(cwd, named, orch_folders)
    files = {*_walk_by_rules(cwd, selection), *selection.included()}
    return Code(cwd, "", tuple(sorted(files - {*_below(cwd, private)})), left_out=by_reason(selection.left_out))


def _words(argv: Sequence[str]) -> Iterator[str]:
    """The arguments, and the words in those of `sh -c`."""
    for argument in argv:
        yield argument
        if any(char.isspace() for char in argument):
            lexer = shlex.shlex(argument, posix=True, punctuation_chars=True)
            lexer.whitespace_split, lexer.commenters = True, ""
            try:
                yield from lexer
            except ValueError:  # a quotation without an end: not a line of shell
                yield from argument.split()


def _exists(cwd: Path, word: str) -> bool:
    try:
        return bool(word) and not word.startswith("/") and (cwd / word).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False


def _named_files(root: Path, cwd: Path, argv: Sequence[str]) -> set[str]:
    """The files below `root` that a word of the command line names, as it is or after a `=`; relative to `root`."""
    words = {part for word in _words(argv) for part in (word, word.partition("=")[2])}
    names = (path_in_code(root, cwd / word) for word in words if _exists(cwd, word) and (cwd / word).is_file())
    return {name for name in names if not name.startswith("../")}


def path_in_code(root: Path, path: Path) -> str:
    """The path relative to `root`; a link at its end is not followed. It begins with `../` outside of `root`."""
    folder = os.path.relpath(os.path.realpath(path.parent), os.path.realpath(root))
    return os.path.normpath(f"{folder}/{path.name}")


def _walk_by_rules(root: Path, selection: CodeRules) -> Iterator[str]:
    """Yield the files below a folder that is not in git and that the rules and .gitignore let travel."""
    gitignore = IgnoreFiles(root, GITIGNORE)
    for folder, folders, names in os.walk(root):
        at = PurePosixPath(Path(folder).relative_to(root).as_posix())
        kept = []
        for name in sorted(folders):
            path = str(at / name)
            if (root / path).is_symlink():
                names.append(name)
            elif name == ".git" or gitignore.is_ignored(f"{path}/"):
                selection.left_out[f"{path}/"] = GITIGNORE
            elif selection.enters(path):
                kept.append(name)
        folders[:] = kept
        for name in sorted(names):
            path = str(at / name)
            if gitignore.is_ignored(path):
                selection.left_out[path] = GITIGNORE
            elif _is_file(root / path) and selection.travels(path):
                yield path


def _work_tree_files(root: Path) -> tuple[list[str], list[str], list[str]]:
    """
    List the tracked and the new files of a work tree and its submodules, and the submodules that are not checked out.

    The name of another repository in the work tree ends with a slash; it is among the new files.
    """
    new = _git_list(root, "ls-files", "-z", "--others", "--exclude-standard")
    tracked: list[str] = []
    absent: list[str] = []
    for entry in _git_list(root, "ls-files", "-z", "--stage"):
        fields, _, name = entry.partition("\t")
        if not fields.startswith(_SUBMODULE):
            tracked.append(name)
        elif (root / name / ".git").exists():
            files, added, missing = _work_tree_files(root / name)
            tracked += [f"{name}/{file}" for file in files]
            new += [f"{name}/{file}" for file in added]
            absent += [f"{name}/{submodule}" for submodule in missing]
        else:
            absent.append(name)
    return tracked, new, absent


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
    """Yield the files of a package, such as orchestrator/node, without hidden ones and byte code."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        for name in sorted(names):
            path = Path(folder) / name
            if not name.startswith(".") and not name.endswith(".pyc") and _is_file(path):
                yield path.relative_to(root).as_posix()
