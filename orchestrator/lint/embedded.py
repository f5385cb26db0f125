"""
Scripts within scripts: here-documents that a shell runs or a file gets, texts of `bash -c`, `ssh` and `eval`.

The file name decides how the text is read: as a script, as lines of an environment file, or as nccl.conf.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from orchestrator.lint.assignment import Assignment, Script, Word
from orchestrator.lint.files import read_env_file, read_nccl_conf

_SHELLS = frozenset(("bash", "sh", "zsh", "dash", "ksh"))
_SHELL_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm", ".zsh", ".pbs", ".lsf")
_SHELL_NAMES = re.compile(r"\.?(?:bashrc|zshrc|profile|bash_profile|bash\.bashrc|zprofile)")
_READERS = frozenset(("sbatch", "ssh", "qsub", "bsub", "srun", "su", "pdsh", "clush"))
"""Programs that run their standard input in a shell."""
_REMOTE = frozenset(("ssh", "pdsh", "clush", "pssh", "parallel-ssh"))
_EXPORTS = re.compile(r"(?:[ \t]*(?:#[^\n]*|export[ \t]+[A-Za-z_]\w*=[^\n]*)?\n)+")
"""A file of exports, which some script will source."""
_ESCAPED = re.compile(r"\\([$`\\])")


@dataclass(frozen=True, slots=True)
class Document:
    """A text within a script, with the line and offset at which it begins; `start` None: it is not in the file as it is."""

    text: str
    line: int
    start: int | None
    is_literal: bool
    """False: the outer shell expands it, so that `\\$` is a `$` in it."""

    def plain(self) -> tuple[str, list[int]]:
        """The text without the escapes of the outer shell, and the offsets of these."""
        if self.is_literal:
            return self.text, []
        return _ESCAPED.sub(r"\1", self.text), [found.start() for found in _ESCAPED.finditer(self.text)]


def kind_of_target(name: str) -> str | None:
    """How a file of this name is read: "shell", "env" or "conf"; None for any other file."""
    path = PurePosixPath(name)
    if path.name.endswith("nccl.conf"):
        return "conf"
    if path.suffix == ".env" or path.name in (".env", ".deepspeed_env") or name == "/etc/environment":
        return "env"
    is_shell = path.suffix in _SHELL_SUFFIXES or _SHELL_NAMES.fullmatch(path.name)
    return "shell" if is_shell else None


def lines_script(document: Document, kind: str, file: str) -> Script:
    """Read a text that is written to an environment file or to nccl.conf."""
    text, _ = document.plain()
    found = (read_env_file if kind == "env" else read_nccl_conf)(text, file)
    return placed(Script(tuple(replace(entry, line=entry.line + document.line - 1) for entry in found)), None)


def kind_of_document(text: str, commands: Sequence[Sequence[str]], names: Sequence[str]) -> str | None:
    """How a here-document for these commands and files is read; None if neither a shell nor a file of a known kind gets it."""
    kind = next(filter(None, map(kind_of_target, names)), None)
    if kind is not None:
        return kind
    if re.match(r"#!.*\b(?:ba|z|da|k)?sh\b", text) or (names and _EXPORTS.fullmatch(text)):
        return "shell"
    if names:
        return None
    for words in commands:
        for index, word in enumerate(words):
            if word.rpartition("/")[2] in _SHELLS and "-c" not in words[index:]:
                return "shell"
        if words[0].rpartition("/")[2] in _READERS:
            return "shell"
    return None


def placed(script: Script, start: int | None, removed: Sequence[int] = ()) -> Script:
    """Move the ranges from the text of the document to that of the file; without a place they are unknown."""

    def shifted(offset: int | None) -> int | None:
        if offset is None or start is None:
            return None
        position = offset
        for index in removed:
            position += index < position + 1
        return position + start

    def moved(found: Assignment) -> Assignment:
        replacement = found.replacement if start is not None else None
        return replace(found, start=shifted(found.start), end=shifted(found.end), replacement=replacement)

    return replace(
        script,
        assignments=tuple(map(moved, script.assignments)),
        embedded=tuple(placed(inner, start, removed) for inner in script.embedded),
    )


def texts_of_command(words: Sequence[Word]) -> Iterator[Word]:
    """The words of a command that a shell will run as scripts."""
    names = [word.pattern.rpartition("/")[2] for word in words]
    if names[0] == "eval" and len(words) > 1:
        text = " ".join(word.pattern for word in words[1:])
        yield replace(words[1], pattern=text)
        return
    for index, word in enumerate(words[1:], start=1):
        before = words[index - 1].pattern
        is_option = re.fullmatch(r"-[a-z]*c", before) is not None and any(
            name in _SHELLS or name == "su" for name in names[:index]
        )
        if is_option or (before == "--wrap" and names[0] == "sbatch"):
            yield word
            return
        if word.pattern.startswith("--wrap=") and names[0] == "sbatch":
            yield replace(word, pattern=word.pattern.removeprefix("--wrap="))
            return
    if (
        names[0] in _REMOTE
        and len(words) > len(("ssh", "HOST"))
        and any(character in words[-1].pattern for character in " \n;")
    ):
        yield words[-1]
