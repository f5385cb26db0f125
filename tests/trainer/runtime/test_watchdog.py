"""The time limit of a rank without progress, and the stacks that it dumps before the limit."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed

from tests.grounds.trainings import NO_PREEMPTION, TINY, Breaking
from tests.until import until
from trainer.checkpoint.manager import Checkpoints
from trainer.checkpoint.saver import Saver
from trainer.config.load import load_config
from trainer.errors import kind_of
from trainer.evaluation import Evaluation
from trainer.runtime.accelerators import choose
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.runtime.progress import Progress
from trainer.runtime.rank import Rank
from trainer.runtime.watchdog import ARM_EVERY_S, SLOWER, STUCK_AT, StackDump, Watchdog, record_collectives
from trainer.train import Trainer

LONG_S, SHORT_S = 1800.0, 300.0


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def _no_timer_is_left() -> Iterator[None]:
    yield
    faulthandler.cancel_dump_traceback_later()


def _rank(tmp_path: Path) -> Rank:
    env = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "ORCH_NODE": "n0", "ORCH_ATTEMPT": "1"}
    return Rank.from_env({**env, "ORCH_RUN_DIR": str(tmp_path)})


@pytest.fixture
def stacks(tmp_path: Path, clock: Clock) -> Iterator[StackDump]:
    stacks = StackDump(_rank(tmp_path), clock)
    yield stacks
    stacks.stop()


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays in seconds for which the timer of faulthandler was set."""
    times: list[float] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, file: times.append(seconds))  # noqa: ARG005
    return times


def _dump_stacks(stacks: StackDump) -> Path:
    assert stacks.path is not None
    stacks.expect(0.01)
    path = stacks.path
    until(lambda: "in _dump_stacks" in path.read_text(), awaited="the stacks")
    return path


def test_stacks_of_all_threads_are_in_the_run_folder(stacks: StackDump, tmp_path: Path) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    path = _dump_stacks(stacks)
    over.set()
    thread.join()
    assert path == tmp_path / "attempt-1/n0/stacks/1.txt"
    assert path.read_text().count("(most recent call first)") >= 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_rank_that_continues_empties_the_file_and_keeps_the_stacks_under_another_name(
    stacks: StackDump, clock: Clock
) -> None:
    path = _dump_stacks(stacks)
    clock.now_s += ARM_EVERY_S
    stacks.expect(60.0)
    assert path.read_text() == ""
    assert "in _dump_stacks" in path.with_name("1.went-on.txt").read_text()
    _dump_stacks(stacks)


def test_stacks_are_printed_to_stderr_outside_of_orch(capfd: pytest.CaptureFixture[str]) -> None:
    stacks = StackDump(Rank.from_env({}))
    stacks.expect(0.01)
    output = ""

    def is_there() -> bool:
        nonlocal output
        output += capfd.readouterr().err
        return "in test_stacks_are_printed_to_stderr" in output

    until(is_there, awaited="the stacks")
    stacks.stop()


BUSY = """\
import time
from trainer.runtime import watchdog
from trainer.runtime.rank import Rank

watchdog.STUCK_AT = 1e5  # the lock is always to be had here
clock_s = 0.0
stacks = watchdog.StackDump(Rank.from_env({}), lambda: clock_s)
for _ in range(300):
    clock_s += watchdog.ARM_EVERY_S
    stacks.expect(0.0005)
    until_s = time.monotonic() + 0.002
    while time.monotonic() < until_s:
        names = {}
        exec(compile("def call(depth): return depth and call(depth - 1)", f"{clock_s}.py" * 50, "exec"), names)
        names["call"](90)
        names.clear()
        written_over = [bytes(size) for size in range(100, 700, 8)]
print("survived")
"""


@pytest.mark.processes
def test_stacks_of_a_rank_that_is_only_slow_do_not_end_it() -> None:
    """faulthandler's timer ends this program by SIGSEGV at about the fiftieth time: it reads code that has been freed."""
    done = subprocess.run([sys.executable, "-c", BUSY], check=False, capture_output=True, text=True, timeout=60.0)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr[-2000:]
    assert done.stderr.count("hread 0x") > 100


