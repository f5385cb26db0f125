"""The real programs and modules that a test needs: one that is missing skips the test here and fails it in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import NoReturn

import pytest

# Daemons are in sbin, which is not on an ordinary user's PATH.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

PROGRAMS = {
    "ssh": ("sshd", "ssh", "ssh-keygen"),
    "containers": ("docker", "dockerd", "podman", "runc"),
    "hosts": ("unshare", "nsenter", "ip", "bridge", "ss", "tc", "sshd", "ssh", "ssh-keygen"),
    "slurm": ("slurmctld", "slurmd", "munged", "sbatch"),
    "accounting": ("slurmctld", "slurmd", "munged", "sbatch", "slurmdbd", "mariadbd", "mariadb-install-db"),
}


def program(name: str) -> str:
    """Absolute path of a required program."""
    path = shutil.which(name, path=_PATH)
    if path is None:
        missing(name)
    return path


def module(name: str) -> None:
    """Require an importable module without importing it."""
    if importlib.util.find_spec(name) is None:
        missing(name)


def missing(component: str) -> NoReturn:
    """Skip the test and name the missing component; fail in CI, where nothing may be missing."""
    unavailable(f"{component} is not installed (scripts/install-test-components.sh lists what the tests need)")


def unavailable(message: str) -> NoReturn:
    """Skip the test for a reason that is an error in CI."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
