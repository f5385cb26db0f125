"""The folders in memory that runs leave: found by name, owner, age and living processes, and removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.endpoint.garbage import clear
from orchestrator.node.run import memory_folder
from orchestrator.node.run.memory_folder import remove_memory, remove_unused, unused_folders

RUN = "train-20260101-000000-abcd"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory_folder, "ROOT", str(tmp_path))
    return tmp_path


def _make(run: str, node: str, *, age_s: float) -> Path:
    path = Path(memory_folder.memory_folder(run, node))
    path.mkdir(mode=0o700)
    (path / "r00000-0.safetensors").write_bytes(b"state")
    then = path.stat().st_mtime - age_s
    for each in (path / "r00000-0.safetensors", path):
        os.utime(each, (then, then))
    return path


def test_old_folders_of_runs_without_processes_are_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, young = _make(RUN, "n0", age_s=4000), _make(RUN, "n1", age_s=10)
    living = _make("living-20260101-000000-abcd", "n0", age_s=4000)
    foreign = root / "orch-other"
    foreign.mkdir()
    link = root / f"{memory_folder.prefix()}link"
    link.symlink_to(foreign)
    monkeypatch.setattr(memory_folder, "runs_with_processes", lambda: {"living-20260101-000000-abcd"})
    assert [path for path, _, _ in unused_folders(3600.0)] == [str(old)]
    assert remove_unused() == []
    assert not old.exists()
    assert all(path.exists() for path in (young, living, foreign, link))


def test_folder_is_removed_with_its_files_and_a_link_is_not_followed(root: Path) -> None:
    path = _make(RUN, "n0", age_s=0)
    assert remove_memory(str(path)) == ""
    assert remove_memory(str(path)) == ""  # it is gone
    assert not path.exists()
    target = _make(RUN, "n1", age_s=0)
    link = root / "link"
    link.symlink_to(target)
    assert remove_memory(str(link)) == f"{link} is no folder of this user"
    assert (target / "r00000-0.safetensors").exists()


def test_gc_lists_and_removes_what_is_left_in_memory(root: Path) -> None:
    path = _make(RUN, "n0", age_s=50)
    request = {"workdir": str(root / "work"), "older_than_s": 10.0, "results": False}
    for dry_run in (True, False):
        reply, _ = clear({**request, "dry_run": dry_run}, b"")  # type: ignore[typeddict-item]
        (entry,) = reply["entries"]
        assert (entry["kind"], entry["path"], entry["bytes"], entry["action"]) == ("memory", str(path), 5, "remove")
        assert path.exists() is dry_run
