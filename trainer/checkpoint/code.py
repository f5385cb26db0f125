"""The version of the code that trains, recorded in its checkpoints. No torch here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PATIENCE_S = 10.0  # of a work tree on a slow file system


def code_version(trainer: Path, cwd: Path) -> str | None:
    """
    The digest of the bundle that orch pushed, with which the user's code came; else the git commit of the work tree at `cwd`.

    Args:
        trainer: the folder of this package.
        cwd: where the training was started.

    Returns:
        "bundle <digest>", "git <commit>" or "git <commit>-dirty"; None where there is neither.
    """
    if trainer.parent.parent.name == "bundles":
        return f"bundle {trainer.parent.name}"
    words = ["git", "-C", str(cwd), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired):  # no git here, or a tree that takes too long
        return None
    return f"git {done.stdout.decode().strip()}" if done.returncode == 0 else None