@pytest.mark.processes
def test_stacks_are_written_although_a_call_keeps_the_interpreter_lock() -> None:
    program = """\
import ctypes
from trainer.runtime.rank import Rank
from trainer.runtime.watchdog import StackDump

def hang():
    ctypes.PyDLL(None).sleep(2)  # PyDLL keeps the lock

StackDump(Rank.from_env({})).expect(0.1)
hang()
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60.0)
    assert done.returncode == 0
    assert done.stderr.startswith("Timeout (")
    assert "in hang" in done.stderr


def test_stacks_that_cannot_be_written_warn_once(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "attempt-1").write_text("a file where a folder must be")
    stacks = StackDump(_rank(tmp_path), clock)
    for _ in range(2):
        clock.now_s += ARM_EVERY_S
        stacks.expect(60.0)
    stacks.stop()
    assert capsys.readouterr().err.count("WARNING: no stacks will be written") == 1


def test_timer_is_set_at_most_once_per_second(stacks: StackDump, clock: Clock, armed: list[float]) -> None:
    for _ in range(100):
        clock.now_s += ARM_EVERY_S / 20
        stacks.expect(60.0)
    assert 5 <= len(armed) <= 6


@pytest.mark.processes
def test_forked_child_exits_although_the_timer_runs(stacks: StackDump) -> None:
    """A forked child lacks the timer's thread, and the exit of the interpreter would wait for it."""
    stacks.expect(60.0)
    child = os.fork()
    if child == 0:
        faulthandler.cancel_dump_traceback_later()  # as the interpreter does at its exit
        os._exit(7)
    try:
        assert until(lambda: os.waitpid(child, os.WNOHANG)[0], awaited="the child's end") == child
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise


def _limits(watchdog: Watchdog, clock: Clock, *phases: tuple[str, float]) -> list[float]:
    """The limit of each phase; a phase begins `after_s` seconds after the one before."""
    found = []
    for phase, after_s in phases:
        clock.now_s += after_s
        watchdog.begin_phase(phase)
        found.append(watchdog.limit_s)
    return found


@pytest.fixture
def watchdog(stacks: StackDump, clock: Clock, armed: list[float]) -> Watchdog:  # so that no real timer runs
    return Watchdog(stacks, ddp_timeout_s=LONG_S, hang_timeout_s=SHORT_S, clock_s=clock)


def test_hang_timeout_applies_only_to_steps_after_the_first(watchdog: Watchdog, clock: Clock) -> None:
    phases = [("init", 0.0), ("init", 9.0), ("step", 50.0), ("step", 9.0), ("step", 1.0), ("eval", 1.0), ("save", 1.0)]
    assert _limits(watchdog, clock, *phases) == [LONG_S] * 3 + [SHORT_S] * 2 + [LONG_S] * 2
    assert _limits(watchdog, clock, ("step", 900.0), ("step", 1.0), ("saved", 1.0)) == [SHORT_S, SHORT_S, LONG_S]


def test_roll_back_and_the_step_after_it_have_ddp_timeout(watchdog: Watchdog, clock: Clock) -> None:
    phases = [("step", 0.0), ("step", 1.0), ("init", 1.0), ("step", 600.0), ("step", 1.0)]
    assert _limits(watchdog, clock, *phases) == [LONG_S, SHORT_S, LONG_S, LONG_S, SHORT_S]


def test_step_after_a_slow_step_has_a_longer_limit(watchdog: Watchdog, clock: Clock) -> None:
    phases = [("step", 0.0), ("step", 100.0), ("step", 1000.0), ("step", 1.0)]
    assert _limits(watchdog, clock, *phases) == [LONG_S, SLOWER * 100.0, LONG_S, SHORT_S]


def test_ddp_timeout_below_hang_timeout_is_the_limit_of_every_phase(
    stacks: StackDump, clock: Clock, armed: list[float]
) -> None:
    watchdog = Watchdog(stacks, ddp_timeout_s=20.0, hang_timeout_s=SHORT_S, clock_s=clock)
    assert _limits(watchdog, clock, ("init", 0.0), ("step", 1.0), ("step", 1.0), ("save", 1.0)) == [20.0] * 4
    assert armed == [pytest.approx(STUCK_AT * 20.0)] * 4


