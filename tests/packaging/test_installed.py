"""orch installed outside of the repository, with exactly the declared requirements."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from tests.packaging.conftest import Built
from tests.packaging.environments import (
    foreign_trainer,
    install,
    link_requirements,
    make_environment,
    packages_of,
    pip,
    requirements_of,
)
from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]
SMALL = ("-j", "1x1", "steps=2", "model.layers=1", "model.width=32", "model.heads=2", "model.context=16")


@pytest.fixture(scope="module", params=["wheel", pytest.param("editable", marks=pytest.mark.extended)])
def python(request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with orch and another project's `trainer`, but without torch."""
    folder = tmp_path_factory.mktemp(request.param)
    python = make_environment(folder / "venv")
    install(python, str(foreign_trainer(folder)))
    if request.param == "wheel":
        install(python, str(built.wheel))
    else:
        link_requirements(python, ["setuptools"])
        install(python, "--editable", str(built.tree))
    link_requirements(python, requirements_of("orch-launch", python))
    return python


@pytest.fixture
def user_folder(tmp_path: Path) -> Path:
    """A working folder with the user's own trainer.py, which nothing may import."""
    folder = tmp_path / "user_folder"
    folder.mkdir()
    (folder / "trainer.py").write_text("raise SystemExit('the trainer.py of the user')\n")
    return folder


def orch(python: Path, cwd: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.defpath, "HOME": str(cwd.parent), **env}
    argv = [str(python.parent / "orch"), *words]
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_launches_without_the_repository(python: Path, user_folder: Path) -> None:
    program = ["sh", "-c", 'echo "rank $RANK of $WORLD_SIZE"']
    done = orch(python, user_folder, "ssh-launch", "-i", "local", "--", *program)
    assert done.returncode == 0, done.stderr
    assert "[n1:3] rank 3 of 4" in done.stdout


def test_version_is_that_of_the_distribution(python: Path, user_folder: Path) -> None:
    (ours,) = metadata.distributions(name="orch-launch", path=[str(packages_of(python))])
    assert orch(python, user_folder, "--version").stdout == f"orch {ours.version}\n"


def test_requirements_are_complete_and_compatible(python: Path) -> None:
    assert "No broken requirements found" in pip(python, "check")


def test_trainer_package_of_another_project_is_kept(python: Path, user_folder: Path) -> None:
    (ours,) = metadata.distributions(name="orch-launch", path=[str(packages_of(python))])
    folders = {file.parts[0] for file in ours.files or ()} - {".."}
    assert not {name for name in folders if name.startswith("trainer")}
    argv = [str(python), "-c", "import trainer; print(trainer.OWNER)"]
    imported = subprocess.run(argv, cwd=user_folder.parent, capture_output=True, text=True, check=True)
    assert imported.stdout == "somebody else\n"


@pytest.mark.parametrize("env", [{}, {"PYTHONSAFEPATH": "1"}, {"PYTHONPATH": "."}], ids=str)
def test_configuration_is_checked_by_our_trainer_and_needs_no_torch(
    python: Path, user_folder: Path, env: dict[str, str]
) -> None:
    planned = orch(python, user_folder, "ssh-launch", "-i", "local", "--dry-run", "steps=3", **env)
    assert planned.returncode == 0, planned.stderr
    assert '"steps=3"' in planned.stdout
    refused = orch(python, user_folder, "ssh-launch", "-i", "local", "--dry-run", "step=3", **env)
    assert refused.returncode == 2
    assert "unknown key 'step'" in refused.stderr


def test_documented_path_makes_the_trainer_importable(python: Path, user_folder: Path) -> None:
    (line,) = (line for line in (ROOT / "docs" / "trainer.md").read_text().splitlines() if "export PYTHONPATH" in line)
    script = f"{line}; cd ..; python -m trainer.checkpoint --help"
    env = {"PATH": f"{python.parent}:{os.defpath}"}
    done = subprocess.run(["sh", "-c", script], cwd=user_folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: python -m trainer.checkpoint" in done.stdout


@pytest.fixture
def torch(python: Path) -> Iterator[None]:
    links = link_requirements(python, ["torch", "numpy"])
    yield
    for link in links:
        link.unlink()


@pytest.mark.train
@pytest.mark.usefixtures("torch")
def test_demo_trains_with_our_trainer(python: Path, user_folder: Path) -> None:
    done = orch(python, user_folder, "ssh-launch", "-i", "local", *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(user_folder.parent.glob(".orch/runs/*/checkpoints/step_2"))
