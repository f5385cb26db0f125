"""The folders that a program leaves in the code folder of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.agent import finish as module
from orchestrator.node.agent.finish import new_folders


def _write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("xyz")


def test_folders_with_files_that_were_not_sent_are_reported_with_their_size(tmp_path: Path) -> None:
    cwd, sent = tmp_path / "run", tmp_path / "bundle"
    _write(sent, "outputs/.gitkeep", "pkg/a.py")
    _write(
        cwd,
        "outputs/.gitkeep",
        "outputs/run1/ckpt.pt",
        "pkg/a.py",
        "pkg/__pycache__/a.pyc",
        "work_dirs/x",
        "work_dirs/y/z",
    )
    _write(cwd, ".cache/x", "results.csv")
    (cwd / "empty").mkdir()
    (cwd / "kept").symlink_to(tmp_path / "bundle")
    assert new_folders(str(cwd), str(sent)) == {"work_dirs": 6, "outputs": 3}


def test_new_folders_are_looked_at_before_large_ones_that_were_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cwd, sent = tmp_path / "run", tmp_path / "bundle"
    many = [f"code/{number}.py" for number in range(20)]
    _write(sent, *many)
    _write(cwd, *many, "outputs/a", "outputs/b", "code/zz")
    monkeypatch.setattr(module, "MOST_FILES", 10)
    assert new_folders(str(cwd), str(sent)) == {"outputs": 6}
