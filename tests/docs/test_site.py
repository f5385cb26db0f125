"""The site of docs/ builds without a warning, as by `make docs`: no dead link or anchor, and every page is included."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tests.grounds.components import missing

SOURCES = ("mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def assert_search_finds_variables(index: dict[str, Any]) -> None:  # of JSON
    """The site splits texts and queries by this separator; decisions and the changelog are left out."""
    words = re.split(index["config"]["separator"], 'env: {ORCH_SEPARATE: "1"} NCCL_IB_HCA=mlx5_1, $MASTER_ADDR')
    assert {"ORCH_SEPARATE", "NCCL_IB_HCA", "MASTER_ADDR"} <= set(words)
    found = {item["location"]: item["title"] for item in index["items"]}
    assert found["variables/#nccl_ib_hca"] == "NCCL_IB_HCA"
    assert not [location for location in found if location.startswith(("decisions/", "changelog/"))]


@pytest.mark.processes
def test_site_builds_without_warnings_and_loads_nothing_external(tmp_path: Path) -> None:
    zensical = shutil.which("zensical", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if zensical is None:
        missing("zensical")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in SOURCES:
        shutil.copy(ROOT / name, tmp_path)

    built = subprocess.run(
        [zensical, "build", "--clean", "--strict"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path.parent.relative_to(tmp_path / "site").as_posix() for path in tmp_path.glob("site/**/index.html")}
    sources = {path.relative_to(tmp_path / "docs").with_suffix("") for path in tmp_path.glob("docs/**/*.md")}
    assert pages == {(path.parent if path.name == "index" else path).as_posix() for path in sources}
    assert_search_finds_variables(json.loads((tmp_path / "site" / "search.json").read_text("utf-8")))
    for path in tmp_path.glob("site/**/index.html"):
        html = path.read_text("utf-8")
        assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?https?://[^>]*>", html), path
        assert "--8&lt;--" not in html, path
