"""The files that travel: the same rules in git and outside, ignore files, secrets, and the sentences about the code."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orchestrator.code import bundle as bundles
from orchestrator.code.exclusions import is_secret
from orchestrator.code.files import Code, find_code
from orchestrator.code.ignore_files import IgnoreFiles
from orchestrator.code.report import largest_parts
from orchestrator.errors import UsageError
from orchestrator.usecases.launch.request import make_request
from orchestrator.usecases.launch_arguments import LaunchArguments

Find = Callable[..., Code]

SOURCE = (
    "train.py",
    "pkg/__init__.py",
    "pkg/outputs/__init__.py",
    "pkg/outputs/x.py",
    "data/small.json",
    "run.sh",
    "runs/all.sh",
)
LEFT_OUT = {
    "virtual environments": (".venv/pyvenv.cfg", ".venv/lib/x.py", "envs/a/conda-meta/history", "envs/a/lib/x.py"),
    "caches": ("pkg/__pycache__/a.pyc", "b.pyc", ".ruff_cache/x", "node_modules/x.js", "nb/.ipynb_checkpoints/n.ipynb"),
    "results": ("outputs/2026/a.yaml", "pkg/wandb/run-1/c.yaml", "work_dirs/a/b.log", "slurm-12.out", "events.out.tfevents.1"),
    "checkpoints": ("best.pt", "checkpoint-500/state.json", "model/x.safetensors", "model/pytorch_model-1.bin"),
    "secrets": (".env", "sub/.env.local", "deploy.pem", "credentials.json", "id_ed25519", ".netrc", ".aws/config"),
    "files of orch": ("work/bundles/0a/x.py", "records/runs.json"),
    "hidden": (".idea/x.xml", ".python-version"),
    "": ("work/runs/r/code/x.py",),
}  # fmt: skip


def _git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True)


def _write(root: Path, *names: str, text: str = "1") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture(params=["in git", "outside of git"])
def find(request: pytest.FixtureRequest, tmp_path: Path) -> Find:
    """Find the code of tmp_path, which is a work tree without commits or a mere folder."""
    if request.param == "in git":
        _git(tmp_path, "init", "-q")

    def find(*argv: str, orch_folders: Sequence[Path] = ()) -> Code:
        return find_code(tmp_path, argv or ["train.py"], orch_folders=orch_folders)

    return find


def test_files_that_git_does_not_track_travel_by_the_same_rules_in_git_and_outside(tmp_path: Path, find: Find) -> None:
    _write(tmp_path, *SOURCE, *(name for names in LEFT_OUT.values() for name in names))
    code = find(orch_folders=[tmp_path / "records"])
    assert code.files == tuple(sorted(SOURCE))
    assert code.left_out == {
        "secrets": [".aws", ".env", ".netrc", "credentials.json", "deploy.pem", "id_ed25519", "sub/.env.local"],
        "files of orch": ["records", "work/bundles", "work/runs"],
        "checkpoints": ["best.pt", "checkpoint-500", "model/pytorch_model-1.bin", "model/x.safetensors"],
        "hidden": [".idea", ".python-version"],
        "results": ["events.out.tfevents.1", "outputs", "pkg/wandb", "slurm-12.out", "work_dirs"],
        "virtual environments": [".venv", "envs/a"],
    }


def test_tracked_files_travel_whatever_they_are_and_secrets_among_them_are_named(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    names = ("train.py", ".env", "outputs/a.yaml", "best.pt", ".github/ci.yml")
    _write(tmp_path, *names)
    _git(tmp_path, "add", "-f", ".")
    _write(tmp_path, "outputs/b.yaml")
    code = find_code(tmp_path, ["train.py"])
    assert code.files == tuple(sorted(names))
    (warning,) = bundles.build(trainer=False, code=code).warnings
    assert (
        warning == "files that may hold secrets are sent to the nodes, because git tracks it or it was asked for: .env"
    )


def test_file_that_the_command_line_names_travels(tmp_path: Path, find: Find) -> None:
    _write(tmp_path, "train.py", "init.pt", "other.pt", "conf/.env")
    words = ("sh", "-c", "python train.py --init=init.pt", "--env-file", "conf/.env", "outputs")
    assert find(*words).files == ("conf/.env", "init.pt", "train.py")


def test_orchignore_leaves_out_and_includes_whatever_other_rules_say(tmp_path: Path, find: Find) -> None:
    _write(tmp_path, "train.py", "outputs/a.yaml", "outputs/config.yaml", "data/a.json", "data/keep.json", "notes.md")
    _write(tmp_path, "weights/x.pt", "ignored/y.txt", "pkg/notes.md", "pkg/.env")
    _write(tmp_path, ".gitignore", text="ignored/\n")
    _write(
        tmp_path, ".orchignore", text="/data/*\n!/data/keep.json\n*.md\n!outputs/config.yaml\n!*.pt\n!/ignored/y.txt\n"
    )
    _write(tmp_path, "pkg/.orchignore", text="!notes.md\n")
    code = find()
    sent = ("data/keep.json", "ignored/y.txt", "outputs/config.yaml", "pkg/notes.md", "train.py", "weights/x.pt")
    assert tuple(name for name in code.files if name != ".gitignore") == sent
    assert code.left_out[".orchignore"] == ["data/a.json", "notes.md"]


def test_orchignore_leaves_out_tracked_files(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    _write(tmp_path, "train.py", "data/a.json")
    _write(tmp_path, ".orchignore", text="data\n")
    _git(tmp_path, "add", ".")
    assert find_code(tmp_path, ["train.py"]).files == (".orchignore", "train.py")


def test_gitignore_outside_of_git_means_what_it_means_to_git(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "a.py",
        "a.log",
        "keep.log",
        "sub/a.log",
        "sub/b.txt",
        "sub/deep/b.txt",
        "build/x",
        "sub/build/y",
        "sub/deep/c.py",
        "c d.x",
    )
    _write(tmp_path, ".gitignore", text="*.log\n!keep.log\n/build/\nc\\ d.x\n**/deep/*.txt\n")
    _write(tmp_path, "sub/.gitignore", text="!a.log\nb.txt\n")
    outside = find_code(tmp_path, ["a.py"])
    _git(tmp_path, "init", "-q")
    inside = find_code(tmp_path, ["a.py"])
    assert outside.files == inside.files == ("a.py", "keep.log", "sub/a.log", "sub/build/y", "sub/deep/c.py")
    assert outside.left_out == inside.left_out
    assert outside.left_out[".gitignore"] == ["a.log", "build", "c d.x", "sub/b.txt", "sub/deep/b.txt"]


@pytest.mark.parametrize(
    ("pattern", "folders"),
    [("!a.pt", [""]), ("!/a.pt", ["a.pt"]), ("!x/*.pt", ["x"]), ("!x/y/", ["x/y"]), ("!/*/y", [""]), ("x", [])],
)
def test_included_files_are_looked_for_where_the_pattern_begins(
    tmp_path: Path, pattern: str, folders: list[str]
) -> None:
    _write(tmp_path, ".orchignore", text=f"{pattern}\n")
    found = list(IgnoreFiles(tmp_path, ".orchignore").negated())
    assert found == (["a.pt"] if pattern == "!/a.pt" else folders)


@pytest.mark.parametrize("name", [".env.example", "env.py", "keys.py", "tokenizer.json", "a/environment.yml", ".envy"])
def test_file_that_only_resembles_a_secret_is_none(name: str) -> None:
    assert not is_secret(name)


def test_code_is_described_by_its_size_origin_and_what_is_left_out(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    _write(tmp_path, "train.py", "pkg/a.py", "pkg/b.py", text="x" * 1000)
    _write(tmp_path, ".gitignore", text="data\n")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "first")
    _write(tmp_path, "train.py", "new.py", "data/x", ".env", ".venv/pyvenv.cfg")
    report = bundles.build(trainer=False, code=find_code(tmp_path, ["train.py"])).report
    assert report
    first, *rest = report.in_full()
    assert first.startswith(f"code: 5 files, 2.01 kB from {tmp_path} (git ")
    assert first.endswith(", 2 changed files)")
    hint = "a line !NAME in .orchignore sends one"
    assert rest == [
        "largest parts of the code: pkg/ 2 kB, .gitignore 5 B, new.py 1 B, train.py 1 B",
        f"not sent: .env (secrets), .venv (virtual environments), data (.gitignore); {hint}",
    ]
    assert list(report.at_launch()) == [first, f"not sent: .env (secrets), .venv (virtual environments); {hint}"]


def test_missing_code_is_reported_in_a_folder_with_programs(tmp_path: Path) -> None:
    _write(tmp_path, "main.py")
    for argv, count in ((["python3", "-c", "import main"], 1), (["bash", "-c", "(cd .; python main.py)&&ls"], 0)):
        report = bundles.build(trainer=False, code=find_code(tmp_path, argv)).report
        assert report
        assert [line.startswith("no code is sent:") for line in report.at_launch()].count(True) == count


def test_largest_part_is_the_folder_that_holds_most_of_it() -> None:
    sizes = {"a/b/c/x": 60, "a/b/c/y": 50, "a/z": 40, "m": 45, "n": 1, "o": 2, "p": 3, "q": 4}
    assert largest_parts(sizes) == [("a/b/c/", 110), ("m", 45), ("q", 4), ("p", 3), ("o", 2)]


def test_file_that_is_gone_when_it_is_read_is_left_out(tmp_path: Path) -> None:
    _write(tmp_path, "train.py", "lock")
    code = find_code(tmp_path, ["train.py"])
    (tmp_path / "lock").unlink()
    assert list(bundles.build(trainer=False, code=code).code) == ["train.py"]


def test_advice_of_the_size_error_works(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    with (tmp_path / "data.npy").open("wb") as file:
        file.truncate(bundles.LIMIT_BYTES + 1)
    _git(tmp_path, "add", "-N", ".")
    with pytest.raises(UsageError) as caught:
        bundles.build(trainer=False, code=find_code(tmp_path, ["train.py"]))
    assert ".orchignore" in caught.value.hint
    _write(tmp_path, ".orchignore", text="*.npy\n")
    assert bundles.build(trainer=False, code=find_code(tmp_path, ["train.py"])).code == {}


def test_program_that_would_not_be_sent_is_refused_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, "misc/x.py", "proj/ignored.py", "proj/train.py")
    _write(tmp_path, "proj/.gitignore", text="ignored.py\n")
    monkeypatch.chdir(tmp_path / "proj")
    for program, why, hint in (
        ("../misc/x.py", "it is outside of", f"such as {tmp_path}"),
        ("ignored.py", "an ignore file lists it", "add the line !/ignored.py to "),
    ):
        with pytest.raises(UsageError, match=why) as caught:
            make_request(LaunchArguments("ssh", None, None, None, None, (), (program,)))
        assert hint in caught.value.hint
    _write(tmp_path, "proj/.orchignore", text="!/ignored.py\n")
    make_request(LaunchArguments("ssh", None, None, None, None, (), ("ignored.py",)))
