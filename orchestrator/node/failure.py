"""How a rank failed, by what it left in its node folder: its error file and its stacks."""

from __future__ import annotations

from orchestrator.node.files import read_object
from orchestrator.node.stacks import has_left_stacks


def error_of(*path: str) -> tuple[str | None, str | None]:
    """
    Message and kind in a TORCHELASTIC_ERROR_FILE: {"message": {"message": …, "extraInfo": …}} or {"message": …}.

    The kind (storage, memory, …) is the trainer's addition to extraInfo.
    """
    message, kind = read_object(*path).get("message"), None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        kind = extra.get("kind") if isinstance(extra, dict) else None
        message = message.get("message")
    return None if message is None else str(message), None if kind is None else str(kind)


def failure_of(folder: str, rank: int, signal: str | None) -> tuple[str | None, str | None]:
    """
    Message and kind of a rank's failure, by what it left in the node's folder; `signal` ended it, if any did.

    Where it had stood still for long, this is the kind of an end by NCCL's watchdog (SIGABRT), and of the loss of others.
    """
    error, kind = error_of(folder, "error", f"{rank}.json")
    waited = kind == "network" or (kind is None and signal == "SIGABRT")
    return error, "hang" if waited and has_left_stacks(folder, rank) else kind
