"""The agent under Slurm: Slurm's warning, ranks that request another attempt, and Slurm's SIGTERM to all processes of a step."""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path

import pytest

from orchestrator.node.run.memory_folder import memory_folder
from tests.node.agent.test_agent import WAIT, sh, wait_for_output
from tests.node.agent.test_agent_ground import Ground, ground
from tests.until import until

__all__ = ["ground"]

SLURM = {"requeue": "auto", "max_retries": 100, "warn_s": 5}
SAVES = "trap 'sleep 0.5; exit 99' TERM; echo up; sleep 300 & wait"


def test_warning_is_recorded_once_and_ends_no_rank_without_a_handler(ground: Ground) -> None:
    """Slurm itself warns the ranks."""
    ground.job(*sh(WAIT), slurm=SLURM)
    agent = ground.start()
    wait_for_output(ground)
    os.kill(ground.pid_of_rank(), signal.SIGUSR2)
    for pid in (ground.record()["pid"], agent.pid):
        os.kill(pid, signal.SIGUSR2)
    until(lambda: ground.events("warned"), awaited="the warning")
    os.killpg(ground.pid_of_rank(), signal.SIGKILL)
    agent.wait(timeout=10)
    assert len(ground.events("warned")) == 1
    assert "in 5 s or a little more" in ground.events("warned")[0]["text"]
    assert ground.events("rank-exited")[0]["signal"] == "SIGKILL"


def test_code_99_requests_another_attempt_and_leaves_other_ranks_time_to_save(ground: Ground) -> None:
    ground.job(*sh("if [ $RANK = 0 ]; then exit 99; fi; sleep 1; echo saved; exit 99"), ranks=[2], slurm=SLURM)
    assert ground.run() == (0, "")  # srun would kill the other nodes' ranks on any other code
    assert ground.finished()["state"] == "REQUEUE"
    assert ground.out(1) == "saved\n"
    assert not (ground.folder() / "DONE").exists()


def test_failure_after_a_restart_request_is_a_consequence(ground: Ground) -> None:
    ground.job(*sh("if [ $RANK = 0 ]; then exit 99; fi; sleep 1; exit 1"), ranks=[2], slurm=SLURM)
    assert ground.run() == (0, "")
    assert ground.finished()["state"] == "REQUEUE"


@pytest.mark.parametrize("number", [1, 93])
def test_failure_before_a_restart_request_is_a_failure(ground: Ground, number: int) -> None:
    ground.job(*sh(f"if [ $RANK = 0 ]; then exit {number}; fi; trap 'exit 99' TERM; {WAIT}"), ranks=[2], slurm=SLURM)
    assert ground.run()[0] == number
    assert ground.finished()["state"] == "FAILED"


def test_code_99_is_a_failure_without_slurm(ground: Ground) -> None:
    ground.job(*sh("exit 99"))
    assert ground.run()[0] == 1
    assert ground.finished()["exit"]["code"] == 99


def test_failure_is_reported_even_if_the_folder_in_memory_cannot_be_noted(ground: Ground) -> None:
    """Such as on a full disk, which may be why the rank failed."""
    run = f"gpt-20261120-101500-{secrets.token_hex(2)}"
    ground.job(*sh('mkdir -m 700 "$ORCH_MEMORY_DIR"; exit 3'), ranks=[1], slurm=SLURM, run_id=run)
    (ground.folder() / "memory-kept").mkdir(parents=True)  # in the way of the note
    code = ground.run()
    Path(memory_folder(run, "n0")).rmdir()
    assert code == (1, "")
    assert ground.finished()["exit"]["code"] == 3
    (message,) = [event["text"] for event in ground.events("note") if "memory" in event["text"]]
    assert message.startswith("the batch script will not remove the memory of this run: [Errno 21] Is a directory")


def test_sigterm_of_slurm_leaves_the_ranks_time_to_save(ground: Ground) -> None:
    ground.job(*sh(SAVES), slurm=SLURM, grace_s=0.1)
    agent = ground.start()
    wait_for_output(ground)
    for pid in (ground.pid_of_rank(), ground.record()["pid"], agent.pid):
        os.kill(pid, signal.SIGTERM)
    assert agent.wait(timeout=10) == 0
    assert ground.finished()["state"] == "REQUEUE"


def test_rank_that_ignores_slurms_sigterm_is_killed_when_the_time_is_over(ground: Ground) -> None:
    ground.job(*sh(f"trap '' TERM; {WAIT}"), slurm={**SLURM, "warn_s": 1})
    agent = ground.start()
    wait_for_output(ground)
    agent.terminate()
    assert agent.wait(timeout=10) == 6
    assert ground.events("rank-exited")[0]["signal"] == "SIGKILL"


def test_sigterm_before_all_ranks_have_started_is_passed_on(ground: Ground) -> None:
    """Slurm's SIGTERM reached only the processes that had started."""
    ground.job(*sh(WAIT), ranks=[2], slurm=SLURM)
    ground.folder().mkdir(mode=0o700)
    os.mkfifo(ground.folder() / "rank-1.out")  # to open it takes two
    agent = ground.start()
    until(lambda: ground.events("rank-started"), awaited="the first rank")
    agent.terminate()
    status = Path(f"/proc/{ground.record()['pid']}/status")
    until(
        lambda: int(status.read_text().partition("ShdPnd:")[2].split()[0], 16), awaited="a pending signal of the agent"
    )
    reader = os.open(ground.folder() / "rank-1.out", os.O_RDONLY | os.O_NONBLOCK)
    assert agent.wait(timeout=10) == 6
    os.close(reader)
    assert [event["signal"] for event in ground.events("rank-exited")] == ["SIGTERM", "SIGTERM"]
