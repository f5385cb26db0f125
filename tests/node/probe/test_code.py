"""Commit, changes and digest of a folder of code, with git and without it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.node.probe.code import code
from orchestrator.node.probe.source import Source
from tests.grounds.components import program

WITHOUT_GIT: Mapping[str, str] = {"PATH": "/nonexistent"}


def _git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    argv = [program("git"), "-C", str(folder), *identity, *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    _git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "model.py").write_text("x = 1\n")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_commit_and_changes_are_those_of_git(work_tree: Path) -> None:
    commit = _git(work_tree, "rev-parse", "HEAD")
    source = Source()
    clean = code(source, str(work_tree / "src"))
    assert (clean["commit"], clean["dirty"]) == (commit, False)
    assert clean["digest"] is not None
    (work_tree / "src" / "model.py").write_text("x = 2\n")
    changed = code(source, str(work_tree / "src"))
    assert (changed["commit"], changed["dirty"]) == (commit, True)
    assert changed["digest"] != clean["digest"]
    assert source.missing == {}


@pytest.mark.parametrize("packed", [False, True])
def test_without_git_the_commit_is_read_from_its_files(work_tree: Path, packed: bool) -> None:
    if packed:
        _git(work_tree, "pack-refs", "--all")
    commit = _git(work_tree, "rev-parse", "HEAD")
    source = Source("/", WITHOUT_GIT)
    found = code(source, str(work_tree))
    assert (found["commit"], found["dirty"]) == (commit, None)
    assert source.missing == {"code.dirty": "git: not found"}


def test_a_linked_work_tree_and_a_branch_without_commits_are_read(work_tree: Path, tmp_path: Path) -> None:
    commit = _git(work_tree, "rev-parse", "HEAD")
    _git(work_tree, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    _git(work_tree, "worktree", "add", "-q", "-b", "other", str(tmp_path / "branch"))
    for name in ("linked", "branch"):
        assert code(Source("/", WITHOUT_GIT), str(tmp_path / name))["commit"] == commit
    (tmp_path / "new").mkdir()
    _git(tmp_path / "new", "init", "-q")
    assert code(Source("/", WITHOUT_GIT), str(tmp_path / "new"))["commit"] is None
    source = Source()
    assert code(source, str(tmp_path / "new"))["commit"] is None
    assert "code.dirty" in source.missing


def test_digest_leaves_out_what_orch_and_programs_write_meanwhile(tmp_path: Path) -> None:
    def digest() -> str | None:
        return code(Source(), str(tmp_path))["digest"]

    (tmp_path / "train.py").write_text("print()\n")
    before = digest()
    assert before is not None
    for name in ("bundles/0a/orchestrator/a.py", "runs/a-20260102-030405-0abc/code/train.py", "work/runs/x.py"):
        _write(tmp_path / name)
    for name in ("work/bundles/0a/b.py", ".orch/x.py", "outputs/2026/config.py", "wandb/run-1/code.py"):
        _write(tmp_path / name)
    for name in ("env/pyvenv.cfg", "env/lib/x.py", "conda/conda-meta/history", "conda/x.py", "pkg/__pycache__/x.py"):
        _write(tmp_path / name)
    assert digest() == before
    for name in ("outputs/__init__.py", "lib/bundles/x.py"):
        _write(tmp_path / name)
        before, digests = digest(), {before, digest()}
        assert len(digests) == 2


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("1")


def test_the_digest_depends_on_names_contents_and_links_alone(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        folder = tmp_path / name
        (folder / "pkg").mkdir(parents=True)
        (folder / "pkg" / "x.py").write_text("1")
        (folder / "link.py").symlink_to("pkg")
        (folder / "gone.sh").symlink_to("nowhere")
        digests.append(code(Source(), str(folder))["digest"])
    assert digests[0] == digests[1]
    (tmp_path / "b" / "__pycache__").mkdir()
    (tmp_path / "b" / "__pycache__" / "x.pyc").write_text("2")
    assert code(Source(), str(tmp_path / "b"))["digest"] == digests[0]
    (tmp_path / "b" / "gone.sh").unlink()
    (tmp_path / "b" / "gone.sh").symlink_to("elsewhere")
    assert code(Source(), str(tmp_path / "b"))["digest"] != digests[0]
    (tmp_path / "b" / "gone.sh").unlink()
    (tmp_path / "b" / "gone.sh").symlink_to("nowhere")
    (tmp_path / "b" / "pkg" / "x.py").rename(tmp_path / "b" / "pkg" / "y.py")
    assert code(Source(), str(tmp_path / "b"))["digest"] != digests[0]


def test_the_digest_leaves_out_what_differs_between_nodes_or_changes_during_a_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("1")
    digest = code(Source(), str(tmp_path))["digest"]
    for name in ("nohup.out", "logs/rank-0.log", "outputs/metrics.json", ".cache/torch/kernel.cu", ".#train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "outputs" / "latest").symlink_to("run-1")
    assert code(Source(), str(tmp_path))["digest"] == digest
    (tmp_path / "run.sh").write_text("2")
    assert code(Source(), str(tmp_path))["digest"] != digest


@pytest.mark.parametrize("name", ["", "home", "home/code"])
def test_a_folder_with_the_home_in_it_has_no_digest(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home" / "code").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    source = Source()
    is_below = name == "home/code"
    assert (code(source, str(tmp_path / name))["digest"] is not None) == is_below
    assert source.missing == ({} if is_below else {"code.digest": "the home folder is in it"})


def test_a_folder_with_too_many_files_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.node.probe.code.MAX_NAMES", 2)
    source = Source()
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).touch()
    assert code(source, str(tmp_path))["digest"] is not None
    (tmp_path / "c.jpg").touch()
    assert code(source, str(tmp_path))["digest"] is None
    assert source.missing == {"code.digest": f"{tmp_path}: more than 2 files"}


def test_a_folder_that_is_not_there_has_no_digest(tmp_path: Path) -> None:
    source = Source()
    found = code(source, str(tmp_path / "none"))
    assert found["digest"] is None
    assert source.missing == {"code.digest": f"{tmp_path}/none: No such file or directory"}
