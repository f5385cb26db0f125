"""What is built and installed holds all that orch brings along."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from orchestrator import resources

ROOT = Path(resources.__file__).parents[1]
_ASK = """
import json
from orchestrator import resources as r
folders = {"templates": r.template_folder(), "inventories": r.inventory_folder(), "node": r.node_folder(), "trainer": r.trainer_folder()}
print(json.dumps({k: [str(v), sorted(p.relative_to(v).as_posix() for p in v.rglob("*") if p.is_file())] for k, v in folders.items()}))
"""


def shipped(folder: Path) -> set[str]:
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in files if path.suffix in {".py", ".j2", ".yaml", ".md", ".typed"}}


@pytest.mark.slow
def test_wheel_made_from_the_sdist_installs_every_file(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--outdir",
            str(tmp_path),
            str(copy_of_the_tree(tmp_path / "tree")),
        ],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("orch-*.whl")
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    # this environment's pip, so that none has to be installed into the new one
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)

    answer = subprocess.run([str(python), "-c", _ASK], check=True, capture_output=True, text=True, cwd=tmp_path)

    installed = json.loads(answer.stdout)
    sources = {
        "templates": "templates",
        "inventories": "inventories",
        "node": "orchestrator/node",
        "trainer": "trainer",
    }
    for name, source in sources.items():
        folder, files = installed[name]
        assert folder.startswith(str(environment))
        assert shipped(ROOT / source) - set(files) == set()
    (package,) = environment.glob("lib/python3*/site-packages/orchestrator")
    assert shipped(ROOT / "orchestrator") - shipped(package) == set()
    assert (environment / "bin" / "orch").exists()


@pytest.mark.slow
def test_sdist_holds_what_its_tests_need(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path / "tree")
    argv = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(tree)]
    subprocess.run(argv, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("orch-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"constraints.txt", "Makefile", "tests/grounds/keeper.py", "scripts/make-venv.sh", "LICENSE"} <= names


def copy_of_the_tree(target: Path) -> Path:
    """Building in place would leave files behind."""
    left_out = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(ROOT, target, ignore=left_out))
