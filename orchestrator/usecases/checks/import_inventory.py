"""Make an inventory from another tool's file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.inventory.importing import import_hostfile, import_scontrol, import_ssh_config

_OF_TEXT: dict[str, Callable[[str], str]] = {"hostfile": import_hostfile, "scontrol": import_scontrol}


def import_inventory(source: str, file: Path | None) -> str:
    """
    Return the text of an inventory made from `file`; None reads standard input, or ~/.ssh/config.

    Raises:
        UsageError: there is no such source, or the file cannot be read or imported.
    """
    if source == "ssh-config":
        return import_ssh_config((file or Path("~/.ssh/config")).expanduser())
    if source not in _OF_TEXT:
        raise UsageError(
            f"{source!r} cannot be imported", hint=f"one of {', '.join(sorted([*_OF_TEXT, 'ssh-config']))}"
        )
    try:
        text = sys.stdin.read() if file is None else file.expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{file}: {exc}", hint="name a readable text file") from exc
    return _OF_TEXT[source](text)
