"""Removal of garbage by a real endpoint, in folders as agents leave them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.endpoint.client import Endpoint
from orchestrator.node.endpoint import strays
from orchestrator.node.endpoint.garbage import Clearing, Size
from orchestrator.node.protocol.runs import GarbageBody
from orchestrator.node.system.machine import boot_id, live_fields
from orchestrator.transports.local import LocalTransport
from tests.grounds.components import unavailable
from tests.node.agent.test_agent_ground import PYTHONS
from tests.until import until

DAY_S = 86400.0
DIGEST = "0123456789abcdef" * 2
OLD, SECOND = "gpt-20261101-101500-ab12", "gpt-20261102-101500-cd34"
LIVING = "gpt-20261103-101500-ef56"  # has a real process, which is visible to tests that run at the same time


@pytest.fixture(params=PYTHONS)
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    with Endpoint.connect(LocalTransport("n0"), request.param) as endpoint:
        yield endpoint


class Workdir:
    """A working folder with runs of any age in it."""

    def __init__(self, path: Path, endpoint: Endpoint) -> None:
        self.path, self._endpoint = path, endpoint
        endpoint.prepare(str(path), DIGEST)

    def run(self, name: str = OLD, *, agent: dict[str, Any] | None = None, ended: bool = True) -> Path:
        """A run of one node, whose agent is dead by default, and that refers to the bundle."""
        node = self.path / "runs" / name / "attempt-1" / "n0"
        node.mkdir(parents=True, mode=0o700)
        record = {"pid": 1, "start_time": 1, "pgid": 1, "boot_id": boot_id(), "hostname": "elsewhere", **(agent or {})}
        (node / "agent.json").write_text(json.dumps(record))
        event = {"event": "agent-finished", "state": "DONE", "time": 0.0, "exit": None, "text": ""}
        (node / "events.jsonl").write_text(json.dumps(event) + "\n" if ended else "")
        (node / "rank-0.out").write_bytes(b"x" * 1000)
        bundle = {"bundle_dir": str(self.path / "bundles" / DIGEST)}
        (node.parent / "job.json").write_text(json.dumps(bundle))
        return node.parent.parent

    def bundle(self, name: str = DIGEST) -> Path:
        folder = self.path / "bundles" / name
        (folder / "orchestrator").mkdir(parents=True, mode=0o700)
        (folder / "orchestrator" / "x.py").write_text("pass\n")
        return folder

    def clear(
        self,
        *,
        older_than_s: float = 7 * DAY_S,
        results: bool = False,
        dry_run: bool = False,
        age_s: float = 8 * DAY_S,
    ) -> dict[str, GarbageBody]:
        """Set the age of all files and clear the working folder; return the entries by name."""
        then = time.time() - age_s
        for path in [*self.path.rglob("*"), self.path / "runs" / OLD]:
            if path.is_symlink() or path.exists():
                os.utime(path, (then, then), follow_symlinks=False)
        limits = {"older_than_s": older_than_s, "results": results, "dry_run": dry_run}
        return {entry["name"]: entry for entry in self._endpoint.clear(str(self.path), **limits)}  # type: ignore[arg-type]


@pytest.fixture
def workdir(tmp_path: Path, endpoint: Endpoint) -> Workdir:
    return Workdir(tmp_path / "work", endpoint)


def test_old_run_and_its_bundle_are_removed_and_their_sizes_reported(workdir: Workdir) -> None:
    run, bundle = workdir.run(), workdir.bundle()
    found = workdir.clear()
    assert {name: entry["action"] for name, entry in found.items()} == {OLD: "remove", DIGEST: "remove"}
    assert found[OLD]["bytes"] > 1000
    assert 8 * DAY_S <= found[OLD]["age_s"] < 8 * DAY_S + 600
    assert not run.exists()
    assert not bundle.exists()
    assert list((workdir.path / "runs").iterdir()) == []


def test_a_run_is_as_old_as_the_newest_thing_in_it(workdir: Workdir) -> None:
    run = workdir.run()
    assert workdir.clear(age_s=6 * DAY_S)[OLD]["action"] == "young"
    assert run.exists()


def test_dry_run_reports_the_same_and_removes_nothing(workdir: Workdir) -> None:
    run, bundle = workdir.run(), workdir.bundle()
    assert {entry["action"] for entry in workdir.clear(dry_run=True).values()} == {"remove"}
    assert run.exists()
    assert bundle.exists()


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/step_20/state.pt",
        "checkpoints/latest",
        "attempt-1/n0/out/step_20/manifest.json",
        "code/outputs/pytorch_model.bin",
        "code/work_dirs/exp/20261101_101500/vis_data/scalars.json",
        "code/results.csv",
        "stats.json",
        "shared/features.npz",
    ],
)
def test_run_with_results_is_kept_unless_their_removal_is_requested(workdir: Workdir, name: str) -> None:
    run = workdir.run()
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_bytes(b"x" * 500)
    kept = workdir.clear()[OLD]
    assert (kept["action"], kept["why"], kept["result_bytes"]) == ("keep", "holds results", 500)
    assert (run / name).exists()
    assert workdir.clear(results=True)[OLD]["action"] == "remove"
    assert not run.exists()


@pytest.mark.parametrize("code", ["code", "attempt-1/n0/code"])
def test_code_that_was_sent_is_no_result_unless_it_has_changed(workdir: Workdir, code: str) -> None:
    run, sent = workdir.run(), workdir.bundle() / "code"
    (sent / "checkpoint-1").mkdir(parents=True)
    for name in ("weights.pt", "checkpoint-1/config.json"):
        (sent / name).write_text("version https://git-lfs.github.com/spec/v1")
    shutil.copytree(sent, run / code)
    assert workdir.clear(dry_run=True)[OLD]["action"] == "remove"
    for name in ("weights.pt", "checkpoint-1/config.json"):  # of the same size, as a training overwrites its weights
        (run / code / name).write_text((sent / name).read_text().upper())
        assert Size(str(run), [str(sent.parent)]).results
        shutil.copy2(sent / name, run / code / name)
    assert not Size(str(run), [str(sent.parent)]).results
    (run / code / "checkpoint-1" / "state.json").touch()
    assert Size(str(run), [str(sent.parent)]).results


def test_record_of_a_run_whose_nodes_are_all_gone_is_removed_in_any_state(tmp_path: Path) -> None:
    clearing = Clearing(0.0, results=False, dry_run=False)
    for name in (OLD, SECOND):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text('{"state": "LOST"}')
    (tmp_path / OLD / "checkpoints").mkdir()  # records and runs may be in one folder
    (tmp_path / OLD / "checkpoints" / "state.pt").touch()
    kept = clearing.runs(str(tmp_path), {OLD: ""}, {OLD})
    assert [(entry["action"], entry["why"]) for entry in kept] == [("keep", "holds results")]
    (tmp_path / OLD / "checkpoints" / "state.pt").unlink()
    entries = clearing.runs(str(tmp_path), {OLD: "", SECOND: ""}, {OLD})
    assert [(entry["action"], entry["why"]) for entry in entries] == [("remove", ""), ("keep", "its record is LOST")]


def test_run_of_a_living_agent_stays(workdir: Workdir) -> None:
    fields = live_fields(os.getpid())
    assert fields is not None
    run = workdir.run(agent={"pid": os.getpid(), "start_time": int(fields[19])}, ended=False)
    kept = workdir.clear()[OLD]
    assert (kept["action"], kept["why"]) == ("keep", "its agent of n0 is alive")
    assert run.exists()


def test_run_with_a_living_process_stays_even_if_its_agent_is_dead(workdir: Workdir) -> None:
    run = workdir.run(LIVING)
    variables = {"ORCH_RUN_ID": LIVING, "ORCH_ATTEMPT": "1", "ORCH_NODE": "n0", "ORCH_RUN_DIR": str(run)}
    with subprocess.Popen(["sleep", "1000"], env=variables) as process:
        environ = Path(f"/proc/{process.pid}/environ")
        until(environ.read_bytes, awaited="the environment, which exec sets after Popen has returned")
        kept = workdir.clear()[LIVING]
        process.kill()
    assert (kept["action"], kept["why"]) == ("keep", "its processes are alive")


@pytest.mark.parametrize(
    ("hostname", "ended", "action"),
    [("elsewhere", True, "remove"), ("elsewhere", False, "keep"), (os.uname().nodename, False, "remove")],
)
def test_agent_of_another_boot_has_ended_by_its_last_event_or_a_restart_of_this_machine(
    workdir: Workdir, hostname: str, ended: bool, action: str
) -> None:
    workdir.run(agent={"boot_id": "another", "hostname": hostname}, ended=ended)
    found = workdir.clear()[OLD]
    assert found["action"] == action
    assert action == "remove" or "elsewhere" in found["why"]


def test_run_that_may_wait_in_slurms_queue_stays(workdir: Workdir) -> None:
    run = workdir.run()
    shutil.rmtree(run / "attempt-1" / "n0")
    (run / "attempt-1" / "submit.sbatch").touch()
    assert "queue" in workdir.clear()[OLD]["why"]
    (run / "attempt-1" / "submit.sbatch").unlink()
    assert workdir.clear()[OLD]["action"] == "remove"


def test_run_in_which_no_agent_has_started_is_left_for_an_hour_at_least(workdir: Workdir) -> None:
    run = workdir.run()
    shutil.rmtree(run / "attempt-1" / "n0")
    assert workdir.clear(older_than_s=30, age_s=60)[OLD]["why"] == "no agent has started in it yet"


@pytest.mark.parametrize(
    ("record", "action"),
    [
        ('{"state": "DONE"}', "remove"),
        ('{"state": "RUNNING"}', "keep"),
        ('{"state": "LOST"}', "keep"),
        ("torn", "keep"),
    ],
)
def test_run_folder_with_a_record_is_kept_or_removed_by_the_record(workdir: Workdir, record: str, action: str) -> None:
    (workdir.run() / "run.json").write_text(record)
    assert workdir.clear()[OLD]["action"] == action


def test_bundle_is_kept_while_a_run_needs_it(workdir: Workdir) -> None:
    bundle, kept = workdir.bundle(), workdir.run(SECOND)
    workdir.run()
    (kept / "checkpoints").mkdir()
    (kept / "checkpoints" / "latest").touch()
    found = workdir.clear()
    assert (found[OLD]["action"], found[SECOND]["action"], found[DIGEST]["action"]) == ("remove", "keep", "keep")
    (kept / "attempt-1" / "job.json").write_text("torn")
    assert "cannot be read" in workdir.clear()[DIGEST]["why"]
    assert bundle.exists()


def test_bundle_that_a_launch_uses_gets_the_current_time(workdir: Workdir, endpoint: Endpoint) -> None:
    bundle = workdir.bundle()
    os.utime(bundle, (0, 0))
    assert endpoint.prepare(str(workdir.path), DIGEST)
    assert time.time() - bundle.stat().st_mtime < 60


def test_remains_of_an_unfinished_push_or_removal_are_removed(workdir: Workdir) -> None:
    workdir.bundle(".new-k2j3h4")
    workdir.bundle(f".removing-{DIGEST}")
    assert workdir.clear()[".new-k2j3h4"]["action"] == "remove"
    assert list((workdir.path / "bundles").iterdir()) == []


def test_no_symbolic_link_is_followed(workdir: Workdir, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    (treasure / "attempt-1").mkdir(parents=True)
    (treasure / "file").touch()
    run = workdir.run()
    (run / "link").symlink_to(treasure)
    (workdir.path / "runs" / SECOND).symlink_to(treasure)
    (workdir.path / "bundles" / DIGEST).symlink_to(treasure)
    assert set(workdir.clear()) == {OLD}
    assert not run.exists()
    assert (treasure / "file").exists()


def test_linked_folder_of_runs_is_not_searched(workdir: Workdir, tmp_path: Path) -> None:
    run = workdir.run()
    (workdir.path / "runs").rename(tmp_path / "elsewhere")
    (workdir.path / "runs").symlink_to(tmp_path / "elsewhere")
    assert workdir.clear() == {}
    assert (tmp_path / "elsewhere" / run.name).exists()


@pytest.mark.parametrize("name", ["notes", "gpt-20261101-101500", f"{OLD}.bak", f"my {OLD}"])
def test_folder_of_another_name_is_left_alone(workdir: Workdir, name: str) -> None:
    run = workdir.run(name)
    workdir.bundle("venv")
    assert workdir.clear() == {}
    assert run.exists()


def test_another_users_folder_is_left_alone(workdir: Workdir) -> None:
    if os.geteuid() != 0:
        unavailable("only root can give a folder away")
    run = workdir.run()
    os.chown(run, 12345, 12345)
    assert workdir.clear() == {}
    assert run.exists()


def test_missing_working_folder_has_nothing_to_clear(endpoint: Endpoint, tmp_path: Path) -> None:
    # an age that states in the memory of the machine, which other tests keep there meanwhile, do not reach
    assert endpoint.clear(str(tmp_path / "no"), older_than_s=DAY_S, results=True, dry_run=False) == []
    assert not (tmp_path / "no").exists()


def test_other_users_processes_on_cards_are_listed_from_the_vendors_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        unavailable("only root can start a process as another user")
    with subprocess.Popen(["sleep", "1000"], user=12345, group=12345, extra_groups=[]) as stranger:
        _nvidia_smi(tmp_path, monkeypatch, f"echo {stranger.pid}; echo {os.getpid()}")
        users, tool_error = strays.card_users()
        stranger.kill()
    assert (users, tool_error) == ([{"pid": stranger.pid, "uid": 12345, "command": "sleep", "card": "nvidia"}], "")


@pytest.mark.parametrize(("script", "expected"), [("exec sleep 1000", "no answer"), ("echo broken; exit 9", "broken")])
def test_error_of_a_vendors_tool_that_hangs_or_fails_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    _nvidia_smi(tmp_path, monkeypatch, script)
    monkeypatch.setattr(strays, "TOOL_WAIT_S", 0.5)
    users, tool_error = strays.card_users()
    assert users == []
    assert expected in tool_error


def _nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
