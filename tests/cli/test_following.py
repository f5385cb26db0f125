"""A run that is watched: its state on a real terminal, and plain lines in a pipe."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from orchestrator.logs.lines import LogLines
from orchestrator.usecases.launch.watch import watched_lines
from orchestrator.usecases.reports.log_reader import LogReader
from tests.cli.two_nodes import open_gate
from tests.grounds.cli import Orch
from tests.grounds.screen import Screen

if TYPE_CHECKING:
    from orchestrator.launchers.base import Launcher
    from orchestrator.plan.plan import LaunchPlan
    from orchestrator.usecases.reports.log_reader import Viewer

PROGRAM = """
import os, sys, time
from orch_progress import report
rank = int(os.environ["RANK"])
for step in range(1, 5):
    report(step, steps=4, loss=4.0 / step)
    print(f"step={step} loss={4.0 / step:.4f}" + (" lr=1" if rank == 0 else ""), flush=True)
    sys.stderr.write(f"\\r{step}/4 of a bar")
    sys.stderr.flush()
    while step == 3 and rank == 0 and not os.path.exists(GATE):
        time.sleep(0.02)
        report(step, steps=4, loss=4.0 / step)
print("ready")
"""


def test_state_is_rewritten_on_a_terminal_and_a_pipe_gets_plain_lines(orch: Orch) -> None:
    gate = orch.cwd / ".seen"
    (orch.cwd / "train.py").write_text(PROGRAM.replace("GATE", repr(str(gate))))
    open_gate(orch)
    with Screen(orch.argv(("ssh-launch", "--no-check", "--", "train.py")), cwd=orch.cwd, env=orch.environ()) as screen:
        screen.until("step 3/4 · loss 1.33")
        gate.touch()
        assert screen.ended() == 0
    draws = re.findall(r"\r\x1b\[K(RUNNING [^\r]*)", screen.text)
    assert all(draw.endswith("n0,n1") for draw in draws)
    # without what was erased
    left = re.sub(r"[^\n]*\r\x1b\[K", "", screen.text.replace("\r\n", "\n"))
    assert "\x1b" not in left, "NO_COLOR is set"
    assert "RUNNING" not in left
    assert "[n0:0] step=2 loss=2.0000 lr=1\n" in left
    assert "[n1:1] step=" not in left
    assert "[n1:1] ready\n" in left
    assert "loss        1.33 " in left or "loss        4 " in left
    assert "next        orch stats " in left

    piped = orch("ssh-launch", "--no-check", "--all-ranks", "--timestamps", "--", "train.py")
    assert {"\x1b", "\r"}.isdisjoint(piped.stdout + piped.stderr)
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[n1:1\] step=1 loss=4.0000$", piped.stdout, re.MULTILINE)
    assert "step=1 loss=4.0000\n" not in orch("ssh-launch", "--no-check", "--", "train.py").stdout
    assert "--timestamps and --json exclude each other" in orch("logs", "--timestamps", "--json", code=2).stderr


def test_equal_failures_of_many_ranks_are_shown_once() -> None:
    def kept(*events: str, all_ranks: bool = False) -> tuple[list[str], list[tuple[str, str]]]:
        launcher = SimpleNamespace(attempt_folders=lambda *_: [])
        plan = SimpleNamespace(ssh={"fanout": 1})
        shown: list[str] = []
        viewer = SimpleNamespace(write=lambda lines: shown.extend(line.text for line in lines))
        lines = watched_lines(quiet=False, all_ranks=all_ranks)
        reader = LogReader(cast("Launcher", launcher), cast("LaunchPlan", plan), cast("Viewer", viewer), lines)
        reader._write(LogLines(0.0, "n0", None, "event", text) for text in events)
        return shown, reader.repeated_failures

    first, equal = (
        "rank 0 (pid 7) exited with code 1: OSError: x",
        "rank 1 (pid 8) exited with code 1: OSError: x, after the stop",
    )
    unlike, killed = "rank 2 (pid 9) exited with code 2: y", "rank 3 (pid 10) was killed by SIGKILL"
    assert kept(first, equal, unlike, killed, killed) == ([first, unlike, killed, killed], [("n0", "1")])
    assert kept(first, equal, all_ranks=True) == ([first, equal], [])
