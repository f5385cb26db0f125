"""A rank of a real training that sleeps for ever, is slow, has too little CPU time, or waits for a file system that hangs: it is named, by the run itself."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.grounds.cli import Orch
from tests.grounds.components import unavailable
from tests.grounds.cpu_groups import CpuGroup, cpu_group
from tests.grounds.fuse import OneFile
from tests.grounds.inventories import write_inventory
from tests.grounds.mounts import in_own_mounts
from tests.train.conftest import DEADLINE_S
from tests.until import until

pytestmark = [pytest.mark.train, pytest.mark.processes, pytest.mark.slow]

REPORTS = 5  # then the agent knows how long a step takes
# One rank does something else than the others, once the test has made the file `begin`.
PROGRAM = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def sleep_for_ever(step):
    time.sleep(1e6)

def be_slow(step):
    time.sleep(0.1)

def compute(step):
    end = time.thread_time() + 0.005
    while time.thread_time() < end:
        pass

def read_data(step):
    with open(os.environ["DATA"] + "/data", "rb", buffering=0) as file:
        return file.read(4096)

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
act = globals()[os.environ["ACT"]]
for step in range(10**6):
    if (dist.get_rank() == 1 or act is compute) and os.path.exists(os.environ["BEGIN"]):
        act(step)
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""


def _started(folder: Path, act: str, data: str = "") -> tuple[Orch, str]:
    """A detached run of two ranks of this machine whose steps are known."""
    env = {"OMP_NUM_THREADS": "1", "ACT": act, "BEGIN": str(folder / "begin"), "DATA": data}
    base = {"name": "here", "accelerator": "cpu", "devices": 1, "transport": "local", "env": env}
    nodes = [{"name": "n[0-1]"}]
    write_inventory(
        folder / "inventory.yaml", {**base, "defaults": {"workdir": str(folder / ".work")}, "nodes": nodes}, {}
    )
    (folder / "train.py").write_text(PROGRAM)
    orch = Orch(folder)
    run = orch("ssh-launch", "--no-check", "--detach", "--", "train.py").stdout.strip()
    progress = orch.node_folder(run, "n1") / "progress/1.json"
    reported = set[int]()

    def has_reported() -> bool:
        reported.add(_step(progress))
        return len(reported) > REPORTS

    until(has_reported, deadline_s=DEADLINE_S, awaited="reports of steps")
    return orch, run


def _step(progress: Path) -> int:
    return int(json.loads(progress.read_text())["step"]) if progress.exists() else 0


def _named(orch: Orch, run: str, kind: str, words: str = "") -> str:
    """The text of the first event of that kind with these words: on a busy machine, another rank may be slow before."""

    def texts() -> list[str]:
        lines = (orch.home / "runs" / run / "events.jsonl").read_text("utf-8").splitlines()
        events = map(json.loads, lines)
        return [event["text"] for event in events if event["event"] == kind and words in event["text"]]

    return str(until(texts, deadline_s=DEADLINE_S, awaited=f"an event {kind} {words}")[0])


@pytest.mark.extended
def test_rank_that_sleeps_for_ever_is_named_with_its_call(tmp_path: Path) -> None:
    orch, run = _started(tmp_path, "sleep_for_ever")
    (tmp_path / "begin").touch()
    text = _named(orch, run, "no-progress")
    assert "rank 1 on n1 not in all_reduce" in text
    assert "sleep_for_ever" in text
    assert orch.recorded(run) == "RUNNING"  # its collective has a limit of half an hour
    orch("stop", run)


def test_slow_rank_is_named_and_the_run_continues(tmp_path: Path) -> None:
    orch, run = _started(tmp_path, "be_slow")
    (tmp_path / "begin").touch()
    _named(orch, run, "slow-ranks", "rank 1 is slow")
    assert orch.recorded(run) == "RUNNING"
    orch("stop", run)


@pytest.fixture
def group() -> Iterator[CpuGroup]:
    try:
        with cpu_group() as made:
            yield made
    except OSError as error:
        unavailable(f"no cgroup that throttles CPUs can be made: {error}")


@pytest.mark.extended
def test_rank_whose_cpu_is_throttled_is_named_with_the_limit(group: CpuGroup, tmp_path: Path) -> None:
    (tmp_path / "begin").touch()
    orch, run = _started(tmp_path, "compute")
    try:
        group.throttle(orch.rank_pid(run, "n1", 1), percent=15)
        text = _named(orch, run, "slow-ranks", "n1: rank 1 is slow")
        assert "for a CPU: its cgroup reaches its limit of CPU time in" in text
        assert orch.recorded(run) == "RUNNING"
    finally:
        orch("stop", run)


@contextmanager
def _file_system(folder: Path) -> Iterator[OneFile]:
    folder.mkdir()
    served = OneFile(folder)
    try:
        yield served
    finally:
        served.close()


@pytest.mark.extended
def test_rank_on_a_file_system_that_hangs_is_named_and_a_stale_handle_is_the_cause(tmp_path: Path) -> None:
    if os.getuid() != 0 or not Path("/dev/fuse").exists():
        unavailable("mounting a FUSE file system needs root and /dev/fuse")

    def act() -> dict[str, Any]:
        with _file_system(tmp_path / "data") as served:
            orch, run = _started(tmp_path, "read_data", str(tmp_path / "data"))
            (tmp_path / "begin").touch()
            served.hold()
            until(lambda: served.held == 1, awaited="a read without an answer")
            text = _named(orch, run, "no-progress")
            assert "rank 1 on n1 not in all_reduce" in text
            assert "read_data" in text
            served.refuse(errno.ESTALE)
            until(lambda: orch.recorded(run) == "FAILED", deadline_s=DEADLINE_S, awaited="the end")
            found: dict[str, Any] = json.loads(orch("diagnose", run, "--json").stdout)
            return found

    failure = in_own_mounts(act)
    assert (failure["signature"], failure["kind"], failure["retry"]) == ("file-system-error", "storage", "elsewhere")
    assert (failure["ranks"], failure["nodes"]) == ([1], ["n1"])
    assert "Stale file handle" in failure["cause"]
