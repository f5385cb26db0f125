"""`orch top` on a real terminal: keys, another size, a node that falls silent, and the end; a frame without a terminal."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.top import OLD_S, Live, View
from orchestrator.verdict.health import Known
from orchestrator.verdict.overview import overview
from tests.cli.two_nodes import open_gate
from tests.grounds.cli import Orch
from tests.grounds.screen import Screen
from tests.until import until
from tests.verdict.test_overview import NOW_S, node, observed, record

PROGRAM = """
import json, os, pathlib, time
from orch_progress import report
step = 0
while not os.path.exists(GATE):
    time.sleep(0.05)
    step += 1
    report(step, steps=100_000, loss=2.5, saved=step // 10 * 10 or None)
"""


@pytest.fixture
def running(orch: Orch) -> str:
    """A run of two ranks that report steps until the file `.end` appears."""
    (orch.cwd / "train.py").write_text(PROGRAM.replace("GATE", repr(str(orch.cwd / ".end"))))
    open_gate(orch)
    run = orch("ssh-launch", "--detach", "--no-check", "--", "train.py").stdout.strip()
    until(lambda: orch.status()["overview"]["training"], awaited="a step")
    return run


def test_keys_choose_and_leave_and_the_run_continues(orch: Orch, running: str) -> None:
    frame = orch("top", running, "--once").stdout
    assert frame.splitlines()[0].startswith(f"{running}  RUNNING")
    assert frame.splitlines()[1] == "healthy"
    assert {"\x1b", "q quit"}.isdisjoint(frame)
    assert json.loads(orch("top", running, "--json").stdout)["training"]["steps"] == 100_000
    assert "needs a terminal" in orch("top", running, code=2).stderr
    argv = [sys.executable, "-m", "orchestrator", "top", running]
    with Screen(argv, cwd=orch.cwd, env=orch.environ()) as screen:
        screen.resize(100, 30)
        screen.until("q quit")
        screen.type("\r")
        screen.until("rank 0")
        screen.type("?")
        screen.until("stop the run (asks)")
        screen.type("x")
        screen.until(f"stop run {running}")
        screen.type("n")
        before = screen.read().count("q quit")
        screen.resize(60, 20)
        screen.until("q quit", times=before + 1)  # everything is drawn again
        screen.type("q")
        assert screen.ended() == 0
        assert screen.text.rstrip().endswith(f"run {running} continues: `orch logs -f {running}`")
        assert screen.echoes()
    (orch.cwd / ".end").touch()
    until(lambda: orch.status()["state"] == "DONE", awaited="the end of the run")
    assert "done after" in orch("top", running, "--once").stdout  # of the record, and the nodes' files


def test_status_is_watched_until_the_run_ends(orch: Orch, running: str) -> None:
    argv = [sys.executable, "-m", "orchestrator", "status", running, "--watch", "0.5"]
    with Screen(argv, cwd=orch.cwd, env=orch.environ()) as screen:
        screen.until("healthy")
        (orch.cwd / ".end").touch()
        assert screen.ended() == 0
        assert f"{running}  DONE  done after" in screen.text.rpartition("\x1b[?1049l")[2]


class Recorded:
    """A screen that keeps the frames; keys are pressed by tests."""

    size, is_blank = (80, 24), False

    def __init__(self) -> None:
        self.frames: list[list[str]] = []

    def draw(self, lines: list[str]) -> None:
        self.frames.append(lines)


def test_look_that_takes_long_stops_no_key_and_its_age_is_shown() -> None:
    """As long as a node does not answer, which may take seconds in each look."""
    begun, answer = threading.Event(), threading.Event()

    def look(*, may_prompt: bool) -> object:
        assert not may_prompt
        begun.set()
        answer.wait(60)
        return first

    first: Any = SimpleNamespace(
        overview=overview(Known(record(), NOW_S, observed=observed(node(), node("n1", (2, 3)))))
    )
    looks: Any = SimpleNamespace(look=look)
    screen: Any = Recorded()
    live = Live(looks, first)
    view = View(live, screen, "a-run")
    live.refresh()
    assert begun.wait(60)
    view.draw()
    view.draw()
    assert len(screen.frames) == 1  # nothing has changed
    view.press("down")
    view.draw()
    assert [frame[-1] for frame in screen.frames] == [screen.frames[0][-1]] * 2
    assert screen.frames[0] != screen.frames[1]
    live.at_s = time.monotonic() - OLD_S - 54
    view.draw()
    assert screen.frames[-1][-1] == "the nodes were last queried 1m00s ago"
    answer.set()
    until(lambda: live.at_s > time.monotonic() - OLD_S, awaited="the answer")
    view.draw()
    assert screen.frames[-1] == screen.frames[1]
