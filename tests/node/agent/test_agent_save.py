"""The agent asks its ranks to save and end, as `orch stop --save` requests, and ends those that do not."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.run.save_request import request_save
from tests.node.agent.test_agent import WAIT, sh, wait_for_output
from tests.node.agent.test_agent_ground import Ground, alive, ground
from tests.until import until

__all__ = ["ground"]

SLURM = {"requeue": "auto", "max_retries": 100, "warn_s": 5}
SAVES = "trap 'echo saved; exit 99' USR2; echo up; while :; do sleep 0.1; done"


def saving(ground: Ground) -> Any:  # the ranks in the event
    return until(
        lambda: [event for event in ground.events("stopping") if "saving_ranks" in event], awaited="the event"
    )[0]["saving_ranks"]


@pytest.mark.parametrize("slurm", [None, SLURM])
def test_ranks_that_handle_the_signal_save_and_end_and_the_run_is_stopped(
    ground: Ground, slurm: dict[str, object] | None
) -> None:
    """One rank needs longer; srun would kill it if the agent of another node ended with another code than 0."""
    script = "trap 'sleep $RANK; echo saved; exit 99' USR2; echo up; while :; do sleep 0.1; done"
    ground.job("env", "--default-signal=USR2", *sh(script), ranks=[2], slurm=slurm)
    agent = ground.start()
    wait_for_output(ground)
    wait_for_output(ground, 1)
    assert request_save(str(ground.folder()), 30)
    assert saving(ground) == [0, 1]
    assert agent.wait(timeout=20) == 0
    assert [ground.out(rank) for rank in (0, 1)] == ["up\nsaved\n"] * 2
    assert ground.finished()["state"] == "STOPPED"


def test_program_that_does_not_handle_the_signal_gets_none_and_waits_for_the_others(ground: Ground) -> None:
    script = f"if [ $RANK = 1 ]; then {WAIT}; fi; {SAVES}"
    ground.job(*sh(script), ranks=[2])
    agent = ground.start()
    wait_for_output(ground)
    wait_for_output(ground, 1)
    starts = until(
        lambda: len(ground.events("rank-started")) == 2 and ground.events("rank-started"), awaited="the starts"
    )
    [second] = [event["pid"] for event in starts if event["rank"] == 1]
    begun_s = time.monotonic()
    request_save(str(ground.folder()), 2)
    assert saving(ground) == [0]
    until(lambda: "saved" in ground.out(), awaited="the save of rank 0")
    assert alive(second)
    agent.wait(timeout=20)
    assert time.monotonic() - begun_s >= 2
    assert not alive(second)
    assert any("the time for the save is over" in event["text"] for event in ground.events("note"))
    assert ground.finished()["state"] == "STOPPED"


def test_ranks_that_save_with_those_of_another_node_are_stopped_though_the_request_is_late(ground: Ground) -> None:
    """Node 1 reads its request a second before node 0, and all ranks save and end together."""
    ground.job(*sh('until [ -e "$ORCH_RUN_DIR/ends" ]; do sleep 0.1; done; touch "$ORCH_RUN_DIR/saved"; exit 99'))
    agent = ground.start()
    ground.record()
    (ground.run_dir / "ends").touch()
    until((ground.run_dir / "saved").exists, awaited="the end of the rank")
    assert request_save(str(ground.folder()), 600)
    agent.wait(timeout=20)
    assert ground.finished()["state"] == "STOPPED"


def test_a_rank_that_fails_while_it_saves_ends_the_others(ground: Ground) -> None:
    script = "trap 'if [ $RANK = 0 ]; then exit 3; fi' USR2; echo up; while :; do sleep 0.1; done"
    ground.job(*sh(script), ranks=[2])
    agent = ground.start()
    wait_for_output(ground)
    wait_for_output(ground, 1)
    request_save(str(ground.folder()), 600)
    agent.wait(timeout=30)
    assert any("no longer waited for: rank 0" in event["text"] for event in ground.events("note"))


def test_a_second_request_to_stop_ends_the_ranks_that_save(ground: Ground) -> None:
    ground.job(*sh("trap : USR2; echo up; while :; do sleep 0.1; done"))
    agent = ground.start()
    wait_for_output(ground)
    request_save(str(ground.folder()), 600)
    assert saving(ground) == [0]
    os.kill(ground.record()["pid"], signal.SIGTERM)
    agent.wait(timeout=30)
    assert ground.finished()["state"] == "STOPPED"


def test_an_agent_of_an_older_version_takes_no_request(tmp_path: Path) -> None:
    assert not request_save(str(tmp_path), 600)
