"""The owner of a run is started before the command line is parsed."""

from __future__ import annotations

import code
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
from orchestrator.errors import RunNotFound
from orchestrator.usecases.owner import start as owner_process
from orchestrator.usecases.owner.start import OwnerProcess, early_owner, environment_of_orch, launches
from orchestrator.usecases.owner.viewer import Owner


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ssh-launch", True),
        ("ssh-launch -i cluster.yaml lr=1", True),
        ("ssh-launch -- program --help --dry-run", True),
        ("ssh-launch --help", False),
        ("ssh-launch -h", False),
        ("ssh-launch -i cluster.yaml --dry-run -- program", False),
        ("--help", False),
        ("--version", False),
        ("submit", False),
        ("logs ssh-launch", False),
        ("-- ssh-launch", False),
        ("", False),  # also while a shell completes a command line
    ],
)
def test_only_a_command_line_that_launches_over_ssh_starts_one(line: str, *, expected: bool) -> None:
    assert launches(line.split()) is expected


@pytest.mark.processes
def test_owner_imports_orch_and_the_standard_library_in_any_folder() -> None:
    """Packages of orch are named like modules of the standard library: code, for example."""
    program = "import code, orchestrator; print(code.__file__); print(orchestrator.__file__)"
    argv = [sys.executable, "-S", "-c", program]
    done = subprocess.run(argv, env=environment_of_orch(), cwd="/", check=True, capture_output=True, text=True)
    standard, package = done.stdout.split()
    assert standard == code.__file__
    assert package == orchestrator.__file__


@pytest.mark.processes
def test_owner_that_was_started_early_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    with early_owner(["ssh-launch"]):
        [early] = owner_process._early
        with Owner.of_run("none", follow=False) as owner:
            assert owner._process is early.process
            with pytest.raises(RunNotFound):
                owner.until_launched(pytest.fail, pytest.fail)
    assert early.process.wait(30) == 1  # after its report: it was not killed


@pytest.mark.processes
def test_owner_that_no_command_uses_is_gone_when_the_command_line_ends() -> None:
    with early_owner(["ssh-launch", "--no-such-option"]):
        [early] = owner_process._early
    assert early.process.returncode is not None
    assert early.link.fileno() == -1
    assert not owner_process._early


def test_failure_to_start_is_reported_when_the_owner_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnerProcess, "__init__", _refuse)
    with early_owner(["ssh-launch"]), pytest.raises(BlockingIOError):
        owner_process.owner_process()


def _refuse(_: OwnerProcess) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")
