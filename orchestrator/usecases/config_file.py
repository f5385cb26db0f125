"""The user's defaults of options: $ORCH_HOME/config.yaml, with a section per command, and the inventory for folders without one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import OrchError
from orchestrator.records.home import home

if TYPE_CHECKING:
    from orchestrator.inventory.document import Document, Tree

INVENTORY = "inventory"  # the only key beside the commands


def config_path() -> Path:
    """The file, which need not exist."""
    return home(os.environ) / "config.yaml"


class ConfigFile:
    """The file as it was read; values are texts, lists of texts or sections."""

    def __init__(self, document: Document) -> None:
        self._document = document
        if document.problems:
            raise document.error(document.problems)

    @property
    def keys(self) -> list[str]:
        """The keys at the top: commands, and `inventory`."""
        return list(self._document.tree)

    def value(self, *keys: str) -> Tree:
        """The value below these keys; None if there is none."""
        value: Tree = self._document.tree
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def unknown(self, keys: Sequence[str], allowed: Sequence[str]) -> OrchError:
        """The error for a key that is none of those allowed."""
        from orchestrator.inventory.document import did_you_mean

        return self.error(keys, f"unknown; {did_you_mean(keys[-1], allowed)}allowed: {', '.join(allowed)}")

    def error(self, keys: Sequence[str], text: str) -> OrchError:
        from orchestrator.inventory.document import Problem

        return self._document.error([Problem(tuple(keys), text)])


def config_file() -> ConfigFile | None:
    """The user's file; None if there is none. InventoryError if it is not a mapping in YAML."""
    path = config_path()
    if not path.exists():
        return None
    from orchestrator.inventory.document import read_mapping  # few users have the file

    return ConfigFile(read_mapping(path, "of commands and their options"))


def default_inventory() -> str | None:
    """The inventory for folders that have none, as a path or the name of a shipped one; None if the file names none."""
    config = config_file()
    value = None if config is None else config.value(INVENTORY)
    if config is None or value is None:
        return None
    if not isinstance(value, str):
        raise config.error([INVENTORY], "must be one path")
    path = Path(value).expanduser()
    if "/" in value and not path.is_absolute():
        raise config.error([INVENTORY], f"{value} is relative, and no folder is meant: begin it with / or ~")
    return str(path)
