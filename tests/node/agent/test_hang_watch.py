"""Ranks that make no progress: the limits by what they have reported, and the report with their positions."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from orchestrator.node.agent import hang_watch
from orchestrator.node.agent.hang_watch import LATE_S, STARVED_SHARE, CpuWaits, HangWatch, run_delay_s
from orchestrator.node.agent.phase_limits import OTHERWISE_S, SHORTEST_S, PhaseLimits
from orchestrator.node.endpoint.report import observe_node
from orchestrator.node.run.events import Clock, EventLog, read_events
from orchestrator.node.run.job import Job
from orchestrator.node.run.run_folder import HANG_REPORT
from tests.node.agent.test_nccl_ras import ras_server
from tests.until import until
from trainer.runtime.channel import open_channel
from trainer.runtime.rank import Rank

if TYPE_CHECKING:
    from orchestrator.node.run.agent_files import RasBody


class Seconds:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _limits(*reports: tuple[float, int, str]) -> PhaseLimits:
    """After reports of two ranks: seconds since the one before, step and phase."""
    limits, now_s = PhaseLimits(0.0), 0.0
    for passed_s, step, phase in reports:
        now_s += passed_s
        assert limits.add({0: (step, "step"), 1: (step, phase)}, now_s)
    return limits


STEPS = [(1.0, step, "step") for step in range(1, 5)]
LONG_STEPS = [(4.0, step, "step") for step in range(1, 5)]


@pytest.mark.parametrize(
    ("reports", "limit_s"),
    [
        ([], math.inf),
        ([(1.0, 0, "init")], OTHERWISE_S),
        ([(1.0, 0, "init"), (50.0, 0, "eval")], OTHERWISE_S),
        ([(1.0, 0, "init"), (50.0, 1, "step")], OTHERWISE_S),  # the first step may compile
        (STEPS, SHORTEST_S),
        (LONG_STEPS, 12.0),
        ([*STEPS, (1.0, 4, "save")], OTHERWISE_S),  # one rank saves, the other waits for it
        ([*STEPS, (1.0, 4, "save"), (100.0, 5, "step")], SHORTEST_S),  # a long save is no long step
        ([*STEPS, (1.0, 4, "save"), (100.0, 5, "step"), (1.0, 5, "save")], 300.0),
        ([*STEPS, (30.0, 5, "step")], 90.0),  # the evaluation of a script, which has no phase
        ([(1.0, 0, "init"), *((30.0, 100 * part, "step") for part in range(1, 6))], 90.0),  # a report of 100 steps each
        ([*STEPS, (1.0, 5, "done")], math.inf),
        ([*STEPS, (2.0, 14, "step")], SHORTEST_S),  # ten steps in two seconds
    ],
)
def test_limit_follows_from_the_phases_and_steps_so_far(reports: list[tuple[float, int, str]], limit_s: float) -> None:
    assert _limits(*reports).limit_s() == pytest.approx(limit_s)


def test_time_without_a_cpu_is_no_part_of_a_step_or_phase() -> None:
    limits = _limits(*STEPS)
    limits.restart(now_s=404.0, waited_s=399.0)
    reports = [
        (5, "step", 405.0, 1.0),
        (6, "step", 435.0, 29.0),
        (6, "save", 436.0, 0.0),
        (7, "step", 536.0, 90.0),
    ]
    for step, phase, now_s, waited_s in reports:
        assert limits.add({0: (step, phase)}, now_s, waited_s)
    assert limits.limit_s() == SHORTEST_S
    assert limits.step_s() == 1.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The clock of the tests with this folder is set, and the kernel's is not: no rank waits for a CPU."""
    monkeypatch.setattr(hang_watch, "run_delay_s", lambda *_: 0.0)
    path = tmp_path / "attempt-1" / "n0"
    for name in ("progress", "stacks", "channel"):
        (path / name).mkdir(parents=True)
    return path


def _watch(folder: Path, clock: Seconds) -> HangWatch:
    program = {"args": ["x"], "python": True, "pythonpath": None, "cwd": None}
    run = str(folder.parents[1])
    job = Job(
        node="n0", node_rank=0, run_id="r", attempt=1, run_dir=run, bundle_dir=run, nodes=["n0"], addresses=[""],
        ranks=[1], program=program, grace_s=1.0,
    )  # fmt: skip
    return HangWatch(job, str(folder), EventLog(str(folder), Clock()), clock)


def _open_channel(folder: Path) -> None:
    launch = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "ORCH_NODE": "n0", "ORCH_ATTEMPT": "1"}
    open_channel(Rank.from_env({**launch, "ORCH_RUN_DIR": str(folder.parents[1])}), lambda: ("step", 4))


def _train(folder: Path, watch: HangWatch, clock: Seconds, steps: range) -> None:
    for step in steps:
        (folder / "progress/0.json").write_text(json.dumps({"step": step, "phase": "step"}))
        clock.now_s += 1.0
        watch.poll()


def _wait(watch: HangWatch, clock: Seconds, seconds: int) -> None:
    for _ in range(seconds):
        clock.now_s += 1.0
        watch.poll()


def _texts(folder: Path) -> list[str]:
    return [event["text"] for event in read_events(str(folder))]


