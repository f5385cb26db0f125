"""The shell blocks of a page, run one after the other, as if pasted into a terminal."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.grounds.sshd import Farm

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 280


def blocks(page: Path) -> list[str]:
    """All blocks of the language `sh`, in order."""
    return re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def bare_environment(home: Path, *folders: Path, **env: str) -> dict[str, str]:
    """The environment of a fresh login with that home, with `folders` on its PATH and `env` as its only other variables."""
    return {
        "PATH": os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"]),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        **env,
    }


def write_ssh_config(home: Path, farm: Farm) -> None:
    """Make `ssh n0` to `ssh n7` work with that home."""
    (home / ".ssh").mkdir(mode=0o700)
    shutil.copy(farm.ssh_config, home / ".ssh" / "config")


def run(commands: str, folder: Path, env: Mapping[str, str]) -> str:
    """Run the commands, none of which may fail, and return their output."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
