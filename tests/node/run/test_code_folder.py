"""The links to folders that outlive a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.run.code_folder import link_kept


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "a" / "code").mkdir(parents=True, mode=0o700)
    return tmp_path


def _link(workdir: Path, *paths: str) -> list[str]:
    return link_kept(str(workdir), str(workdir / "kept" / "gpt" / "p-012345"), str(workdir / "runs/a/code"), paths)


def test_what_one_run_writes_the_next_one_reads(workdir: Path) -> None:
    code = workdir / "runs/a/code"
    assert _link(workdir, "outputs", "exp/logs") == []
    (code / "outputs" / "state.pt").write_text("1")
    (code / "exp" / "logs" / "x").write_text("2")
    (workdir / "runs/a").rename(workdir / "runs/old")
    code.mkdir(parents=True)
    assert _link(workdir, "outputs", "exp/logs") == _link(workdir, "outputs", "exp/logs") == []
    assert (code / "outputs" / "state.pt").read_text() + (code / "exp" / "logs" / "x").read_text() == "12"
    assert (workdir / "kept").stat().st_mode & 0o777 == 0o700


def test_folder_that_replaces_the_link_is_named_and_not_removed(workdir: Path) -> None:
    code = workdir / "runs/a/code"
    (code / "outputs").mkdir()
    (code / "outputs" / "x").touch()
    assert _link(workdir, "outputs", "logs") == ["outputs"]
    assert (code / "outputs" / "x").exists()
    assert (code / "logs").is_symlink()


def test_kept_folder_may_be_a_link_to_another_disk_but_none_of_those_above(workdir: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (workdir / "kept" / "gpt" / "p-012345").mkdir(parents=True, mode=0o700)
    (workdir / "kept" / "gpt" / "p-012345" / "outputs").symlink_to(disk)
    assert _link(workdir, "outputs") == []
    (workdir / "runs/a/code/outputs/x").touch()
    assert (disk / "x").exists()
    (workdir / "kept").rename(workdir / "moved")
    (workdir / "kept").symlink_to(disk)
    with pytest.raises(PermissionError, match="is a symbolic link"):
        _link(workdir, "outputs")
