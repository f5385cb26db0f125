"""What is built holds all that orch brings along."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, Built
from tests.packaging.environments import install, make_environment, packages_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]
_ASK = """
import json
from orchestrator import resources as r
folders = {"templates": r.template_folder(), "inventories": r.inventory_folder(), "node": r.node_folder(), "trainer": r.trainer_folder()}
print(json.dumps({k: [str(v), sorted(p.relative_to(v).as_posix() for p in v.rglob("*") if p.is_file())] for k, v in folders.items()}))
"""


def shipped(folder: Path) -> set[str]:
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in files if path.suffix in {".py", ".j2", ".yaml", ".md", ".typed"}}


def test_wheel_made_from_the_sdist_installs_every_file(built: Built, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv")
    install(python, str(built.wheel))

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
        assert folder.startswith(str(tmp_path / "venv"))
        assert shipped(ROOT / source) - set(files) == set()
    assert shipped(ROOT / "orchestrator") - shipped(packages_of(python) / "orchestrator") == set()
    assert (python.parent / "orch").exists()


def test_sdist_holds_what_its_tests_need(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"constraints.txt", "Makefile", "tests/grounds/keeper.py", "scripts/make-venv.sh", "LICENSE"} <= names
