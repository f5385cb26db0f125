"""The failure of a rank that a script has started by hand: `wait` of a shell ends with 0 nevertheless, and the agent does not see the rank."""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path
from typing import Callable

from ..io import replace_text


def watch() -> None:
    """Note the error with which this process ends, if it is a rank that neither orch nor torchrun has started."""
    if _is_by_hand():
        atexit.register(note)


def begin(exit_code: Callable[[], object]) -> None:
    """
    Note at its first step that a rank of a process group has begun; `note` removes that, unless a signal ends the rank.

    Args:
        exit_code: returns the code that the script has passed to sys.exit().
    """
    if _is_by_hand() and _is_joined():
        _write(error=None)
        atexit.unregister(note)
        atexit.register(note, exit_code)


def note(exit_code: Callable[[], object] = lambda: None) -> None:
    """Write the error of a rank that has failed in its process group; remove it if a later process of the rank has not failed."""
    error, code = getattr(sys, "last_value", None), exit_code()
    if error is not None:
        text = f"{type(error).__name__}: {error}"
    else:
        text = "" if code in (None, 0) else f"sys.exit({code!r})"
    if text and (_is_joined() or _path().exists()):
        _write(error=text[:1000])
    elif not text and _path().exists():
        _write_or_warn(_path().unlink)


def _is_by_hand() -> bool:
    env = os.environ
    return "RANK" in env and "PET_NNODES" in env and "ORCH_RUN_DIR" in env and "TORCHELASTIC_RUN_ID" not in env


def _is_joined() -> bool:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _path() -> Path:
    env = os.environ
    node = Path(env["ORCH_RUN_DIR"], f"attempt-{env.get('ORCH_ATTEMPT', '')}", env.get("ORCH_NODE", ""))
    return node / "error" / f"lost-{env['RANK']}.json"


def _write(*, error: str | None) -> None:
    report = {"rank": os.environ["RANK"], "error": error}
    _write_or_warn(lambda: replace_text(_path(), json.dumps(report)))


def _write_or_warn(write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as exc:
        sys.stderr.write(f"WARNING: the failure of rank {os.environ['RANK']} cannot be noted: {exc}\n")
