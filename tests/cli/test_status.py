"""`orch status`: during a launch, without an answer of the nodes, and with incomplete records."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.cli import status
from orchestrator.cli.app import run
from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodesError, Unreachable
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord, RunState
from tests.cli.two_nodes import finished_run, open_gate
from tests.grounds.cli import Orch
from tests.until import until

OBSERVED = NodeObservation(
    "n0",
    None,
    alive=True,
    same_boot=True,
    finished=None,
    first_failure=None,
    ranks={0: "running"},
    progress={0: {"step": 93, "steps": 100, "phase": "step", "loss": 2.5, "saved": 80}},
)


@pytest.fixture
def cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The record of a run on a machine that is cut off from all nodes."""
    folder = RunFolder(tmp_path)
    folder.write(RunRecord("a-run", "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))

    def refresh(*_: object, **__: object) -> object:
        raise NodesError([Unreachable("n0", "no route to host")], 1)

    monkeypatch.setattr(status, "find_run", lambda _: folder)
    monkeypatch.setattr(status, "is_sweep", lambda _: False)
    monkeypatch.setattr("orchestrator.usecases.runs.look.refresh", refresh)
    return folder


def test_last_known_values_are_shown_with_their_age_if_no_node_answers(
    cut_off: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_off.keep_observations({"n0": (time.time() - 600, asdict(OBSERVED))}, attempt=1)
    assert run(["status", "a-run"]) == NodesError.exit_code
    out, err = capsys.readouterr()
    assert out.startswith("a-run  RUNNING  unknown: n0 does not answer: no route to host; the values are 10m0")
    assert "step        93/100, loss 2.5" in out
    assert re.search(r"n0 +0 +no answer +93/100 +step +10m0\ds ago", out)
    assert "no route to host" in err


def test_json_has_the_last_known_values_too(cut_off: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    cut_off.keep_observations({"n0": (time.time() - 600, asdict(OBSERVED))}, attempt=1)
    assert run(["status", "a-run", "--json"]) == NodesError.exit_code
    found = json.loads(capsys.readouterr().out)
    assert found["missing"] == [{"node": "n0", "reason": "no route to host"}]
    assert found["overview"]["training"]["step"] == 93
    assert found["overview"]["nodes"][0]["age_s"] == pytest.approx(600, abs=60)


def test_nothing_is_invented_for_a_run_of_which_nothing_is_known(
    cut_off: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_off.keep_observations({"n0": (time.time() - 600, asdict(OBSERVED))}, attempt=2)  # not of this attempt
    assert run(["status", "a-run"]) == NodesError.exit_code
    out = capsys.readouterr().out
    assert out.startswith("a-run  RUNNING  unknown: n0 does not answer: no route to host\n")
    assert "step " not in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--watch", "soon"], "--watch soon: not a number of seconds\n  next: orch status soon --watch"),
        (["--watch", "0"], "--watch 0: not a number of seconds from 0.5 to 86400"),
        (["--watch", "--json"], "--watch and --json exclude each other"),
    ],
)
def test_refused_options_of_a_watch(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", *words]) == 2
    assert text in capsys.readouterr().err


def test_status_and_logs_do_not_change_a_launch_in_progress(orch: Orch) -> None:
    """One agent runs, the other has not started: neither `status` nor `logs -f` reports a lost run."""
    with orch.start("ssh-launch", "--", "echo", "hi") as launch:
        until(lambda: list(orch.cwd.glob(".work/runs/*/attempt-1/n0/agent.json")), awaited="the first agent")
        assert orch.status()["state"] == "STARTING"
        with orch.start("logs", "--follow") as follower:
            assert orch.status()["state"] == "STARTING"
            open_gate(orch)
            out, _ = launch.communicate(timeout=60)
            followed, errors = follower.communicate(timeout=60)
    assert (launch.returncode, follower.returncode) == (0, 0), errors
    assert "[n1:1] hi" in out
    assert "[n1:-]" not in out  # it is done, so nothing but routine events
    assert "[n1:1] hi" in followed
    assert orch.status()["state"] == "DONE"


def test_damaged_records_are_named_and_other_runs_are_listed(orch: Orch) -> None:
    broken = finished_run(orch, "true")
    whole = finished_run(orch, "true")
    (orch.home / "runs" / broken / "run.json").write_text("{")
    listed = orch("list")
    assert whole in listed.stdout
    assert "run.json cannot be read" in listed.stderr
    (orch.home / "runs" / whole / "plan" / "plan.json").write_text("{}")
    for command in ("status", "logs", "stop"):
        assert "plan.json cannot be read" in orch(command, whole, code=2).stderr


def test_status_shows_an_incomplete_progress_file_with_the_values_that_it_has(orch: Orch) -> None:
    inventory = orch.cwd / "inventory.yaml"
    inventory.write_text(inventory.read_text().partition("nodes:")[0] + 'nodes: [{name: "n[0-3]"}]')
    cells_of_file = {
        '{"step": 5}': "5",
        '{"phase": "step", "time": 0}': "step",
        '{"step": 5, "steps": 9, "phase": "eval", "time": "noon"}': "5/9  eval",
        '{"summary": "a word"}': "",
    }
    write = 'shift "$RANK"; printf %s "$1" > "$ORCH_RUN_DIR/attempt-1/$ORCH_NODE/progress/$RANK.json"'
    orch("ssh-launch", "--", "sh", "-c", write, "sh", *cells_of_file)
    rows = [
        line.split()
        for line in orch("status").stdout.splitlines()
        if line.strip().startswith("n") and line[1].isdigit()
    ]
    for rank, (row, cells) in enumerate(zip(rows, cells_of_file.values(), strict=True)):
        expected = f"n{rank} {rank} DONE {cells}".split()
        assert row[: len(expected)] == expected
