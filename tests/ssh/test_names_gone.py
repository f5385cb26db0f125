"""Runs of nodes whose names no longer resolve: the record, the supervisor's connections, and one line with nodes and reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm
from tests.until import until

COUNT = 'i=0; until [ -e "$ORCH_RUN_DIR/enough" ]; do i=$((i+1)); echo "line $i"; sleep 0.05; done'
NOT_RESOLVED = "n[0-1]: name not resolved (2 of 2)"


@pytest.fixture
def config(farm: Farm, tmp_path: Path) -> Path:
    return farm.write_ssh_config(tmp_path / "ssh_config")


@pytest.fixture
def orch(farm: Farm, tmp_path: Path, config: Path) -> Orch:
    """orch beside an inventory of two nodes, which are names of the ssh configuration."""
    farm.inventory(tmp_path, aliases=True, ssh={"config": str(config)})
    return Orch(tmp_path)


def _remove_names(config: Path) -> None:
    config.write_text(re.sub(r"127\.0\.0\.1([01])$", r"gpu-\1.gone.invalid", config.read_text(), flags=re.MULTILINE))


def test_logs_of_a_failed_run_are_what_its_record_has(orch: Orch, config: Path) -> None:
    orch("ssh-launch", "--", "sh", "-c", "echo 'out of memory' >&2; exit 7", code=1)
    _remove_names(config)
    done = orch("logs", code=4)
    assert re.search(r"^\[n[01]:[01]\] out of memory$", done.stdout, re.MULTILINE), done.stdout
    assert NOT_RESOLVED in done.stderr
    assert re.search(r"run \S+ is FAILED: rank [01] on n[01] exited 7", done.stderr)
    assert "these lines are in its record" in done.stderr
    assert "Traceback" not in done.stderr
    lines = [json.loads(line) for line in orch("logs", "--json", code=4).stdout.splitlines()]
    assert [line["text"] for line in lines] == ["out of memory"]
    shown = orch("diagnose", code=4)
    assert NOT_RESOLVED in shown.stderr
    assert "is FAILED: " in shown.stderr
    status = orch("status", code=1)
    assert NOT_RESOLVED in status.stderr
    assert "exited 7" in status.stdout


def test_logs_of_a_live_run_come_over_the_connections_of_its_supervisor(orch: Orch, config: Path) -> None:
    run = orch("ssh-launch", "--detach", "--", "sh", "-c", COUNT).stdout.strip()
    until(lambda: all("line 9" in file.read_text() for file in _outputs(orch, run)), awaited="output")
    _remove_names(config)
    done = orch("logs", run)
    assert {"[n0:0] line 1", "[n1:1] line 1", "[n0:0] line 9", "[n1:1] line 9"} <= set(done.stdout.splitlines())
    assert f"warning: {NOT_RESOLVED}; the run's supervisor has read these lines, the last 1000 at most" in done.stderr
    done = orch("logs", run, "--node", "n1", "--tail", "2")
    assert [line.partition("] ")[0] for line in done.stdout.splitlines()] == ["[n1:1", "[n1:1"]
    assert "RUNNING" in orch("status", run).stdout
    orch.kill_supervisor(run)
    done = orch("logs", run, code=4)
    assert NOT_RESOLVED in done.stderr
    assert f"run {run} is RUNNING" in done.stderr
    for folder in orch.node_folders(run):
        (folder.parents[1] / "enough").touch()


def _outputs(orch: Orch, run: str) -> list[Path]:
    return [file for folder in orch.node_folders(run) for file in folder.glob("rank-*.out")] or [Path("/dev/null")]
