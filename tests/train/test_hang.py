"""A rank that hangs, and the stacks of the ranks that wait for it."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import time
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.train.conftest import DEADLINE_S, TINY
from tests.until import until

pytestmark = [pytest.mark.train, pytest.mark.processes]

HERE = """
name: here
accelerator: cpu
devices: 1
transport: local
env: {OMP_NUM_THREADS: 1}
defaults: {workdir: WORKDIR}
nodes: [{name: "n[0-1]"}]
"""


def _step(progress: Path) -> int:
    return int(json.loads(progress.read_text())["step"]) if progress.exists() else 0


@pytest.mark.slow
def test_stopped_rank_ends_the_attempt_soon_and_is_named_with_the_stacks_of_the_waiting_ranks(tmp_path: Path) -> None:
    """ddp_timeout, the limit of the first step and of a save, is half an hour."""
    (tmp_path / "inventory.yaml").write_text(HERE.replace("WORKDIR", str(tmp_path / ".work")))
    orch = Orch(tmp_path)
    words = [word for word in TINY if not word.startswith("ddp_timeout")]
    run = orch("ssh-launch", "--detach", *words, "steps=1000000", "save_steps=1000000", "hang_timeout=8").stdout.strip()
    waiting, stopped = (orch.node_folder(run, node) for node in ("n0", "n1"))
    until(lambda: _step(stopped / "progress/1.json") > 2, deadline_s=DEADLINE_S, awaited="the third step")
    assert re.search(r"^ranks +ranks? [01]", orch("diagnose", run).stdout, re.MULTILINE)
    os.kill(orch.rank_pid(run, "n1", 1), signal.SIGSTOP)
    began = time.monotonic()
    until(lambda: orch.recorded(run) not in ("STARTING", "RUNNING"), deadline_s=DEADLINE_S, awaited="the end")
    assert time.monotonic() - began < 60
    result = orch.status(run)
    stacks = waiting / "stacks/0.txt"
    assert stat.S_IMODE(stacks.stat().st_mode) == 0o600
    assert 'trainer/runtime/group.py", line ' in stacks.read_text() or "trainer/parallel/" in stacks.read_text()
    assert (stopped / "stacks/1.txt").read_text() == ""
    assert (result["exit"]["kind"], result["exit"]["rank"], result["exit"]["node"]) == ("hang", 0, "n0")
    assert "rank 1 on n1" in result["exit"]["error"]
    assert f"stacks: {waiting.parent}/n0/stacks" in orch("status", run, code=1).stdout
    assert list((waiting / "channel").iterdir()) == []
