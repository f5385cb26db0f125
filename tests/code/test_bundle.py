"""The bundle: git-tracked and uncommitted files, the same digest for the same content, a size limit."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from orchestrator.code import bundle as bundles
from orchestrator.code.files import find_code, revision
from orchestrator.errors import OrchError, UsageError
from orchestrator.fanout import map_parallel


def _git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True)


def _out_of_memory(*_: object) -> None:
    raise MemoryError


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A work tree with a committed, a changed, a new, an ignored and a deleted file."""
    for name, text in {
        "kept.py": "1",
        "changed.py": "old",
        "gone.py": "",
        ".gitignore": "*.bin\n",
        "sub/x.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "changed.py").write_text("new")
    (tmp_path / "new file.py").write_text("2")
    (tmp_path / "data.bin").write_bytes(b"0" * 100)
    (tmp_path / "gone.py").unlink()
    return tmp_path


def test_bundle_has_tracked_and_uncommitted_files_but_no_ignored_or_deleted_ones(repository: Path) -> None:
    code = find_code(repository, ["x.py"])
    assert set(code.files) == {".gitignore", "kept.py", "changed.py", "new file.py", "sub/x.py"}


def test_bundle_has_the_whole_work_tree_even_from_a_subfolder(repository: Path) -> None:
    code = find_code(repository / "sub", ["x.py"])
    assert (code.root, code.cwd) == (repository, "sub")
    assert "kept.py" in code.files


def test_bundle_outside_of_git_has_no_hidden_files_or_environments(tmp_path: Path) -> None:
    for name in ("a.py", ".secret", "env/pyvenv.cfg", "env/lib.py", "pkg/b.py", "pkg/__pycache__/b.pyc", ".git-not/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("")
    for words in (["a.py"], ["sh", "a.py"], ["-m", "pkg.b"]):
        assert find_code(tmp_path, words).files == ("a.py", "pkg/b.py")


def test_program_that_names_no_local_file_sends_no_code(tmp_path: Path) -> None:
    (tmp_path / "private.txt").touch()
    for words in (["echo", "hi"], ["/usr/bin/env"], ["echo", ""]):
        assert find_code(tmp_path, words).files == ()


def test_home_folder_is_never_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.py").touch()
    with pytest.raises(UsageError, match="all of that folder would be sent"):
        find_code(tmp_path, ["a.py"])


def test_digest_depends_on_content_and_mode_only(repository: Path) -> None:
    def digest() -> str:
        return bundles.build(trainer=True, code=find_code(repository, ["x.py"])).digest

    before = digest()
    (repository / "kept.py").touch()
    assert digest() == before
    (repository / "kept.py").chmod(0o755)
    executable = digest()
    (repository / "changed.py").write_text("newer")
    assert len({before, executable, digest()}) == 3


def test_archive_has_the_files_of_the_bundle_and_no_user_data(repository: Path) -> None:
    (repository / "link").symlink_to("kept.py")
    bundle = bundles.build(trainer=True, code=find_code(repository, ["x.py"]))
    with tarfile.open(fileobj=io.BytesIO(bundle.archive[0])) as archive:
        members = {member.name: member for member in archive.getmembers()}
    assert {name for name, member in members.items() if not member.isdir()} == {name for name, _ in bundle.files}
    assert {"orchestrator/node/agent/agent.py", "trainer/__main__.py", "code/kept.py"} <= set(members)
    assert members["code/link"].issym()
    assert {(member.uid, member.uname, member.mode & 0o077) for member in members.values() if member.isfile()} == {
        (0, "", 0)
    }


def test_archive_is_packed_once_for_all_nodes(repository: Path) -> None:
    """All threads get the same object: an archive per thread would be the memory of the launching machine."""
    bundle = bundles.build(trainer=True, code=find_code(repository, ["x.py"]))
    archives = map_parallel(range(16), lambda _: bundle.archive, limit=16)
    assert len({id(archive) for archive in archives}) == 1


def test_archive_that_lacks_files_is_never_returned(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing frees the contents one by one, so it cannot be repeated once it has failed."""
    bundle = bundles.build(trainer=False, code=find_code(repository, ["x.py"]))
    with monkeypatch.context() as patched:
        patched.setattr(tarfile.TarFile, "addfile", _out_of_memory)
        with pytest.raises(MemoryError):
            _ = bundle.archive
    with pytest.raises(OrchError, match="the code could not be packed") as caught:
        _ = bundle.archive
    assert "ulimit -v" in caught.value.hint


@pytest.mark.processes
def test_sent_orchestrator_package_imports_nothing(repository: Path, tmp_path: Path) -> None:
    """Without the import of api.py: a program that imports orchestrator to launch itself still starts on a node."""
    bundle = bundles.build(trainer=False, code=find_code(repository, ["x.py"]))
    package = tmp_path / "orchestrator"
    package.mkdir()
    (package / "__init__.py").write_bytes(dict(bundle.files)["orchestrator/__init__.py"].read_bytes())
    program = (
        "import sys; sys.path[:0] = ['.']; before = {*sys.modules}; import orchestrator; print({*sys.modules} - before)"
    )
    argv = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "{'orchestrator'}\n"


def test_trainer_is_not_sent_with_a_users_program(repository: Path) -> None:
    bundle = bundles.build(trainer=False, code=find_code(repository, ["x.py"]))
    assert not [name for name, _ in bundle.files if name.startswith("trainer/")]


def test_link_out_of_the_code_is_left_out_and_named(repository: Path) -> None:
    for name, target in {"data": "/mnt/data", "up": "../elsewhere", "inside": "sub/x.py", "dangling": "none"}.items():
        (repository / name).symlink_to(target)
    bundle = bundles.build(trainer=False, code=find_code(repository, ["x.py"]))
    assert [warning.split()[3] for warning in bundle.warnings] == ["data", "up"]
    names = {name for name, _ in bundle.files}
    assert {"code/inside", "code/dangling"} <= names
    assert not {"code/data", "code/up"} & names


@pytest.fixture
def submodule(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The submodule `vendor` of the work tree, with another submodule in it."""
    inner, outer = tmp_path_factory.mktemp("inner"), tmp_path_factory.mktemp("outer")
    allow = ("-c", "protocol.file.allow=always")
    for folder, file in ((inner, "deep.py"), (outer, "lib.py")):
        (folder / file).write_text("")
        _git(folder, "init", "-q")
        _git(folder, "add", ".")
        _git(folder, "commit", "-qm", "first")
    _git(outer, *allow, "submodule", "add", "-q", str(inner), "third")
    _git(outer, "commit", "-qm", "second")
    _git(repository, *allow, "submodule", "add", "-q", str(outer), "vendor")
    _git(repository, *allow, "submodule", "update", "-q", "--init", "--recursive")
    return repository / "vendor"


def test_bundle_has_tracked_and_new_files_of_submodules_at_any_depth(repository: Path, submodule: Path) -> None:
    (submodule / "new.py").write_text("")
    (submodule / "third" / "new.py").write_text("")
    code = find_code(repository, ["x.py"])
    assert {"vendor/lib.py", "vendor/new.py", "vendor/third/deep.py", "vendor/third/new.py"} <= set(code.files)
    assert bundles.build(trainer=False, code=code).warnings == ()


def test_submodules_that_are_not_checked_out_are_named(repository: Path, submodule: Path) -> None:
    _git(submodule, "submodule", "deinit", "-q", "--all")
    (warning,) = bundles.build(trainer=False, code=find_code(repository, ["x.py"])).warnings
    assert "vendor/third; `git submodule update --init --recursive`" in warning
    _git(repository, "submodule", "deinit", "-q", "--force", "--all")
    code = find_code(repository, ["x.py"])
    assert code.absent == ("vendor",)
    assert not [name for name in code.files if name.startswith("vendor")]


def test_nested_repositories_that_are_not_submodules_are_named(repository: Path, submodule: Path) -> None:
    for folder in (repository / "tools" / "other", submodule / "within"):
        folder.mkdir(parents=True)
        (folder / "file.py").write_text("")
        _git(folder, "init", "-q")
    (warning,) = bundles.build(trainer=False, code=find_code(repository, ["x.py"])).warnings
    assert "not submodules are not sent: tools/other, vendor/within; `git submodule add`" in warning
    (repository / ".gitignore").write_text("tools\n")
    assert find_code(repository, ["x.py"]).nested == ("vendor/within",)


def test_lfs_pointers_are_sent_and_named(repository: Path) -> None:
    for number in range(5):
        (repository / f"weights-{number}.pt").write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        )
    _git(repository, "add", ".")
    bundle = bundles.build(trainer=False, code=find_code(repository, ["x.py"]))
    assert "code/weights-0.pt" in dict(bundle.files)
    (warning,) = bundle.warnings
    assert "weights-0.pt, weights-1.pt, weights-2.pt and 2 more; `git lfs pull`" in warning


def test_work_tree_whose_index_git_cannot_read_is_an_error_and_not_empty_code(repository: Path) -> None:
    (repository / ".git" / "index").write_bytes(b"damaged")
    with pytest.raises(UsageError, match=r"git cannot list the code in .*index file"):
        find_code(repository, ["x.py"])


def test_work_tree_that_git_cannot_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: nowhere")
    with pytest.raises(UsageError, match="git cannot read"):
        find_code(tmp_path, ["x.py"])


def test_too_large_code_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    with (tmp_path / "checkpoint.pt").open("wb") as file:
        file.truncate(bundles.LIMIT_BYTES + 1)
    with pytest.raises(UsageError, match=r"checkpoint\.pt \(256 MiB\)"):
        bundles.build(trainer=False, code=find_code(tmp_path, ["checkpoint.pt"]))


def test_revision_is_the_commit_and_the_diff(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    commit, diff = revision(repository)
    assert commit is not None
    assert len(commit) == 40
    assert "+new" in diff
    assert revision(tmp_path_factory.mktemp("elsewhere")) == (None, "")


def test_commit_of_the_code_shows_whether_tracked_files_differ(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    commit, _ = revision(repository)
    _git(repository, "tag", "v1")
    assert bundles.build(trainer=False, code=find_code(repository / "sub", ["x.py"])).commit == f"{commit}-dirty"
    _git(repository, "checkout", "-q", ".")
    assert find_code(repository, ["x.py"]).commit == commit  # `new file.py` is not tracked
    assert find_code(tmp_path_factory.mktemp("elsewhere"), ["echo"]).commit == ""


def test_private_files_are_neither_sent_nor_in_the_diff(repository: Path) -> None:
    """Private files: a committed and changed one, a new one, and one named through a link."""
    (repository / "link.py").symlink_to("changed.py")
    private = [str(repository / name) for name in ("link.py", "new file.py")] + ["/elsewhere/x.env"]
    code = find_code(repository / "sub", ["x.py"], private)
    assert set(code.files) == {".gitignore", "kept.py", "sub/x.py"}
    assert "changed.py" in revision(repository / "sub")[1]
    assert "changed.py" not in revision(repository / "sub", private)[1]
    assert "gone.py" in revision(repository / "sub", private)[1]


def test_private_files_are_not_sent_outside_of_git_either(tmp_path: Path) -> None:
    for name in ("a.py", "team.env"):
        (tmp_path / name).write_text("")
    assert find_code(tmp_path, ["a.py"], [str(tmp_path / "team.env")]).files == ("a.py",)
