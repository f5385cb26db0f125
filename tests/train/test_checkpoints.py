"""Checkpoints of several real ranks: damaged under every strategy, written asynchronously, too large for the disk."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grounds import components
from tests.grounds.damaged_strategies import COMMON_DAMAGES, damages_of
from tests.grounds.metrics import step_numbers
from tests.grounds.ports import free_ports
from tests.train.conftest import DEADLINE_S, REPOSITORY, StartRanks, clean_environment
from tests.until import until

pytestmark = pytest.mark.train

STRATEGIES = ("ddp", "fsdp2", "zero0", "zero1", "zero2", "zero3")


@pytest.mark.extended
@pytest.mark.processes
@pytest.mark.slow
def test_damaged_checkpoint_is_replaced_by_the_older_one_on_all_ranks_under_every_strategy(
    tmp_path: Path,
) -> None:
    """Also: a step that is repeated after a roll back gives the same result as the first time."""
    components.module("deepspeed")
    group_env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    argv = [sys.executable, "-m", "tests.grounds.damaged_strategies", str(tmp_path), *STRATEGIES]
    ranks = []
    for number in ("0", "1"):
        with (tmp_path / f"{number}.log").open("wb") as log:
            env = {**clean_environment(), **group_env, "RANK": number, "LOCAL_RANK": number}
            ranks.append(subprocess.Popen(argv, env=env, cwd=REPOSITORY, stdout=log, stderr=log))
    try:
        assert [rank.wait(timeout=3 * DEADLINE_S) for rank in ranks] == [0, 0], (tmp_path / "0.log").read_text()
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    expected = [[strategy, damage, 1, True] for strategy in STRATEGIES for damage in damages_of(strategy)]
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert [record["damaged"] for record in found] == [expected, expected]
    assert found[0]["returned"] == [[strategy, 2, True] for strategy in STRATEGIES]
    assert len(COMMON_DAMAGES) >= 7
    assert len(damages_of("fsdp2")) >= 18
    assert list(tmp_path.glob("*/step_3*")) == []
    quarantined = sorted(str(path.parent.parent.relative_to(tmp_path)) for path in tmp_path.glob("*/quarantine/*"))
    assert quarantined == sorted(f"{strategy}-{damage}".replace(" ", "-") for strategy, damage, *_ in expected)


@pytest.mark.extended
def test_failed_async_save_ends_all_ranks_and_costs_no_older_checkpoint(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("steps=100000", "save_steps=50", "async_save=true", f"out={out}")
    ranks = start_ranks(*words)
    # a checkpoint gets its name before older ones are removed, and the removal would meet the obstacles
    until(lambda: "of which training stood still for" in ranks[0].out, deadline_s=DEADLINE_S, awaited="the first save")
    obstacles = [path for path in (out / f"step_{step}" for step in range(100, 20_000, 50)) if not path.exists()]
    for path in reversed(obstacles):
        path.touch()
    assert [rank.wait() for rank in ranks] == [1, 1]
    (message,) = ranks[0].err.splitlines()
    assert message.startswith(f"error: rank 0: cannot save {out}/step_")
    assert ranks[1].err == ""
    first_attempt = step_numbers(out)

    for path in obstacles:
        path.unlink()
    restarted = start_ranks(*words)
    until(
        lambda: len(step_numbers(out)) > len(first_attempt),
        deadline_s=DEADLINE_S,
        awaited="the steps of the first attempt",
    )
    for rank in restarted:
        rank.process.kill()
    assert re.search(r"resuming from .*, step \d+0$", restarted[0].out, re.MULTILINE)
    assert step_numbers(out)[: len(first_attempt)] == first_attempt


def test_too_small_disk_is_reported_before_the_first_step(start_ranks: StartRanks, tmp_path: Path) -> None:
    billion = 10**9
    words = (f"steps={billion}", "save_steps=1", f"save_total_limit={billion}", f"out={tmp_path / 'out'}")
    ranks = start_ranks(*words)
    assert [rank.wait() for rank in ranks] == [2, 2]
    (message,) = ranks[0].err.splitlines()
    assert message.startswith(f"error: rank 0: out={tmp_path / 'out'}: ")
    assert "GB free" in message
    assert "step=" not in ranks[0].out
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


def test_folder_that_a_rank_does_not_see_holds_no_shards(start_ranks: StartRanks, tmp_path: Path) -> None:
    """Each rank has its own working directory."""
    out = "/proc/self/cwd/out"
    whole = start_ranks("steps=1", f"out={out}", "checkpoint=auto")
    assert [rank.wait() for rank in whole] == [0, 0]
    sharded = start_ranks("steps=2", f"out={out}", "checkpoint=sharded")
    assert [rank.wait() for rank in sharded] == [2, 2]
    (message,) = sharded[0].err.splitlines()
    assert message == (
        f"error: checkpoint=sharded: rank 1 does not see the files that rank 0 makes in {out}: name an out= on a shared disk, "
        "or use checkpoint=whole"
    )
    assert sharded[1].err == ""
    shared = tmp_path / "shared"
    assert [rank.wait() for rank in start_ranks("steps=1", f"out={shared}", "checkpoint=sharded")] == [0, 0]
    step = tmp_path / "rank-0" / "copied" / "step_1"
    shutil.copytree(shared / "step_1", step)
    resumed = start_ranks("steps=2", f"out={tmp_path / 'new'}", "resume=/proc/self/cwd/copied/step_1")
    assert [rank.wait() for rank in resumed] == [2, 2]
    (message,) = resumed[0].err.splitlines()
    assert message.startswith("error: rank 1: /proc/self/cwd/copied/step_1: No such file or directory, but rank 0 has")
    assert message.endswith("a sharded checkpoint must be in a folder that all ranks share")
    assert step.exists()
