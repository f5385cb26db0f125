"""orch diff and orch rerun: from the records of runs that were planned, without a launch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from orchestrator.cli import app
from orchestrator.errors import UsageError
from orchestrator.launch.start import record_plan
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import home_store
from orchestrator.run import RankExit, RunState
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch.rerun import Changes, rerun_arguments
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.reports.diff import Difference, RecordedRun, diff

INVENTORY = """\
name: demo
transport: local
devices: 2
accelerator: cpu
env: {NCCL_DEBUG: WARN, HF_TOKEN: hidden}
nodes: [{name: n0}, {name: n1}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder with code and inventory; the records are elsewhere."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)\n")
    (code / "inventory.yaml").write_text(INVENTORY)
    (code / "inventory.yaml").chmod(0o600)  # it holds a secret
    monkeypatch.chdir(code)
    return code


def _arguments(
    name: str, program: tuple[str, ...] = ("train.py", "--lr", "1"), nodes: str | None = None
) -> LaunchArguments:
    return LaunchArguments("ssh", "inventory.yaml", nodes, None, None, (), program, name=name)


def _recorded(arguments: LaunchArguments) -> RunFolder:
    """Record the launch as far as it is recorded before a node is reached."""
    planned = plan_launch(arguments)
    folder = home_store().create(planned.record)
    record_plan(folder, planned)
    return folder


@pytest.fixture
def two_runs(folder: Path) -> Callable[[], tuple[RecordedRun, RecordedRun]]:
    """Two runs between which code, command, environment, nodes, versions and result have changed."""
    first = _recorded(_arguments("first"))
    first.write_software({"n0": {"torch": "2.5.1"}, "n1": {"torch": "2.5.1"}})
    first.update(state=RunState.DONE, summary={"last_loss": 2.0, "tokens_per_s": 100.0, "checkpoint": "/a"})
    (folder / "train.py").write_text("print(2)\n")
    (folder / "new.py").write_text("")
    (folder / "inventory.yaml").write_text(INVENTORY.replace("WARN", "INFO").replace("hidden", "other"))
    second = _recorded(_arguments("second", ("train.py", "--lr", "2"), "n0"))
    second.write_software({"n0": {"torch": "2.6.0"}})
    failure = RankExit("n0", 1, 1, None)
    second.update(
        state=RunState.FAILED, exit=failure, summary={"last_loss": 1.5, "tokens_per_s": 150.0, "checkpoint": "/b"}
    )
    return lambda: (RecordedRun.find("first"), RecordedRun.find("second"))


def _rows(differences: list[Difference]) -> dict[tuple[str, str], tuple[object, object]]:
    return {(row.topic, row.name): (row.first, row.second) for row in differences}


def test_differences_of_two_runs_are_named_one_by_one(two_runs: Callable[[], tuple[RecordedRun, RecordedRun]]) -> None:
    rows = _rows(diff(*two_runs()))
    assert rows["code", "train.py"] == ("present", "changed")
    assert rows["code", "new.py"] == (None, "added")
    assert rows["command", "arguments"] == ("train.py --lr 1", "train.py --lr 2")
    assert rows["environment", "NCCL_DEBUG"] == ("WARN", "INFO")
    assert ("environment", "HF_TOKEN") not in rows
    assert rows["nodes", "names"] == ("n[0-1]", "n0")
    assert rows["nodes", "world_size"] == (4, 2)
    assert rows["versions", "torch"] == ("2.5.1", "2.6.0")
    assert ("inventory", "digest") in rows
    assert ("inventory", "file") not in rows
    assert rows["results", "state"] == ("DONE", "FAILED")
    assert rows["results", "last_loss"] == (2.0, 1.5)
    assert ("results", "checkpoint") not in rows


