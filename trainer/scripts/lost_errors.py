"""The error of a rank that a script has started by hand: `wait` of a shell ends with 0 nevertheless, and the agent does not see the rank."""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path

from ..io import replace_text


def watch() -> None:
    """Note the error with which this process ends, if it is a rank that neither orch nor torchrun has started."""
    env = os.environ
    is_by_hand = "RANK" in env and "PET_NNODES" in env and "TORCHELASTIC_RUN_ID" not in env
    if is_by_hand and "ORCH_RUN_DIR" in env:
        atexit.register(note)


def note() -> None:
    """Write the error of a rank that has failed in its process group; remove it if a later process of the rank has not failed."""
    env, error = os.environ, getattr(sys, "last_value", None)
    node = Path(env["ORCH_RUN_DIR"], f"attempt-{env.get('ORCH_ATTEMPT', '')}", env.get("ORCH_NODE", ""))
    path = node / "error" / f"lost-{env['RANK']}.json"
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    is_joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
    try:
        if error is not None and is_joined:
            replace_text(path, json.dumps({"rank": env["RANK"], "error": f"{type(error).__name__}: {error}"[:1000]}))
        elif error is None and path.exists():
            path.unlink()
    except OSError as exc:
        sys.stderr.write(f"WARNING: the error of rank {env['RANK']} was not noted: {exc}\n")
