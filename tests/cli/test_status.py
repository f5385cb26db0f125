"""`orch status`: the parts that need no node."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import status
from orchestrator.cli.app import run
from orchestrator.errors import NodesError, Unreachable
from orchestrator.records.store import RunFolder
from orchestrator.run import RunRecord, RunState


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