def test_collectives_get_each_new_limit_and_stacks_are_dumped_before_it(
    watchdog: Watchdog, clock: Clock, armed: list[float]
) -> None:
    timeouts_s: list[float] = []
    watchdog.set_timeout = timeouts_s.append
    _limits(watchdog, clock, ("init", 0.0), ("step", 1.0), ("step", 1.0), ("step", 1.0), ("save", 1.0), ("step", 1.0))
    assert timeouts_s == [SHORT_S, LONG_S, SHORT_S]
    assert sorted(set(armed)) == [pytest.approx(STUCK_AT * limit_s) for limit_s in (SHORT_S, LONG_S)]


def test_phase_changes_before_work_that_only_rank_0_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole training with an asynchronous save that the last step waits for, and a non-finite loss."""
    phases: list[str] = []
    found: dict[str, set[str]] = {}
    for owner, name in (
        (Checkpoints, "load_earlier"),
        (Evaluation, "run"),
        (Saver, "_raise_problem"),
        (Checkpoints, "snapshot"),
    ):
        original = getattr(owner, name)

        def recording(*args: Any, name: str = name, original: Any = original, **more: Any) -> Any:  # any method
            found.setdefault(name, set()).add(phases[-1])
            return original(*args, **more)

        monkeypatch.setattr(owner, name, recording)
    Breaking(monkeypatch, 4)
    (tmp_path / "text").write_text(" ".join(map(str, range(500))))  # no batch comes twice
    paths = (f"data.paths={tmp_path / 'text'}", f"data.validation={tmp_path / 'text'}", f"out={tmp_path / 'out'}")
    words = ("steps=6", "save_steps=2", "async_save=true", "roll_back=1", "eval_steps=5", "eval_batches=1")
    config = load_config(words=[*TINY, *paths, *words])
    group = initialise("cpu", 60.0, {})
    trainer = Trainer(config, group, Progress(group.rank, config.steps, on_phase=phases.append), NO_PREEMPTION)
    assert trainer.run() is not None
    trainer.metrics.close(0)
    assert found == {
        "load_earlier": {"init"},
        "run": {"eval"},
        "snapshot": {"save"},
        "_raise_problem": {"init", "save"},  # in a step it would wait
    }


def test_timeout_is_set_on_every_group_whose_backend_supports_it() -> None:
    timeouts: list[tuple[timedelta, Any]] = []
    c10d = SimpleNamespace(
        _world=SimpleNamespace(pg_map={"default": 1, "sharded": 2}),
        _set_pg_timeout=lambda timeout, group: timeouts.append((timeout, group)),
    )
    rank = Rank(0, 0, 2, launched=True, node="", run_dir=None, progress_dir=None, is_retry=False)
    accelerator = choose("cpu", torch).changed(distributed=SimpleNamespace(distributed_c10d=c10d))
    Group(rank, accelerator, torch.device("cpu"), None, "").set_timeout(7.5)
    assert timeouts == [(timedelta(seconds=7.5), "default"), (timedelta(seconds=7.5), "sharded")]
    Group(rank, accelerator.changed(backend="eccl"), torch.device("cpu"), None, "").set_timeout(7.5)
    assert len(timeouts) == 2


@pytest.mark.parametrize(
    "text",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete",
        "Application timeout caused pair closure",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE) ran for 120621 milliseconds",
    ],
)
def test_timeout_of_a_collective_is_a_hang(text: str) -> None:
    assert kind_of(RuntimeError(text)) == "hang"
    assert kind_of(torch.distributed.DistBackendError(text)) == "hang"


def test_added_progress_value_does_not_change_the_phase(tmp_path: Path) -> None:
    phases: list[str] = []
    progress = Progress(_rank(tmp_path), 9, on_phase=phases.append)
    progress.write("step", 4)
    progress.add(saved=2)
    record = json.loads((tmp_path / "attempt-1/n0/progress/1.json").read_text())
    assert {**record, "time": 0} == {"step": 4, "steps": 9, "phase": "step", "time": 0, "saved": 2}
    assert phases == ["step"]


@pytest.mark.parametrize(
    ("version", "given", "size"),
    [
        ("1.10.0", {}, "2000"),
        ("2.8.0+cu126", {}, "2000"),
        ("2.9.1", {}, None),
        ("2.13.0+cpu", {}, None),
        ("2.8.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "0"),
    ],
)
def test_collectives_are_recorded_if_torch_would_not_do_so_itself(
    version: str, given: dict[str, str], size: str | None
) -> None:
    env = dict(given)
    record_collectives(version, env)
    assert env.get("TORCH_NCCL_TRACE_BUFFER_SIZE") == size
