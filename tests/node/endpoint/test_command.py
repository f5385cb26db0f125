"""Commands that run on a node for the controller: in the environment of a login, bounded, and once if required."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.replies import CommandResult
from orchestrator.errors import NodeError
from orchestrator.transports.local import LocalTransport
from tests.until import until


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def endpoint(home: Path) -> Iterator[Endpoint]:  # it starts in that home
    with Endpoint.connect(LocalTransport("login"), sys.executable) as endpoint:
        yield endpoint


def _connected() -> Endpoint:
    return Endpoint.connect(LocalTransport("login"), sys.executable)


def test_arguments_arrive_unchanged_and_the_result_is_returned(endpoint: Endpoint) -> None:
    argv = ["sh", "-c", 'printf "%s|" "$@"; echo oops >&2; exit 3', "sh", "a b", "$(id)", "it's", ""]
    assert endpoint.command(argv, timeout_s=10) == CommandResult(3, "a b|$(id)|it's||", "oops\n")


def test_path_is_taken_from_a_profile_that_also_prints(endpoint: Endpoint, home: Path) -> None:
    (home / "tools").mkdir()
    (home / "tools" / "site-tool").write_text("#!/bin/sh\necho from the tools, $SITE\n")
    (home / "tools" / "site-tool").chmod(0o755)
    (home / ".bash_profile").write_text("echo Welcome; echo oops >&2\nexport PATH=$PATH:~/tools SITE='two\nlines'\n")
    assert endpoint.command(["site-tool"], timeout_s=10) == CommandResult(0, "from the tools, two lines\n", "")


def test_profile_that_ends_its_shell_changes_nothing(endpoint: Endpoint, home: Path) -> None:
    (home / ".bash_profile").write_text("exit 1\n")
    assert endpoint.command(["echo", "hi"], timeout_s=10) == CommandResult(0, "hi\n", "")


def test_missing_program_has_exit_code_127(endpoint: Endpoint) -> None:
    assert endpoint.command(["no-such-sbatch"], timeout_s=10).code == 127


def test_command_that_takes_too_long_is_killed_with_its_descendants(endpoint: Endpoint, tmp_path: Path) -> None:
    answer = endpoint.command(["sh", "-c", f"echo said; sleep 1000 & echo $! >{tmp_path}/pid; wait"], timeout_s=1)
    assert (answer.code, answer.out) == (124, "said\n")
    assert "no answer in 1 s" in answer.err
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists(), awaited="the end of the descendant")


def test_command_that_leaves_a_child_with_its_output_is_over_with_itself(endpoint: Endpoint) -> None:
    assert endpoint.command(["sh", "-c", "sleep 20 & echo done"], timeout_s=15) == CommandResult(0, "done\n", "")


def test_endless_output_is_cut_and_does_not_hold_the_command_up(endpoint: Endpoint) -> None:
    answer = endpoint.command([sys.executable, "-c", "print('x' * (20 << 20))"], timeout_s=30)
    assert (answer.code, len(answer.out)) == (0, 4 << 20)


@pytest.mark.processes
@pytest.mark.usefixtures("home")
def test_command_has_the_users_umask() -> None:
    before = os.umask(0o027)
    try:
        with _connected() as fresh:
            assert fresh.command(["sh", "-c", "umask"], timeout_s=10).out.strip().endswith("027")
    finally:
        os.umask(before)


def _once(endpoint: Endpoint, home: Path, *, begin: bool = True, timeout_s: float = 10.0) -> CommandResult:
    script = 'echo ran >>runs; while ! [ -e go ]; do sleep 0.02; done; echo "$(wc -l <runs)"'
    return endpoint.command_once(["sh", "-c", script], f"{home}/run/answer.json", timeout_s=timeout_s, begin=begin)


@pytest.fixture
def run(home: Path) -> Path:
    (home / "run").mkdir(mode=0o700)
    return home / "run"


def test_second_request_during_a_command_gets_the_result_of_the_first(
    endpoint: Endpoint, home: Path, run: Path
) -> None:
    first: list[CommandResult] = []
    thread = threading.Thread(target=lambda: first.append(_once(endpoint, home)))
    thread.start()
    until((run / "runs").exists, awaited="the first command to begin")
    with _connected() as second:
        (run / "go").touch()
        assert _once(second, home) == CommandResult(0, "1\n", "")
        assert _once(second, home) == CommandResult(0, "1\n", "")
    thread.join()
    assert first == [CommandResult(0, "1\n", "")]


def test_withdrawn_command_never_begins(endpoint: Endpoint, home: Path, run: Path) -> None:
    assert _once(endpoint, home, begin=False).code == 125
    assert _once(endpoint, home).code == 125
    assert not (run / "runs").exists()


def test_withdrawing_an_unprepared_command_creates_no_folder(endpoint: Endpoint, home: Path) -> None:
    assert _once(endpoint, home, begin=False).code == 125
    assert not (home / "run").exists()


def test_command_that_began_without_a_result_is_not_repeated(endpoint: Endpoint, home: Path, run: Path) -> None:
    """For example, its machine was switched off while it ran."""
    (run / "answer.json").touch()
    assert _once(endpoint, home, timeout_s=0.5).code == 124
    assert not (run / "runs").exists()


def test_result_file_in_a_linked_folder_is_refused(endpoint: Endpoint, home: Path, run: Path) -> None:
    (home / "real").mkdir()
    run.rmdir()
    run.symlink_to(home / "real")
    with pytest.raises(NodeError, match="symbolic link"):
        _once(endpoint, home)
