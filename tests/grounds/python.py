"""The nodes' Python: not the tests' own environment, so that the project is importable only if orch pushes it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

_PROBE = "import os, sys; os.listdir(sys.argv[1]); print('%d.%d' % sys.version_info[:2])"


def node_python(folder: Path, *, user: str | None = None) -> Path | None:
    """
    Make an environment in `folder` with the installed packages (torch) of this one, and return its interpreter.

    It has no editable installs. `user` is the account that must be able to run it; None means the account that runs
    the tests. Returns None if that account cannot reach a Python of this version or the installed packages, for example
    because the checkout is below another user's private home.
    """
    packages = Path(sysconfig.get_path("purelib"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    # the tests' interpreter may be in a private home too (pyenv); the system's Python of that version is as good
    for base in (Path(sys.base_prefix, "bin", f"python{version}"), Path(f"/usr/bin/python{version}")):
        if _runs(base, packages, user=user) == version:
            return _environment(base, folder, packages)
    return None


def _runs(base: Path, packages: Path, *, user: str | None) -> str:
    """The version that `base` reports to `user`; empty if `user` cannot run it or cannot list `packages`."""
    try:
        done = subprocess.run(
            [str(base), "-I", "-c", _PROBE, str(packages)],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    except (PermissionError, FileNotFoundError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _environment(base: Path, folder: Path, packages: Path) -> Path:
    subprocess.run([str(base), "-m", "venv", "--without-pip", str(folder)], check=True)
    (site_packages,) = folder.glob("lib/python3.*/site-packages")
    (site_packages / "packages-of-the-tests.pth").write_text(f"{packages}\n", encoding="utf-8")
    return folder / "bin" / "python3"
