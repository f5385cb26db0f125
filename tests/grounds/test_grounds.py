"""Tests of the common parts of the grounds."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.grounds import components
from tests.grounds.keeper import Keeper, descendants
from tests.until import until

_OWNER = """
import sys
from pathlib import Path
from tests.grounds.keeper import Keeper
folder = Path(sys.argv[1])
keeper = Keeper(folder)
keeper.start(["/bin/sh", "-c", "setsid sleep 1000 & exec sleep 1000"], env={}, log=folder / "log")
print("started", flush=True)
sys.stdin.read()
"""


def test_a_missing_component_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed"):
        components.program("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
        components.program("no-such-program")
    with pytest.raises(pytest.fail.Exception, match="no_such_module is not installed"):
        components.module("no_such_module")


def test_until_returns_the_first_truthy_value() -> None:
    values = iter(["", "", "there", "later"])
    assert until(lambda: next(values), awaited="a value") == "there"


def test_until_fails_naming_what_was_awaited() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"waited 0\.1 s for rain; last seen: 0"):
        until(lambda: 0, deadline_s=0.1, awaited="rain")


def test_until_polls_a_condition_that_only_waits_as_often_as_a_quick_one() -> None:
    calls, never = itertools.count(1), threading.Event()
    until(lambda: never.wait(0.1) or next(calls) == 5, deadline_s=2, awaited="five polls")


@pytest.mark.processes
def test_a_detached_grandchild_stays_below_the_keeper_and_ends_with_it(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "folder")
    (tmp_path / "folder").mkdir()
    detach = ["/bin/sh", "-c", "(setsid sleep 1000 &)"]
    keeper.start(detach, env={}, log=tmp_path / "log")
    until(lambda: list(keeper.processes().values()) == ["sleep"], awaited="the grandchild alone")
    pids = keeper.processes()
    keeper.close()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert not (tmp_path / "folder").exists()


@pytest.mark.processes
def test_killed_tests_leave_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        until(lambda: list(descendants(owner.pid).values()).count("sleep") == 2, awaited="both processes")
        pids = descendants(owner.pid)
        os.kill(owner.pid, signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), awaited="keeper and daemons to end")
    assert not folder.exists()
