"""
The private file that `env_file:` names: variables whose values are secret. No message of this module holds a value.

One KEY=VALUE a line. The value is what stands between the first `=` and the end of the line, byte for byte: no quotes,
no escapes, no expansion. Empty lines and lines that start with # are left out. A file that holds a NUL byte is read as
`env -0` writes it: each entry ends with a NUL, and a value may hold newlines.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.inventory.document import FieldPath, Problem, beside
from orchestrator.inventory.fields import check_env_name, check_env_value

MAX_ENV_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Where an inventory names an env_file, or could; `env` is what is written beside it."""

    path: FieldPath
    name: str | None
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EnvFiles:
    """What was read: name as written -> variables, text with surrogate escapes for bytes that are no UTF-8."""

    paths: tuple[str, ...]
    values: Mapping[str | None, dict[str, str]] = field(repr=False)


def read_env_files(inventory: str, places: Iterable[Place]) -> tuple[EnvFiles, list[Problem]]:
    """Read every file that an inventory file names, and say what is wrong with each, at the field that names it."""
    values: dict[str | None, dict[str, str]] = {None: {}}
    paths: set[str] = set()
    problems: list[Problem] = []
    for place in places:
        if place.name is None:
            continue
        path = str(Path(beside(inventory, place.name)).expanduser())
        paths.add(path)
        values[place.name], wrong = _read(path)
        problems += [Problem((*place.path, "env_file"), f"{path}: {text}") for text in wrong]
        for twice in sorted(values[place.name].keys() & place.env.keys()):
            problems.append(Problem((*place.path, "env", twice), f"given in {path} too; delete one of the two"))
    return EnvFiles(tuple(sorted(paths)), values), problems


def _read(path: str) -> tuple[dict[str, str], list[str]]:
    """Give the variables of a file, and what is wrong with it."""
    values: dict[str, str] = {}
    try:
        return values, list(_parse(_private_bytes(path), values))
    except OSError as error:
        return {}, [error.strerror or str(error)]


def _private_bytes(path: str) -> bytes:
    """Read the file if nobody else can; checked on the open file, so that it cannot be exchanged in between."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not hold orch up
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError("is not a regular file")
        if state.st_uid != os.geteuid():
            raise OSError(f"belongs to user {state.st_uid}, not to you, user {os.geteuid()}")
        if state.st_mode & 0o077:
            raise OSError(
                f"mode {stat.S_IMODE(state.st_mode):04o} lets others read it; run: chmod 600 {shlex.quote(path)}"
            )
        data = file.read(MAX_ENV_FILE_BYTES + 1)
    if len(data) > MAX_ENV_FILE_BYTES:
        raise OSError(f"larger than {MAX_ENV_FILE_BYTES} bytes")
    return data


def _parse(data: bytes, values: dict[str, str]) -> Iterator[str]:
    """Fill `values`, and say what cannot be used: by line, for what looks like a name may be a part of a value."""
    ends_with_nul = b"\0" in data
    first: dict[str, int] = {}
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
            if name in first:
                raise ValueError(f"the same name as in {kind} {first[name]}")
            if value.endswith("\r") and not ends_with_nul:
                raise ValueError("ends with a carriage return; save the file with Unix line ends")
        except ValueError as error:
            yield f"{kind} {number}: {error}"
        first.setdefault(name, number)
        values[name] = value
