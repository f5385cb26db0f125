"""The cause of a rank's failure, from its error file and stacks in the node folder."""

from __future__ import annotations

import os

from orchestrator.node.files import read_json
from orchestrator.node.stacks import has_left_stacks


def error_of(path: str) -> tuple[str | None, str | None]:
    """
    Message and kind in a TORCHELASTIC_ERROR_FILE: {"message": {"message": …, "extraInfo": …}} or {"message": …}.

    The kind (storage, memory, …) is the trainer's addition to extraInfo.
    """
    message, kind = (read_json(path) or {}).get("message"), None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        kind = extra.get("kind") if isinstance(extra, dict) else None
        message = message.get("message")
    return None if message is None else str(message), None if kind is None else str(kind)


def failure_of(folder: str, rank: int, signal: str | None) -> tuple[str | None, str | None]:
    """
    Message and kind of a rank's failure, from its files in the node folder; `signal` is the name of the signal that ended it.

    A rank that left stacks hung: its kind is "hang" after an abort by NCCL's watchdog (SIGABRT) or a lost connection.
    """
    error, kind = error_of(os.path.join(folder, "error", f"{rank}.json"))
    may_have_hung = kind == "network" or (kind is None and signal == "SIGABRT")
    return error, "hang" if may_have_hung and has_left_stacks(folder, rank) else kind
