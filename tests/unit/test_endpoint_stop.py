"""Stopping through an endpoint: what was recorded ends, whatever it does against it, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.transports.endpoint import Endpoint, Signalled
from orchestrator.transports.local import LocalTransport
from tests.grounds.stand_in import Ground, alive
from tests.until import until


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        yield endpoint


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(tmp_path / "run-1" / "attempt-1")
    ground.attempt.mkdir(parents=True)
    yield ground
    ground.end()


@pytest.mark.parametrize("change", [{"start_time": 1}, {"boot_id": "another"}])
def test_a_pid_of_another_start_or_boot_is_neither_alive_nor_signalled(
    endpoint: Endpoint, ground: Ground, change: dict[str, object]
) -> None:
    stranger = ground.sleeper(start_new_session=True)
    ground.write_record(stranger.pid, **change)
    (seen,) = endpoint.observe(str(ground.attempt), None)
    assert not seen.alive
    (result,) = endpoint.stop(str(ground.attempt), None, grace_s=0)
    assert (result.signalled, result.remaining) == ((), ())
    assert stranger.poll() is None


def test_stop_ends_a_willing_agent_with_one_signal(endpoint: Endpoint, ground: Ground) -> None:
    pid = ground.start(endpoint, "ready(); time.sleep(1000)")
    stranger = ground.sleeper()
    (result,) = endpoint.stop(str(ground.attempt), ["n0"], grace_s=10)
    assert result.signalled == (Signalled(pid, "agent", "SIGTERM"),)
    assert result.remaining == ()
    assert not alive(pid)
    assert stranger.poll() is None
    (again,) = endpoint.stop(str(ground.attempt), ["n0"], grace_s=10)
    assert again.signalled == ()


def test_stop_leaves_the_ranks_to_a_living_agent(endpoint: Endpoint, ground: Ground) -> None:
    program = """
child = rank()
def end(*_):
    child.kill(); child.wait(); sys.exit(6)
signal.signal(signal.SIGTERM, end)
ready(); time.sleep(1000)"""
    pid = ground.start(endpoint, program)
    rank = ground.rank()
    (result,) = endpoint.stop(str(ground.attempt), None, grace_s=10)
    assert [sent.pid for sent in result.signalled] == [pid]
    assert not alive(rank)


def test_stop_kills_a_deaf_agent_and_then_its_ranks(endpoint: Endpoint, ground: Ground) -> None:
    pid = ground.start(endpoint, "signal.signal(signal.SIGTERM, signal.SIG_IGN); rank(); ready(); time.sleep(1000)")
    rank = ground.rank()
    (result,) = endpoint.stop(str(ground.attempt), None, grace_s=-4.5)  # the margin of five seconds would be long here
    assert [(sent.pid, sent.signal) for sent in result.signalled] == [
        (pid, "SIGTERM"),
        (pid, "SIGKILL"),
        (rank, "SIGKILL"),
    ]
    assert result.remaining == ()


def test_stop_ends_the_groups_of_ranks_that_lost_their_agent(endpoint: Endpoint, ground: Ground) -> None:
    program = "rank(['sh', '-c', 'trap \"\" TERM; sleep 1000 & echo $! > child; wait']); ready(); time.sleep(1000)"
    pid = ground.start(endpoint, program)
    rank, child = ground.rank(), int(until(lambda: _text(ground.folder / "child"), what="the rank's child"))
    ground.pids.append(child)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), what="the agent's end")
    (result,) = endpoint.stop(str(ground.attempt), ["n0"], grace_s=-4.5)
    assert {(sent.pid, sent.what) for sent in result.signalled} == {(rank, "rank 0"), (child, "group of rank 0")}
    assert result.remaining == ()
    assert not alive(rank)
    assert not alive(child)


@pytest.mark.parametrize("ours", [True, False])
def test_a_group_without_its_leader_is_ended_only_if_it_carries_the_run(
    endpoint: Endpoint, ground: Ground, *, ours: bool
) -> None:
    env = {**os.environ, "ORCH_RUN_ID": "run-1" if ours else "run-2", "ORCH_NODE": "n0"}
    script = "sleep 1000 & echo $!; exec sleep 1000"
    leader = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, env=env, start_new_session=True)
    with leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        ground.pids.append(child)
        ground.write_record(leader.pid)
        leader.kill()
    (result,) = endpoint.stop(str(ground.attempt), None, grace_s=5)
    assert [sent.pid for sent in result.signalled] == ([child] if ours else [])
    assert alive(child) is not ours


def test_stop_takes_all_nodes_at_once(endpoint: Endpoint, ground: Ground) -> None:
    first = ground.start(endpoint, "ready(); time.sleep(1000)")
    ground.folder = ground.attempt / "n1"
    second = ground.start(endpoint, "ready(); time.sleep(1000)")
    results = endpoint.stop(str(ground.attempt), ["n0", "n1", "n2"], grace_s=5)
    assert [(result.node, [sent.pid for sent in result.signalled]) for result in results] == [
        ("n0", [first]),
        ("n1", [second]),
        ("n2", []),
    ]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
