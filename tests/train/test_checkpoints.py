"""Checkpoints of several real ranks: damaged under every strategy, written in the background, too large for the disk."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.grounds import components
from tests.grounds.damaged_strategies import COMMON_DAMAGES, damages_of
from tests.grounds.ports import free_ports
from tests.train.conftest import DEADLINE_S, REPOSITORY, StartRanks, clean_environment
from tests.until import until

pytestmark = pytest.mark.train

STRATEGIES = ("ddp", "fsdp2", "zero0", "zero1", "zero2", "zero3")


@pytest.mark.processes
@pytest.mark.slow
def test_damage_under_every_strategy_takes_all_ranks_to_the_older_checkpoint_and_dropped_steps_leave_no_trace(
    tmp_path: Path,
) -> None:
    components.module("deepspeed")
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    argv = [sys.executable, "-m", "tests.grounds.damaged_strategies", str(tmp_path), *STRATEGIES]
    ranks = []
    for number in ("0", "1"):
        with (tmp_path / f"{number}.log").open("wb") as log:
            env = {**clean_environment(), **place, "RANK": number, "LOCAL_RANK": number}
            ranks.append(subprocess.Popen(argv, env=env, cwd=REPOSITORY, stdout=log, stderr=log))
    try:
        assert [rank.wait(timeout=DEADLINE_S) for rank in ranks] == [0, 0], (tmp_path / "0.log").read_text()
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    expected = [[strategy, damage, 1, True] for strategy in STRATEGIES for damage in damages_of(strategy)]
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert [one["damaged"] for one in found] == [expected, expected]
    assert found[0]["returned"] == [[strategy, 2, True] for strategy in STRATEGIES]
    assert len(COMMON_DAMAGES) >= 7
    assert len(damages_of("fsdp2")) >= 18
    assert list(tmp_path.glob("*/step_3*")) == []
    aside = sorted(str(path.parent.parent.relative_to(tmp_path)) for path in tmp_path.glob("*/quarantine/*"))
    assert aside == sorted(f"{strategy}-{damage}".replace(" ", "-") for strategy, damage, *_ in expected)


def _numbers(out: Path) -> dict[int, list[Any]]:
    whole = (out / "metrics.jsonl").read_text().rpartition("\n")[0]
    lines = [json.loads(line) for line in whole.splitlines()]
    return {one["step"]: [one["loss"], one["lr"], one["grad_norm"]] for one in lines}


def test_save_that_fails_in_the_background_ends_all_ranks_and_costs_nothing_saved_before(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("steps=100000", "save_steps=50", "async_save=true", f"out={out}")
    ranks = start_ranks(*words)
    # it has its name before older ones are removed, which would come upon the obstacles
    until(lambda: "of which training stood still for" in ranks[0].out, deadline_s=DEADLINE_S, awaited="the first save")
    obstacles = [path for path in (out / f"step_{step}" for step in range(100, 20_000, 50)) if not path.exists()]
    for path in reversed(obstacles):
        path.touch()
    assert [rank.wait() for rank in ranks] == [1, 1]
    (message,) = ranks[0].err.splitlines()
    assert message.startswith(f"error: rank 0: cannot save {out}/step_")
    assert ranks[1].err == ""
    straight = _numbers(out)

    for path in obstacles:
        path.unlink()
    again = start_ranks(*words)
    until(lambda: len(_numbers(out)) > len(straight), deadline_s=DEADLINE_S, awaited="the steps of before, made again")
    for rank in again:
        rank.process.kill()
    assert re.search(r"resuming from .*, step \d+0$", again[0].out, re.MULTILINE)
    assert {step: _numbers(out)[step] for step in straight} == straight


def test_disk_too_small_is_said_before_the_first_step(start_ranks: StartRanks, tmp_path: Path) -> None:
    billion = 10**9
    words = (f"steps={billion}", "save_steps=1", f"save_total_limit={billion}", f"out={tmp_path / 'out'}")
    ranks = start_ranks(*words)
    assert [rank.wait() for rank in ranks] == [2, 2]
    (message,) = ranks[0].err.splitlines()
    assert message.startswith(f"error: rank 0: out={tmp_path / 'out'}: ")
    assert "GB free" in message
    assert "step=" not in ranks[0].out
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]
