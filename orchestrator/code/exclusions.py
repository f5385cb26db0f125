"""The rules by which files that git does not track are left out of the code that is sent to the nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from orchestrator.code.ignore_files import IgnoreFiles
from orchestrator.node.excluded_folders import CACHES, reason_not_code

ORCHIGNORE = ".orchignore"
SECRETS = "secrets"
_HIDDEN_CACHES = frozenset(
    (".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".hypothesis", ".tox", ".nox", ".eggs")
)  # fmt: skip
_SECRET_FOLDERS = frozenset((".aws", ".azure", ".docker", ".gnupg", ".kube", ".ssh"))
_SECRET = re.compile(
    r"\.env(rc|\..+)?|.+\.env|.+\.(pem|key|p12|pfx|jks|ppk|kdbx)|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|\.?netrc|\.npmrc|\.pypirc"
    r"|\.pgpass|\.git-credentials|\.htpasswd|kubeconfig|(aws_)?credentials(\.json)?|client_secret.*\.json|service[-_]account.*\.json"
)
_NO_SECRET = re.compile(r".*\.(example|sample|template|dist)")
_CHECKPOINT_FOLDER = re.compile(r"(checkpoint-|global_step)\d+")
_CHECKPOINT = re.compile(r".+\.(pt|pth|ckpt|safetensors|distcp|gguf|onnx)|pytorch_model.*\.bin|adapter_model\.bin")
_RESULT = re.compile(r"events\.out\.tfevents\..+|slurm-\d+(_\d+)?\.out|nohup\.out|core\.\d+")
_BYTE_CODE = (".pyc", ".pyo")


def is_secret(name: str) -> bool:
    """Return whether a file of this path usually holds passwords, keys or tokens."""
    *folders, file = name.split("/")
    is_example = _NO_SECRET.fullmatch(file) is not None
    return not _SECRET_FOLDERS.isdisjoint(folders) or (_SECRET.fullmatch(file) is not None and not is_example)


class CodeRules:
    """
    The decisions about the files below one folder; `left_out` collects what does not travel: path by path, the reason.

    A folder that is left out as a whole is one path, with a slash at its end.
    """

    def __init__(self, root: Path, named: Iterable[str], orch_folders: Iterable[Path]) -> None:
        """
        Make the rules of the folder `root`.

        Args:
            named: files that the command line names, relative to the root; only an ignore file leaves them out.
            orch_folders: folders of orch itself, as for its records.
        """
        self.ignore = IgnoreFiles(root, ORCHIGNORE)
        self.left_out: dict[str, str] = {}
        self._root, self._named = root, frozenset(named)
        self._orch_folders = {os.path.realpath(folder) for folder in orch_folders}
        self._folder_reasons: dict[str, str] = {"": ""}

    def travels(self, name: str, *, is_tracked: bool = False) -> bool:
        """Return whether a file travels; remember it if it does not."""
        ignored = self.ignore.is_ignored(name)
        if ignored:
            self.left_out[name] = ORCHIGNORE
        if ignored is not None or is_tracked or name in self._named:
            return not ignored
        parent, _, file = name.rpartition("/")
        if self._leaves_out_folder(parent):
            return False
        if reason := _reason_of_file(file):
            self.left_out[name] = reason
        return not reason

    def enters(self, folder: str) -> bool:
        """Return whether a folder, relative to the root, may have files that travel; remember it if it has none."""
        if self.ignore.is_ignored(f"{folder}/"):
            self.left_out[f"{folder}/"] = ORCHIGNORE
            return False
        return not self._leaves_out_folder(folder)

    def _leaves_out_folder(self, folder: str) -> bool:
        """Look up the outermost folder that is left out."""
        if folder not in self._folder_reasons:
            parent, _, name = folder.rpartition("/")
            if self._leaves_out_folder(parent):
                self._folder_reasons[folder] = self._folder_reasons[parent]
            elif reason := self._reason_of_folder(folder, name):
                self._folder_reasons[folder] = self.left_out[f"{folder}/"] = reason
            else:
                self._folder_reasons[folder] = ""
        return bool(self._folder_reasons[folder])

    def _reason_of_folder(self, folder: str, name: str) -> str:
        if name in _SECRET_FOLDERS:
            return SECRETS
        if name in _HIDDEN_CACHES:
            return "caches"
        path = str(self._root / folder)
        if os.path.realpath(path) in self._orch_folders:
            return "files of orch"
        if reason := reason_not_code(path):
            return reason
        if _CHECKPOINT_FOLDER.fullmatch(name):
            return "checkpoints"
        return "hidden" if name.startswith(".") else ""

    def included(self) -> Iterator[str]:
        """The files that a pattern with `!` in .orchignore includes, whatever other rules say."""
        bases = {*self.ignore.negated()}
        for base in bases if "" not in bases else ("",):
            path = self._root / base
            for name in (base,) if base and not path.is_dir() else _all_files(self._root, path):
                if self.ignore.is_ignored(name) is False and os.path.lexists(self._root / name):
                    self.left_out.pop(name, None)
                    yield name


def _reason_of_file(file: str) -> str:
    if is_secret(file):
        return SECRETS
    if file.endswith(_BYTE_CODE):
        return "caches"
    if _CHECKPOINT.fullmatch(file):
        return "checkpoints"
    if _RESULT.fullmatch(file):
        return "results"
    return "hidden" if file.startswith(".") else ""


def _all_files(root: Path, base: Path) -> Iterator[str]:
    """All files below a folder, but those of git, of caches and of environments; their paths are relative to the root."""
    for folder, folders, names in os.walk(base):
        at = Path(folder)
        reasons = {name: reason_not_code(str(at / name)) for name in folders if name != ".git"}
        folders[:] = [name for name, reason in reasons.items() if reason not in ("caches", "virtual environments")]
        yield from ((at / name).relative_to(root).as_posix() for name in names)


def by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """The paths of each reason, secrets first, without caches, and hidden files of git and of these rules: nobody asks for them."""
    groups: dict[str, list[str]] = {SECRETS: []}
    folders = tuple(name for name in left_out if name.endswith("/"))
    for name, reason in sorted(left_out.items(), key=lambda item: (item[1].startswith("."), item)):
        file = name.rstrip("/").rpartition("/")[2]
        is_within = name.rstrip("/").startswith(folders)
        if not is_within and reason != "caches" and file not in CACHES and not file.startswith((".git", ORCHIGNORE)):
            groups.setdefault(reason, []).append(name.removesuffix("/"))
    return {reason: names for reason, names in groups.items() if names}
