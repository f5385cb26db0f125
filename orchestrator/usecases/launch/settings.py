"""The settings of the shared trainer, as it lists them itself; torch is not needed."""

from __future__ import annotations

import difflib
import json
from typing import TypedDict

from orchestrator.errors import UsageError
from orchestrator.usecases.launch.request import run_trainer


class Setting(TypedDict):
    """A key with its default, as JSON, and the values that it takes."""

    key: str
    default: object
    values: str


def trainer_settings(word: str | None) -> list[Setting]:
    """
    The settings whose key contains the word, all without one.

    Raises:
        UsageError: no key contains it.
    """
    found = run_trainer("trainer", ["--list-keys"])
    if found.returncode != 0:
        raise UsageError(found.stderr.strip())
    settings: list[Setting] = json.loads(found.stdout)
    chosen = [setting for setting in settings if word is None or word.lower() in setting["key"]]
    if not chosen:
        close = difflib.get_close_matches(str(word), [setting["key"] for setting in settings], n=1)
        hint = f"did you mean {close[0]}?" if close else "orch settings lists all"
        raise UsageError(f"no setting of the shared trainer has {word!r} in its name", hint=hint)
    return chosen
