"""F15: a node's clock is an hour off, or is set during a run: no process is ended for it, and the log keeps its order."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.clocks import WallClock, wall_clock
from tests.grounds.sshd import Farm
from tests.until import until

HOUR_S = 3600
ROUND_TRIP_S = 2.0  # of a starved machine: times of two nodes are compared to within one
LINES = 60
TALKER = f'i=0; while [ "$i" -lt {LINES} ]; do i=$((i+1)); echo "$i"; sleep 0.1; done; exec sleep 0.5'

# Each number once by both ranks, then the next one: by less time apart, lines of two nodes have no order.
IN_STEP = """
for i in 1 2 3; do
    echo $i
    touch "$0.$RANK.$i"
    until [ -e "$0.0.$i" ] && [ -e "$0.1.$i" ]; do sleep 0.05; done
    sleep 0.6
done
"""


@pytest.fixture
def clock(farm: Farm) -> WallClock:
    """The clock of n1, at first without an offset."""
    return wall_clock(farm.folder, farm.python)


@pytest.fixture
def orch(farm: Farm, clock: WallClock, tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of two nodes with one rank each; the second one has the clock."""
    inventory = farm.inventory(tmp_path, nodes=2)
    text = inventory.read_text("utf-8")
    inventory.write_text(text.replace("name: n1", f"name: n1\n  python: {clock.python}"), "utf-8")
    return Orch(tmp_path)


def _start(orch: Orch, script: str, *options: str) -> str:
    run = orch("ssh-launch", "--detach", "--skip", "clock", *options, "--", "sh", "-c", script).stdout.strip()
    until(lambda: orch.supervisor(run), awaited="the supervisor")
    return run


def _line_count(orch: Orch, run: str, node: str) -> int:
    file = next(orch.node_folder(run, node).glob("rank-*.out"))
    return file.read_bytes().count(b"\n")


@pytest.mark.extended
@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_clock_that_is_set_during_a_run_ends_no_process_and_keeps_the_log_in_order(
    orch: Orch, clock: WallClock, ahead_s: int
) -> None:
    """The run continues for longer than both timeouts, and each line is at the same place in the log."""
    run = _start(orch, TALKER, "--isolation-timeout", "2s", "--orphan-timeout", "4s")
    until(lambda: _line_count(orch, run, "n1") >= 5, awaited="the ranks to write")
    clock.set(ahead_s)
    until(lambda: orch.recorded(run) not in ("STARTING", "RUNNING"), awaited="the end")
    assert orch.status(run)["state"] == "DONE", orch("logs", run).stdout
    lines = orch.lines(run)
    numbers = {rank: [int(line["text"]) for line in lines if line["rank"] == rank] for rank in (0, 1)}
    assert numbers == {0: [*range(1, LINES + 1)], 1: [*range(1, LINES + 1)]}
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    assert max(times) - min(times) < HOUR_S / 2
    merged = [int(line["text"]) for line in lines if line["rank"] is not None]
    assert max(abs(left - right) for left, right in zip(merged, sorted(merged), strict=True)) < LINES / 2


@pytest.mark.extended
@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_log_is_in_order_whatever_the_clock_of_a_node_shows(
    orch: Orch, farm: Farm, clock: WallClock, ahead_s: int
) -> None:
    """Its lines have times of the reader's clock: --since finds them, and they are in order among the other nodes' lines."""
    clock.set(ahead_s)
    began = time.time()
    with orch.start(
        "ssh-launch", "--skip", "clock", "--", "sh", "-c", IN_STEP, str(farm.home / orch.cwd.name)
    ) as watcher:
        shown, stderr = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, stderr
    assert all(f"[n1:1] {number}\n" in shown for number in (1, 2, 3))
    lines = [line for line in orch.lines("--since", "1m") if line["rank"] is not None]
    assert [line["text"] for line in lines] == ["1", "1", "2", "2", "3", "3"]
    assert all(began - 1 < line["time"] < time.time() + 1 for line in orch.lines())


@pytest.mark.parametrize(
    ("first", "ahead_s"),
    [
        (0, HOUR_S),
        (1, -HOUR_S),
        pytest.param(0, -HOUR_S, marks=pytest.mark.extended),
        pytest.param(1, HOUR_S, marks=pytest.mark.extended),
    ],
)
def test_first_failing_rank_is_named_whatever_the_clocks_show(
    orch: Orch, clock: WallClock, ahead_s: int, first: int
) -> None:
    """Both ranks die without a supervisor, one after the other: only their times show which was the first."""
    clock.set(ahead_s)
    run = _start(orch, "echo up; exec sleep 1000")
    until(lambda: all(_line_count(orch, run, node) for node in ("n0", "n1")), awaited="both ranks")
    orch.kill_supervisor(run)
    for rank in (first, 1 - first):
        os.kill(orch.rank_pid(run, f"n{rank}", rank), signal.SIGKILL)
        until(lambda rank=rank: _is_over(orch, run, rank), awaited=f"the end of rank {rank}")  # type: ignore[misc]
        round_trip_over_s = time.monotonic() + ROUND_TRIP_S
        until(partial(_has_come, round_trip_over_s), awaited="a time longer than a round trip")
    assert f"rank {first} on n{first} was killed" in orch("attach", run, code=1).stderr
    [record] = json.loads(orch("list", "--json").stdout)
    assert (record["exit"]["node"], record["exit"]["rank"]) == (f"n{first}", first)


def _has_come(time_s: float) -> bool:
    return time.monotonic() > time_s


def _is_over(orch: Orch, run: str, rank: int) -> bool:
    return any(event["event"] == "agent-finished" for event in orch.events(orch.node_folder(run, f"n{rank}")))
