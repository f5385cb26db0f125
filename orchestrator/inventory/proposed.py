"""Commands that findings and diagnoses propose, with the inventory that they need to be run as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_COMMAND = re.compile(r"\borch (?:bench comm|image push|put|ssh|exec|check|nodes|env)(?![\w-])(?! -i\b)")


def with_inventory(text: str, inventory: str | None) -> str:
    """Add `-i FILE` to the commands in a text that read an inventory; not for the one that is read without it."""
    if not inventory or Path(inventory) == Path("inventory.yaml") or Path(inventory) == Path.cwd() / "inventory.yaml":
        return text
    return _COMMAND.sub(lambda found: f"{found[0]} -i {shlex.quote(inventory)}", text)