def test_no_value_of_a_secret_is_recorded_or_shown(
    two_runs: Callable[[], tuple[RecordedRun, RecordedRun]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = two_runs()
    assert app.run(["diff", "first", "second", "--json"]) == 0
    records = [file.read_text("utf-8") for file in run.folder.path.rglob("*") if file.is_file()]
    assert all("hidden" not in text for text in [*records, capsys.readouterr().out])
    assert {file.stat().st_mode & 0o777 for file in run.folder.path.rglob("*.json")} == {0o600}


def test_values_that_differ_between_nodes_are_shown_with_the_nodes(
    two_runs: Callable[[], tuple[RecordedRun, RecordedRun]],
) -> None:
    first, second = two_runs()
    first.folder.write_software({"n0": {"torch": "2.5.1"}, "n1": {}})
    assert _rows(diff(first, second))["versions", "torch"] == ("n0: 2.5.1, n1: unset", "2.6.0")


def test_run_does_not_differ_from_itself(
    two_runs: Callable[[], tuple[RecordedRun, RecordedRun]], capsys: pytest.CaptureFixture[str]
) -> None:
    two_runs()
    assert app.run(["diff", "first", "first"]) == 0
    assert "do not differ" in capsys.readouterr().err


def test_table_has_the_change_of_results(
    two_runs: Callable[[], tuple[RecordedRun, RecordedRun]], capsys: pytest.CaptureFixture[str]
) -> None:
    two_runs()
    assert app.run(["diff", "first", "second"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["results", "tokens_per_s", "100", "150", "(+50.0%)"] for line in lines)


def test_record_of_an_older_version_without_files_of_code_is_compared(
    two_runs: Callable[[], tuple[RecordedRun, RecordedRun]],
) -> None:
    first, second = two_runs()
    for name in ("plan/code.json", "plan/environment.json", "software.json"):
        (first.folder.path / name).unlink()
    rows = _rows(diff(first, second))
    assert rows["code", "files"] == ("present", "not recorded")
    assert [row for row in rows.items() if row[0][0] == "environment"] == [
        (("environment", "variables"), ("not recorded", "recorded"))
    ]
    assert rows["versions", "programs of the nodes"] == ("not recorded", None)


def test_rerun_has_the_arguments_of_the_launch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = replace(
        _arguments("first", nodes="n1"),
        orphan_timeout="2h",
        isolation_timeout="90s",
        wait_for_nodes="1800s",
        bare=True,
        note="why",
        tags=("a", "b"),
        debug=True,
        max_retries=3,
        elastic="1:2",
        exclude_suspects=True,
        no_check=True,
        skipped=("clock",),
        is_trial=True,
    )
    run = _recorded(launch)
    monkeypatch.chdir("/")
    repeated = rerun_arguments("first", None)
    assert Path.cwd() == folder
    assert repeated.inventory is not None
    assert Path(repeated.inventory).samefile(folder / "inventory.yaml")
    same = replace(launch, orphan_timeout="7200s", rerun_of=run.path.name, inventory=repeated.inventory)
    assert repeated == same
    assert rerun_arguments("first", "n0") == replace(same, nodes="n0")


@pytest.mark.usefixtures("folder")
def test_rerun_on_other_nodes_keeps_the_ranks_per_node() -> None:
    _recorded(replace(_arguments("first"), shape="2x1"))
    assert (rerun_arguments("first", None).shape, rerun_arguments("first", "n1").shape) == ("2x1", "1x1")


@pytest.mark.processes
def test_rerun_of_the_shared_trainer_has_its_settings_and_the_configuration_of_then(folder: Path) -> None:
    config = folder / "config.yaml"
    config.write_text("steps: 3\n")
    _recorded(LaunchArguments("ssh", "inventory.yaml", None, "1x2", config, ("lr=1e-3",), None, name="first"))
    config.write_text("steps: 4\n")
    repeated = rerun_arguments("first", None)
    assert (repeated.settings, repeated.program, repeated.shape) == (("lr=1e-3",), None, "1x2")
    assert repeated.config is not None
    assert json.loads(repeated.config.read_text("utf-8")) == {"steps": 3}
    assert rerun_arguments("first", None, ("lr=1e-4",)).settings == ("lr=1e-3", "lr=1e-4")  # the later one counts


@pytest.mark.usefixtures("folder")
def test_rerun_of_a_program_takes_no_settings() -> None:
    _recorded(_arguments("first"))
    with pytest.raises(UsageError, match=r"runs \S+, and 'lr=1' is a setting of the shared trainer"):
        rerun_arguments("first", None, ("lr=1",))


def test_rerun_takes_other_arguments_retries_and_variables(folder: Path) -> None:
    run = _recorded(replace(_arguments("first"), max_retries=3, env=("A=1", "B=x=y"))).path.name
    same = rerun_arguments("first", None)
    assert (same.max_retries, same.all_variables) == (3, {"A": "1", "B": "x=y"})
    changes = Changes(("train.py", "--lr", "2"), max_retries=0, env=("A=2",))
    changed = rerun_arguments("first", None, (), changes)
    assert (changed.program, changed.max_retries, changed.all_variables) == (changes.program, 0, {"A": "2", "B": "x=y"})
    assert plan_launch(changed).plan.head.env["A"] == "2"
    with pytest.raises(UsageError, match=f"--time is for runs through Slurm, and {run} was launched over SSH"):
        rerun_arguments("first", None, (), Changes(slurm=(("--time", "slurm.time=30"),)))


@pytest.mark.usefixtures("folder")
def test_rerun_of_a_slurm_run_takes_other_fields_of_slurm_and_keeps_the_others() -> None:
    slurm = (("--partition", "slurm.partition=debug"), ("--set", "slurm.mem=2G"), ("--set", "slurm.options=--nice"))
    _recorded(replace(_arguments("first"), launcher="slurm", slurm=slurm))
    changes = Changes(slurm=(("--partition", "slurm.partition=gpu"), ("--set", "slurm.options=--spread-job")))
    words = [word for _, word in rerun_arguments("first", None, (), changes).slurm]
    assert words == ["slurm.mem=2G", "slurm.options=--nice", "slurm.partition=gpu", "slurm.options=--spread-job"]


@pytest.mark.usefixtures("folder")
def test_secret_of_env_is_not_recorded_and_a_rerun_needs_its_value(tmp_path: Path) -> None:
    run = _recorded(replace(_arguments("first"), env=("HF_TOKEN=tr0ub4dor", "MODEL=/data/qwen")))
    written = "".join(path.read_text("utf-8") for path in run.path.rglob("*") if path.is_file())
    assert "/data/qwen" in written
    assert "tr0ub4dor" not in written
    with pytest.raises(UsageError, match="launched with --env HF_TOKEN, a secret, whose value is not recorded"):
        rerun_arguments("first", None)
    repeated = rerun_arguments("first", None, (), Changes(env=("HF_TOKEN=again",)))
    assert repeated.all_variables == {"MODEL": "/data/qwen", "HF_TOKEN": "again"}
    assert "tr0ub4dor" not in "".join(path.read_text("utf-8", "replace") for path in tmp_path.rglob("*.json"))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("MODEL",), "--env without =: not NAME=VALUE"),
        (("A=1", "A=2"), "--env A is given twice"),
        (("1A=x",), "--env 1A: not the name of a variable"),
        (("RANK=0",), "--env RANK: orch sets this variable for every rank; omit it"),
        (("A=\0",), "--env A: holds a NUL"),
    ],
)
def test_wrong_env_is_refused_by_name(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_launch(replace(_arguments("first"), env=words))


def test_every_argument_of_a_launch_is_repeated_or_named_here() -> None:
    passed_on = {
        "launcher", "inventory", "nodes", "shape", "config", "settings", "program", "orphan_timeout", "isolation_timeout",
        "wait_for_nodes", "share", "wait_free",
        "bare", "per_node", "until_head", "name", "note", "tags", "debug", "slurm", "here", "no_check", "skipped", "exclude_suspects", "max_retries", "elastic", "rerun_of",
            "variables", "env", "is_trial",
    }  # fmt: skip
    reported, refused = {"after"}, {"module"}
    assert {field.name for field in fields(LaunchArguments)} == passed_on | reported | refused


def test_rerun_reports_what_has_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = _recorded(_arguments("first")).path.name
    (folder / "train.py").write_text("print(2)\n")
    (folder / "inventory.yaml").write_text(INVENTORY.replace("WARN", "INFO"))
    assert app.run(["rerun", "first", "--nodes", "n0", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert f"the code has changed since {first}: train.py (changed)" in printed.err
    assert f"the inventory has changed since {first}: " in printed.err
    assert re.search(r"\bn1\b", printed.out) is None


def test_unchanged_rerun_reports_no_change(folder: Path) -> None:
    _recorded(_arguments("first"))
    planned = plan_launch(rerun_arguments("first", None))
    assert [text for text in planned.warnings if "changed since" in text] == []
    assert planned.record.rerun_of == RecordedRun.find("first").record.id


def test_run_whose_folder_is_gone_is_refused(folder: Path) -> None:
    _recorded(_arguments("first"))
    folder.rename(folder.with_name("moved"))
    with pytest.raises(UsageError, match=r"was launched in .*code, which cannot be entered"):
        rerun_arguments("first", None)
