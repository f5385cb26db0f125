"""Private files: replaced atomically, locked, and read as JSON."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from orchestrator.errors import NO_LOCKS, UsageError
from orchestrator.portable.names.hostlist import expand, fold_by_value

LOCK_POLL_S = 0.002


def write_file(path: Path, content: str | bytes, *, sync: bool = True, mode: int = 0o600) -> None:
    """Replace a file atomically: readers get the complete old or new content, with `sync` also after a crash of the machine."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            file.write(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
            if sync:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException as exc:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(exc, OSError) and not exc.filename:
            exc.filename = str(path)
        raise


def json_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file; OSError if it cannot be read, ValueError if it is not JSON, TypeError if it is another value."""
    data = json.loads(file.read_text("utf-8"))
    if not isinstance(data, dict):
        raise TypeError("not a JSON object")
    return data


def json_or_none(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if it is missing or damaged."""
    try:
        return json_object(file)
    except (OSError, ValueError, TypeError):
        return None


def write_by_node(file: Path, values: Mapping[str, Mapping[str, str]]) -> None:
    """Save a table per node; nodes with equal tables share one entry."""
    nodes_of = fold_by_value((node, json.dumps(table, sort_keys=True)) for node, table in values.items())
    entries = {nodes: json.loads(text) for text, nodes in nodes_of.items()}
    write_file(file, json.dumps(entries, indent=1) + "\n", sync=False)


def read_by_node(file: Path) -> dict[str, dict[str, str]] | None:
    """The tables that `write_by_node` has saved; None if there are none."""
    entries = json_or_none(file)
    return None if entries is None else {node: table for nodes, table in entries.items() for node in expand(nodes)}


def open_private(path: Path, mode: str) -> IO[str]:
    """Open a file with permissions for its owner only."""
    return open(path, mode, encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))


def take_lock(file: IO[str], wait_s: float, kind: int = fcntl.LOCK_EX) -> bool:
    """
    Take the lock within wait_s, and return whether it was free; a process that only checks it holds it briefly.

    Raises:
        UsageError: the file system has no locks (Lustre without `-o flock`, NFS without lockd).
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOCK_POLL_S)
        except OSError as exc:
            if exc.errno not in NO_LOCKS:
                raise
            hint = "set ORCH_HOME to a folder on a local disk"
            raise UsageError(f"the file system of {file.name} has no file locks: {exc.strerror}", hint=hint) from exc
        else:
            return True
