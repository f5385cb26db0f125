"""The Python that nodes run: not the tests' own environment, so nothing of the project is importable unless orch brings it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

_PROBE = "import os, sys; os.listdir(sys.argv[1]); print('%d.%d' % sys.version_info[:2])"


def node_python(folder: Path, *, user: str | None = None) -> Path | None:
    """
    Make an environment in `folder` that sees the installed packages (torch) of this one, and return its interpreter.

    Editable installs stay invisible in it. `user` is the account that has to be able to run it; None means whoever runs
    the tests. Returns None when that account cannot reach a Python of this version or the installed packages, as happens
    when the checkout lies below somebody's private home.
    """
    packages = Path(sysconfig.get_path("purelib"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    # the interpreter of the tests may lie in a private home too (pyenv); the system's own of that version will do
    for base in (Path(sys.base_prefix, "bin", f"python{version}"), Path(f"/usr/bin/python{version}")):
        if _runs(base, packages, user=user) == version:
            return _environment(base, folder, packages)
    return None


def _runs(base: Path, packages: Path, *, user: str | None) -> str:
    """The version that `user` sees `base` to be; empty when it cannot run it or cannot list `packages`."""
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
    (own,) = folder.glob("lib/python3.*/site-packages")
    (own / "packages-of-the-tests.pth").write_text(f"{packages}\n", encoding="utf-8")
    return folder / "bin" / "python3"
