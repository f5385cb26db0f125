"""The version of the code that trains, recorded in its checkpoints. No torch here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

GIT_TIMEOUT_S = 10.0  # enough for a work tree on a slow file system


def code_version(trainer: Path, cwd: Path) -> str | None:
    """
    Return the digest of the bundle in which orch pushed the user's code; without one, the git commit of the work tree at `cwd`.

    Args:
        trainer: the folder of this package.
        cwd: the folder in which the training was started.

    Returns:
        "bundle <digest>", "git <commit>" or "git <commit>-dirty"; None without either.
    """
    if trainer.parent.parent.name == "bundles":
        return f"bundle {trainer.parent.name}"
    words = ["git", "-C", str(cwd), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        described = subprocess.run(
            words,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):  # no git here, or a tree that takes too long
        return None
    return f"git {described.stdout.decode().strip()}" if described.returncode == 0 else None
