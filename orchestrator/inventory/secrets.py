"""
The private file that `env_file:` names: variables whose values are secret. No message of this module contains a value.

One KEY=VALUE per line. The value is the text from the first `=` to the end of the line, byte for byte: no quotes, escapes or
expansion. Empty lines and lines that start with # are skipped. A file with a NUL byte is read in the format of `env -0`: each
entry ends with a NUL, and a value may hold newlines.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.inventory.document import FieldPath, Problem, resolve_path
from orchestrator.inventory.fields import check_env_name, check_env_value

MAX_ENV_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class EnvFileField:
    """A section of an inventory that may have an `env_file:` field, at `path`; `env` is the `env:` of the same section."""

    path: FieldPath
    name: str | None
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EnvFiles:
    """`values` by the file name as written; text with surrogate escapes for bytes that are not UTF-8."""

    paths: tuple[str, ...]
    values: Mapping[str | None, dict[str, str]] = field(repr=False)


def read_env_files(inventory: str, sections: Iterable[EnvFileField]) -> tuple[EnvFiles, list[Problem]]:
    """Read every env_file of the inventory file `inventory`; problems are reported at the field that names the file."""
    values: dict[str | None, dict[str, str]] = {None: {}}
    paths: set[str] = set()
    problems: list[Problem] = []
    for section in sections:
        if section.name is None:
            continue
        path = str(Path(resolve_path(inventory, section.name)).expanduser())
        paths.add(path)
        values[section.name], messages = _read(path)
        problems += [Problem((*section.path, "env_file"), f"{path}: {text}") for text in messages]
        for twice in sorted(values[section.name].keys() & section.env.keys()):
            problems.append(Problem((*section.path, "env", twice), f"given in {path} too; delete one of the two"))
    return EnvFiles(tuple(sorted(paths)), values), problems


def _read(path: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables of a file, and a message for each problem."""
    values: dict[str, str] = {}
    try:
        return values, list(_parse(private_bytes(path), values))
    except OSError as error:
        return {}, [error.strerror or str(error)]


def private_bytes(path: str) -> bytes:
    """Read a file that no other user can access; checked on the open file, so that it cannot be replaced in between."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block orch
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError("is not a regular file")
        if state.st_uid != os.geteuid():
            raise OSError(f"belongs to user {state.st_uid}, not to you, user {os.geteuid()}")
        if state.st_mode & 0o077:
            mode = f"mode {stat.S_IMODE(state.st_mode):04o}"
            raise OSError(f"{mode} lets others read it; run: chmod 600 {shlex.quote(path)}")
        data = file.read(MAX_ENV_FILE_BYTES + 1)
    if len(data) > MAX_ENV_FILE_BYTES:
        raise OSError(f"larger than {MAX_ENV_FILE_BYTES} bytes")
    return data


def _parse(data: bytes, values: dict[str, str]) -> Iterator[str]:
    """Fill `values` and yield a message per problem; it names the line only, as an apparent name may be part of a value."""
    ends_with_nul = b"\0" in data
    first_entry: dict[str, int] = {}
    for number, entry in enumerate(data.split(b"\0" if ends_with_nul else b"\n"), start=1):
        kind = "entry" if ends_with_nul else "line"
        if not entry or (entry.startswith(b"#") and not ends_with_nul):
            continue
        name, equals, value = entry.decode("utf-8", "surrogateescape").partition("=")
        try:
            if not equals:
                raise ValueError("is not KEY=VALUE")
            check_env_name(name)
            check_env_value(value)
            if name in first_entry:
                raise ValueError(f"the same name as in {kind} {first_entry[name]}")
            if value.endswith("\r") and not ends_with_nul:
                raise ValueError("ends with a carriage return; save the file with Unix line ends")
        except ValueError as error:
            yield f"{kind} {number}: {error}"
        first_entry.setdefault(name, number)
        values[name] = value
