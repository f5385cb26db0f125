"""The time for which ranks wait for a CPU, from recorded samples of the kernel, and from a real one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from orchestrator.node.agent.cpu_waits import LATE_S, CpuWaits, run_delay_s
from tests.until import until

# /proc/PID/schedstat of Linux 6.1: ns on a CPU, ns runnable without one, and the number of time slices
RECORDED = ("15493867190 2412937718 8127", "15998201337 2907611340 8391", "16001034112 2907702151 8402")


def _record(proc: Path, pid: int, text: str) -> None:
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    (proc / str(pid) / "schedstat").write_text(f"{text}\n")


def test_longest_wait_of_a_rank_in_each_interval_counts(tmp_path: Path) -> None:
    waits = CpuWaits(10.0, str(tmp_path))
    for second, text in enumerate(RECORDED, start=11):
        _record(tmp_path, 100, text)
        _record(tmp_path, 101, RECORDED[0])
        waits.sample({0: 100, 1: 101, 2: 102}, float(second))
    assert waits.total_s == pytest.approx(0.494764, abs=1e-6)
    assert [waits.of_rank(rank) for rank in range(3)] == pytest.approx([0.494764, 0.0, 0.0], abs=1e-6)
    waits.reset()
    assert (waits.total_s, waits.of_rank(0)) == (0.0, 0.0)


def test_a_wait_is_no_longer_than_the_interval_nor_negative_if_the_process_changes(tmp_path: Path) -> None:
    waits = CpuWaits(0.0, str(tmp_path))
    for now_s, text in ((1.0, "0 900000000000 1"), (1.5, "0 990000000000 1"), (2.0, "0 5 1")):
        _record(tmp_path, 100, text)
        waits.sample({0: 100}, now_s)
    assert waits.total_s == 0.5


def test_time_for_which_the_agent_did_not_run(tmp_path: Path) -> None:
    waits = CpuWaits(0.0, str(tmp_path))
    waits.sample({}, LATE_S)
    assert waits.total_s == 0.0
    waits.sample({}, LATE_S + 30.0)
    assert waits.total_s == 30.0 - LATE_S


@pytest.mark.processes
def test_the_kernel_counts_the_wait_of_a_process_that_shares_its_cpu() -> None:
    pids = [_spinning(min(os.sched_getaffinity(0))) for _ in range(2)]
    try:
        until(lambda: (run_delay_s(pids[0]) or 0.0) > 0.05, awaited="a wait of 50 ms")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert run_delay_s(pids[0]) is None


def _spinning(cpu: int) -> int:
    """The pid of a process that computes for ever on this CPU."""
    pid = os.fork()
    if pid:
        return pid
    os.sched_setaffinity(0, {cpu})
    while True:
        pass
