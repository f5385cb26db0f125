"""The built distributions contain every file that orch needs."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import Built
from tests.packaging.environments import install, make_environment, packages_of
from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]
_PRINT_RESOURCES = """
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

    done = subprocess.run(
        [str(python), "-c", _PRINT_RESOURCES], check=True, capture_output=True, text=True, cwd=tmp_path
    )

    installed = json.loads(done.stdout)
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


def test_shipped_pages_link_only_to_installed_files(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = wheel.namelist()
        pages = [name for name in names if name.endswith(".md")]
        links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)", wheel.read(page).decode())]
    assert pages
    assert [(page, link) for page, link in links if posixpath.normpath(f"{page}/../{link}") not in names] == []


def test_sdist_holds_every_tracked_file(built: Built) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert tracked.returncode == 0, tracked.stderr
    assert {*tracked.stdout.split("\0")} - {"", ".gitignore"} - {*files_of(built.sdist)} == set()


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_sdist_passes_the_checks_of_its_documents_and_imports(built: Built, tmp_path: Path) -> None:
    """All tests are collected; the tests of the documents that start no process and the import contracts run."""
    subprocess.run(["tar", "-xzf", str(built.sdist), "-C", str(tmp_path)], check=True)
    (root,) = tmp_path.iterdir()
    pytest_here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--assert=plain"]
    for argv in (
        [*pytest_here, "--collect-only"],
        [*pytest_here, "-m", "not processes", "tests/docs/test_docs.py", "tests/docs/test_faults_page.py"],
        [str(Path(sys.executable).with_name("lint-imports"))],
    ):
        done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def files_of(sdist: Path) -> list[str]:
    with tarfile.open(sdist) as archive:
        return [name.partition("/")[2] for name in archive.getnames()]
