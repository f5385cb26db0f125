"""`orch status`: during a launch, without an answer of the nodes, and with incomplete records."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import status
from orchestrator.cli.app import run
from orchestrator.errors import NodesError, Unreachable
from orchestrator.records.store import RunFolder
from orchestrator.run import RunRecord, RunState
from tests.cli.two_nodes import finished_run, open_gate
from tests.grounds.cli import Orch
from tests.until import until


@pytest.mark.parametrize("as_json", [False, True])
def test_last_known_state_is_shown_if_no_node_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    """As on a machine that is cut off from all nodes."""
    folder = RunFolder(tmp_path)
    folder.write(RunRecord("a-run", "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))

    def refresh(*_: object, **__: object) -> object:
        raise NodesError([Unreachable("n0", "no route to host")], 1)

    monkeypatch.setattr(status, "find_run", lambda _: folder)
    monkeypatch.setattr(status, "is_sweep", lambda _: False)
    monkeypatch.setattr("orchestrator.usecases.runs.refresh.refresh", refresh)
    assert run(["status", "a-run", *(["--json"] if as_json else [])]) == NodesError.exit_code
    expected = "" if as_json else "a-run  RUNNING when its nodes last answered; none answers now\n"
    assert capsys.readouterr().out == expected


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
    rows = [line.split() for line in orch("status").stdout.splitlines() if line.strip().startswith("n")]
    for rank, (row, cells) in enumerate(zip(rows, cells_of_file.values(), strict=True)):
        expected = f"n{rank} {rank} DONE {cells}".split()
        assert row[: len(expected)] == expected
