"""Which real programs and modules a test needs; one that is missing skips here and fails in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import NoReturn

import pytest

# Daemons live in sbin, which an ordinary user's PATH leaves out.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

PROGRAMS = {
    "ssh": ("sshd", "ssh", "ssh-keygen"),
    "hosts": ("unshare", "nsenter", "ip", "bridge", "ss", "sshd", "ssh", "ssh-keygen"),
    "slurm": ("slurmctld", "slurmd", "munged", "sbatch"),
    "accounting": ("slurmctld", "slurmd", "munged", "sbatch", "slurmdbd", "mariadbd", "mariadb-install-db"),
}


def program(name: str) -> str:
    """Absolute path of a program that has to be there."""
    path = shutil.which(name, path=_PATH)
    if path is None:
        missing(name)
    return path


def module(name: str) -> None:
    """Insist on an importable module without importing it."""
    if importlib.util.find_spec(name) is None:
        missing(name)


def missing(what: str) -> NoReturn:
    """Skip the test, naming what is missing; in CI nothing may be missing, so fail."""
    unavailable(f"{what} is not installed (scripts/install-test-components.sh lists what the tests need)")


def unavailable(message: str) -> NoReturn:
    """Skip the test for a reason that is an error in CI."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
