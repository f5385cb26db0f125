"""orch installed from a wheel, far from its repository, launches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grounds.python import node_python
from tests.packaging.test_distribution import copy_of_the_tree

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from orchestrator.cli import main; sys.exit(main())"


@pytest.mark.slow
def test_wheel_installed_elsewhere_launches_without_the_repository(tmp_path: Path) -> None:
    """The new environment sees the dependencies of this one, but not its editable install."""
    python = node_python(tmp_path / "venv")
    assert python is not None
    tree = copy_of_the_tree(tmp_path / "tree")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(tree)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("orch-*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    orch = python.parent / "orch"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = {"PATH": os.defpath, "HOME": str(tmp_path)}
    launch = [str(orch), "ssh-launch", "-i", "local", "--", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE"']

    done = subprocess.run(launch, cwd=elsewhere, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "[n1:3] rank 3 of 4" in done.stdout
    check = [str(python), "-c", WITHOUT_TORCH, "ssh-launch", "-i", "local", "--dry-run", "steps=3"]
    planned = subprocess.run(check, cwd=elsewhere, env=env, capture_output=True, text=True, check=False)
    assert planned.returncode == 0, planned.stderr
    assert '"steps=3"' in planned.stdout
