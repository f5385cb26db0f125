"""The distributions, built once per session as for a release: the wheel from the sdist."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.paths import ROOT


@dataclass(frozen=True)
class Built:
    """The built distributions; `tree` is the copy of the repository that they were built from."""

    tree: Path
    sdist: Path
    wheel: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    tree = copy_of_the_tree(folder / "tree")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(tree)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(tree, sdist, wheel)


def copy_of_the_tree(target: Path) -> Path:
    """Copy the working tree, because a build in the tree would leave files there."""
    made = shutil.ignore_patterns(".[!c]*", "build", "dist", "*.egg-info", "__pycache__", "*_cache")

    def left_out(folder: str, names: list[str]) -> set[str]:
        return made(folder, names) | ({"runs"} if Path(folder) == ROOT else set())

    return Path(shutil.copytree(ROOT, target, ignore=left_out))