def test_ranks_without_progress_are_reported_with_their_position_until_they_continue(folder: Path) -> None:
    _open_channel(folder)
    clock = Seconds()
    watch = _watch(folder, clock)
    _train(folder, watch, clock, range(1, 5))
    _wait(watch, clock, 4)
    assert (_texts(folder), observe_node("n0", str(folder))["hang"]) == ([], None)
    _wait(watch, clock, 20)
    (note,) = _texts(folder)
    assert note.startswith("warning: rank 0 of n0 has made no progress for 5 s, while a step takes 1.0 s: rank 0 at ")
    hang = observe_node("n0", str(folder))["hang"]
    assert hang is not None
    rank = hang["ranks"]["0"]  # type: ignore[index]  # JSON has no integers as keys
    assert (rank["answers"], rank["phase"], rank["step"], rank["stacks"]) == (True, "step", 4, "")
    assert "test_hang_watch.py" in (folder / "stacks/0.no-progress.txt").read_text()
    _train(folder, watch, clock, range(5, 6))
    assert _texts(folder)[1:] == ["the ranks of n0 make progress again, after 25 s without"]
    assert not (folder / HANG_REPORT).exists()
    _wait(watch, clock, 60)
    assert len(_texts(folder)) == 2, "the gap of 25 s has raised the limit to 75 s"


@pytest.mark.parametrize(
    ("phase", "share", "reported_s"),
    [
        ("step", 0.0, 5),
        ("step", 0.6, 13),
        ("step", 0.98, 30),
        ("save", 0.0, 120),
        ("save", 0.98, 180),  # a minute later at most
    ],
)
def test_time_without_a_cpu_does_not_count_but_for_a_sixth_and_up_to_a_minute(
    folder: Path, monkeypatch: pytest.MonkeyPatch, phase: str, share: float, reported_s: int
) -> None:
    _open_channel(folder)
    clock = Seconds()
    delay_s = [7.0]
    monkeypatch.setattr(hang_watch, "run_delay_s", lambda *_: delay_s[0])
    watch = _watch(folder, clock)
    _train(folder, watch, clock, range(1, 5))
    if phase != "step":
        (folder / "progress/0.json").write_text(json.dumps({"step": 4, "phase": phase}))
        _wait(watch, clock, 1)
    waited_s = 0
    while not _texts(folder):
        delay_s[0] += share
        waited_s += 1
        _wait(watch, clock, 1)
    assert waited_s == reported_s
    hang = observe_node("n0", str(folder))["hang"]
    assert hang is not None
    assert ("cpu_wait_s" in hang["ranks"]["0"]) == (share > STARVED_SHARE)  # type: ignore[index]  # JSON has no integers as keys


def test_time_for_which_the_agent_did_not_run_does_not_count(folder: Path) -> None:
    """As after a pause of the whole machine: the ranks did not run either."""
    _open_channel(folder)
    clock = Seconds()
    watch = _watch(folder, clock)
    _train(folder, watch, clock, range(1, 5))
    clock.now_s += 20.0
    watch.poll()
    _wait(watch, clock, 1)
    assert _texts(folder) == []


def test_collectives_that_advance_are_progress(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an evaluation of a script, which reports no steps meanwhile."""
    clock = Seconds()

    def record(**_: bool) -> str:
        count = clock.now_s // 2
        return json.dumps({"pg_status": {"0": {"last_enqueued_collective": count, "last_completed_collective": count}}})

    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(_dump_fr_trace_json=record))
    _open_channel(folder)
    watch = _watch(folder, clock)
    _train(folder, watch, clock, range(1, 5))
    _wait(watch, clock, 120)
    assert _texts(folder) == []


def test_a_rank_that_answers_now_and_then_makes_no_progress(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = itertools.cycle([{0: {"0": 7}, 1: {"0": 7}}, {0: None, 1: {"0": 7}}, {1: {"0": 7}}])
    monkeypatch.setattr(HangWatch, "_collectives", lambda _: next(answers))
    clock = Seconds()
    watch = _watch(folder, clock)
    _train(folder, watch, clock, range(1, 5))
    _wait(watch, clock, 20)
    assert [text.split(" for ")[0] for text in _texts(folder)] == ["warning: the ranks of n0 have made no progress"]


def test_nccl_is_queried_once_in_an_attempt_and_its_answer_is_in_the_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = {"rank": 0, "host": "n0", "pid": os.getpid(), "status": {"init_state": 0, "async_error": 0}}
    alone = {"size": 1, "ranks": [{**rank, "collective_counts": {"AllReduce": 7}}], "missing_ranks": []}
    nccl = SimpleNamespace(version=lambda: (2, 29, 7))
    cuda = SimpleNamespace(is_initialized=lambda: True, nccl=nccl)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None)))
    with ras_server(json.dumps({"communicators": [alone]}).encode()) as (address, requests):
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        _open_channel(folder)
        clock = Seconds()
        watch = _watch(folder, clock)
        _train(folder, watch, clock, range(1, 5))
        _wait(watch, clock, 8)

        def answered() -> RasBody | None:
            watch.poll()
            hang = observe_node("n0", str(folder))["hang"]
            assert hang is not None
            return hang.get("ras")

        ras = until(answered, awaited="the answer of the stand-in for NCCL")
        assert ras["facts"] == ["all ranks answer, and have launched the same numbers of collectives"]
        assert f"NCCL's RAS: {ras['facts'][0]}" in _texts(folder)
        _train(folder, watch, clock, range(5, 6))
        _wait(watch, clock, 100)
        assert len([text for text in _texts(folder) if "made no progress" in text]) == 2
        assert len(requests) == 1


def test_a_program_that_reports_no_steps_is_never_suspected(folder: Path) -> None:
    clock = Seconds()
    _wait(_watch(folder, clock), clock, 1000)
    assert _texts(folder) == []


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
