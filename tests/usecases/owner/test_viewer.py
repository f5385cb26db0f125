"""The process that owns a run and the command that starts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.console import LogView
from orchestrator.errors import LaunchError, UsageError
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.run import Failure, RunRecord, RunState
from orchestrator.supervision.link import frame, messages
from orchestrator.usecases.owner.viewer import Owner, _error
from tests.grounds.cli import Orch
from tests.paths import ROOT


def _unused(text: str) -> None:
    pytest.fail(text)


@pytest.mark.processes
def test_interrupt_before_the_owner_is_ready_cancels_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    with Owner.of_run("none", follow=False) as owner:
        owner._process.send_signal(signal.SIGINT)  # as Ctrl-C while it imports
        with pytest.raises(KeyboardInterrupt):
            owner.until_launched(_unused, _unused)
    assert capfd.readouterr().err == ""


@pytest.mark.processes
def test_owner_ends_quietly_if_its_viewer_ends_before_the_request(capfd: pytest.CaptureFixture[str]) -> None:
    with Owner.of_run("none", follow=False) as owner:
        pass
    assert owner._process.wait(timeout=30) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.processes
@pytest.mark.parametrize("value", ["/users/modules", None])
def test_ranks_on_this_machine_inherit_the_users_pythonpath_and_no_blocked_signal(
    value: str | None, tmp_path: Path
) -> None:
    (tmp_path / "inventory.yaml").write_text(
        "name: here\naccelerator: cpu\ndevices: 1\ntransport: local\n"
        f"defaults: {{workdir: {tmp_path}/work}}\nnodes: [{{name: n0}}]\n"
    )
    prefix = ("env", "-u", "PYTHONPATH") if value is None else ("env", f"PYTHONPATH={value}")
    orch = Orch(tmp_path, prefix=prefix)
    done = orch("ssh-launch", "--", "sh", "-c", "echo path ${PYTHONPATH-unset}; grep SigBlk /proc/self/status")
    report_folder = "/orchestrator/node/report\n"  # comes last
    assert report_folder in done.stdout
    assert f"path {value}:" in done.stdout or (
        value is None and ":" not in done.stdout.partition("path ")[2].partition(report_folder)[0]
    )
    assert "SigBlk:\t0000000000000000\n" in done.stdout


def test_diagnosis_may_arrive_before_the_last_lines_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    record = RunRecord("t-1", "ssh", RunState.FAILED, "", {}, {}, {}, {})
    found = replace(record, failure=Failure(FailureClass.STORAGE, Retry.NEVER, is_diagnosed=True))
    near, far = socket.socketpair()
    with near, far:
        owner = _owner_of(near)
        far.sendall(frame({"kind": "diagnosed", "record": found.to_json()}))
        far.sendall(frame({"kind": "ended", "record": record.to_json()}))
        assert owner.to_end(LogView(as_json=False)) == record
        assert owner.diagnosed(pytest.fail) == found
        monkeypatch.setattr("orchestrator.usecases.owner.viewer.DIAGNOSIS_S", 0.05)
        assert _owner_of(near).diagnosed(pytest.fail) is None


def test_warnings_of_the_diagnosis_follow_the_outcome() -> None:
    record, warnings = RunRecord("t-1", "ssh", RunState.FAILED, "", {}, {}, {}, {}), list[str]()
    near, far = socket.socketpair()
    with near, far:
        owner = _owner_of(near)
        for message in (
            {"kind": "ended", "record": record.to_json()},
            {"kind": "warning", "text": "the signatures are wrong"},
            {"kind": "diagnosed", "record": record.to_json()},
        ):
            far.sendall(frame(message))
        assert owner.to_end(LogView(as_json=False)) == record
        assert owner.diagnosed(warnings.append) == record
    assert warnings == ["the signatures are wrong"]


def _owner_of(link: socket.socket) -> Owner:
    """The command's side of an owner that writes to the other end of the link."""
    owner = Owner.__new__(Owner)  # without the process
    owner._link, owner._messages = link, messages(link)
    owner._is_interrupted, owner._diagnosed = False, None
    return owner


WITHOUT_STREAMS = """
import os
from orchestrator.usecases.owner.viewer import Owner
from orchestrator.errors import RunNotFound
with Owner.of_run("none", follow=False) as owner:
    streams = [os.readlink(f"/proc/{owner._process.pid}/fd/{number}") for number in range(3)]
    try:
        owner.until_launched(print, print)
    except RunNotFound:
        with open("found", "w") as found:
            print(*streams, file=found)
"""


@pytest.mark.processes
@pytest.mark.parametrize("closed", [(0, 1), (0, 2), (0, 1, 2)])
def test_owner_of_a_command_without_standard_streams_has_all_three(closed: tuple[int, ...], tmp_path: Path) -> None:
    script = " ".join(['exec "$@"', *(f"{number}>&-" for number in closed)])
    argv = ["sh", "-c", script, "sh", sys.executable, "-c", WITHOUT_STREAMS]
    environ = {**os.environ, "ORCH_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    subprocess.run(argv, check=True, cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL, timeout=60)
    assert (tmp_path / "found").read_text("utf-8") == "/dev/null /dev/null /dev/null\n"


@pytest.mark.parametrize("kind", ["NeedsProgram", "RendezvousPortTaken", "Unreachable"])
def test_error_that_names_a_node_is_a_launch_error_here(kind: str) -> None:
    error = _error({"type": kind, "text": "n0: refused", "hint": "`ssh n0`", "exit_code": 4})
    assert type(error) is LaunchError
    assert (str(error), error.hint) == ("n0: refused", "`ssh n0`")


@pytest.mark.processes
def test_state_of_a_watched_run_is_shown_without_an_import() -> None:
    """A Ctrl-C during one that makes dataclasses ends Python by the signal, not with 130."""
    program = """
import sys
from orchestrator.usecases.owner.viewer import LiveRun
before = set(sys.modules)
LiveRun.from_json({"state": "RUNNING", "begun_s": 0.0, "training": {"step": 1}})
assert set(sys.modules) == before, set(sys.modules) - before
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_deleted_working_folder_is_named_and_no_owner_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(UsageError, match="the working folder has been deleted"):
        Owner.of_run("none", follow=False)
