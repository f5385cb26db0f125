"""A launch that fails or is interrupted: it is undone, recorded and reported."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.code.bundle import Bundle
from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import LaunchError
from orchestrator.launch import start as action
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import LaunchPlan
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.store import Store
from orchestrator.run import RunRecord, RunState
from orchestrator.transports.local import LocalTransport
from orchestrator.transports.terminal import Terminal
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch_arguments import LaunchArguments
from tests.until import until

pytestmark = pytest.mark.processes


class Interrupted(DirectLauncher):
    """Raises `end` once its agents have started; `failures` are added to those that its stop reports."""

    end: BaseException
    failures: tuple[str, ...] = ()

    def start(self, plan: LaunchPlan, bundle: Bundle) -> str | None:
        super().start(plan, bundle)
        raise self.end

    def undo(self) -> list[str]:
        self.before_undo()
        return super().undo() + list(self.failures)

    def before_undo(self) -> None:
        """Called before the launch is undone; a test may replace it."""


def _arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *program: str) -> LaunchArguments:
    """The arguments of a launch on one node of this machine."""
    inventory = tmp_path / "inventory.yaml"
    node = f"{{name: n0, python: {sys.executable}}}"
    inventory.write_text(
        f"name: here\naccelerator: cpu\ndevices: 1\ntransport: local\n"
        f"defaults: {{workdir: {tmp_path}/work}}\nnodes: [{node}]\n"
    )
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return LaunchArguments("ssh", str(inventory), None, None, None, (), program)


def _launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException, *failures: str
) -> tuple[BaseException, RunRecord]:
    def launcher_for(plan: LaunchPlan, *_: object) -> DirectLauncher:
        launcher = Interrupted(plan, lambda node: LocalTransport(node.name))
        launcher.end, launcher.failures = end, failures
        return launcher

    words = _arguments(tmp_path, monkeypatch, "sleep", "1000")
    monkeypatch.setattr(action, "launcher_for", launcher_for)
    with pytest.raises((LaunchError, type(end))) as caught, action.started(plan_launch(words), pytest.fail):
        pass
    [folder] = Store(tmp_path / "home").all()
    return caught.value, folder.read()


def _agents_done(tmp_path: Path) -> bool:
    [events] = tmp_path.glob("work/runs/*/attempt-1/n0/events.jsonl")
    return "agent-finished" in events.read_text("utf-8")


def test_launch_continues_over_the_connections_that_counted_the_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a person would answer the prompts of each login twice."""
    arguments = _arguments(tmp_path, monkeypatch, "true")
    file = tmp_path / "inventory.yaml"
    file.write_text(file.read_text().replace("accelerator: cpu\ndevices: 1\n", ""))
    passed_on: list[object] = []

    def launcher_for(plan: LaunchPlan, terminal: Terminal, _: object, connected: dict[str, Endpoint]) -> DirectLauncher:
        passed_on.append(terminal)
        return DirectLauncher(plan, lambda node: pytest.fail(f"{node.name} is connected"), connected)

    monkeypatch.setattr(action, "launcher_for", launcher_for)
    planned = plan_launch(arguments)
    with action.started(planned, pytest.fail) as launched:
        assert launched.launcher.plan == replace(planned.plan, is_shared=True)
    assert passed_on == [planned.terminal]


def test_ctrl_c_stops_what_had_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error, record = _launched(tmp_path, monkeypatch, KeyboardInterrupt())
    assert "what had started was stopped" in str(error)
    assert record.state is RunState.STOPPED
    until(lambda: _agents_done(tmp_path), awaited="the agent to end")


def test_ctrl_c_stops_what_had_started_even_on_a_full_disk_and_if_the_launcher_cannot_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: RunFolder) -> None:
        raise OSError(28, "No space left on device")

    def fail(launcher: DirectLauncher) -> None:
        close(launcher)
        raise RuntimeError("can't start new thread")

    close = DirectLauncher.close
    monkeypatch.setattr(RunFolder, "request_stop", refuse)
    monkeypatch.setattr(Interrupted, "before_undo", lambda _: monkeypatch.setattr(DirectLauncher, "close", close))
    monkeypatch.setattr(DirectLauncher, "close", fail)
    error, record = _launched(tmp_path, monkeypatch, KeyboardInterrupt())
    assert "what had started was stopped" in str(error)
    assert record.state is RunState.STOPPED
    until(lambda: _agents_done(tmp_path), awaited="the agent to end")


def test_nodes_that_cannot_be_stopped_are_reported_and_the_run_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, record = _launched(tmp_path, monkeypatch, KeyboardInterrupt(), "n1: the connection was lost")
    assert "n1: the connection was lost" in str(error)
    assert "was stopped" not in str(error)
    assert isinstance(error, LaunchError)
    assert f"orch stop {record.id}" in error.hint
    assert record.state is RunState.LOST


@pytest.mark.parametrize(
    ("end", "message", "remedy"),
    [
        (OSError(28, "No space left on device", "/a/run.json"), "/a/run.json: No space left on device", "free space"),
        (RuntimeError("can't start new thread"), "can't start new thread", "ulimit -u"),
    ],
)
def test_error_of_the_system_stops_what_had_started_too_and_has_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Exception, message: str, remedy: str
) -> None:
    error, record = _launched(tmp_path, monkeypatch, end)
    assert str(error) == f"the launch failed: {message}; what had started was stopped"
    assert isinstance(error, LaunchError)
    assert remedy in error.hint
    assert (record.state, record.message) == (RunState.FAILED, f"the launch failed: {message}")
    until(lambda: _agents_done(tmp_path), awaited="the agent to end")


@pytest.mark.parametrize("error", [ValueError("no JSON"), AssertionError("no")])
def test_unexpected_exception_stops_what_had_started_and_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    raised, record = _launched(tmp_path, monkeypatch, error)
    assert raised is error
    assert (record.state, record.message) == (RunState.FAILED, f"the launch failed: {type(error).__name__}: {error}")
    until(lambda: _agents_done(tmp_path), awaited="the agent to end")


def test_record_that_cannot_be_written_any_more_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    end = LaunchError("n0 refused")
    monkeypatch.setattr(Interrupted, "before_undo", lambda _: monkeypatch.setattr(RunFolder, "change", refuse))
    raised, _ = _launched(tmp_path, monkeypatch, end)
    assert raised is end
    until(lambda: _agents_done(tmp_path), awaited="the agent to end")
