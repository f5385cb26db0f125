"""Stopping through an endpoint: the processes of the run end, even if they ignore signals, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.endpoint.client import Endpoint, Heartbeat
from orchestrator.errors import Unreachable
from orchestrator.node.endpoint import stop
from orchestrator.node.run.ownership import signal_exactly
from orchestrator.node.system.machine import START_TIME, live_fields
from orchestrator.transports.local import LocalTransport
from tests.grounds.stand_in import Ground, alive
from tests.node.agent.test_agent_ground import PYTHONS
from tests.until import until


@pytest.fixture(params=PYTHONS)
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    with Endpoint.connect(LocalTransport("n0"), request.param) as endpoint:
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
    (state,) = endpoint.observe(str(ground.attempt), None)
    assert not state.alive
    (result,) = endpoint.stop(str(ground.attempt), None, grace_s=0)
    assert (result.signalled, result.remaining) == ((), ())
    assert stranger.poll() is None


def test_stop_ends_an_agent_with_one_signal(endpoint: Endpoint, ground: Ground) -> None:
    pid = ground.start(endpoint, "ready(); time.sleep(1000)")
    stranger = ground.sleeper()
    (result,) = endpoint.stop(str(ground.attempt), ["n0"], grace_s=10)
    assert result.signalled == ({"pid": pid, "role": "agent", "signal": "SIGTERM"},)
    assert result.remaining == ()
    assert not alive(pid)
    assert stranger.poll() is None
    (repeated,) = endpoint.stop(str(ground.attempt), ["n0"], grace_s=10)
    assert repeated.signalled == ()


def test_stop_leaves_the_ranks_to_their_living_agent(endpoint: Endpoint, ground: Ground) -> None:
    program = """
child = rank()
def end(*_):
    child.kill(); child.wait(); sys.exit(6)
signal.signal(signal.SIGTERM, end)
ready(); time.sleep(1000)"""
    pid = ground.start(endpoint, program)
    rank = ground.rank()
    (result,) = endpoint.stop(str(ground.attempt), None, grace_s=10)
    assert [sent["pid"] for sent in result.signalled] == [pid]
    assert not alive(rank)


def test_stop_kills_an_agent_that_ignores_sigterm_and_then_its_ranks(endpoint: Endpoint, ground: Ground) -> None:
    pid = ground.start(endpoint, "signal.signal(signal.SIGTERM, signal.SIG_IGN); rank(); ready(); time.sleep(1000)")
    rank = ground.rank()
    (result,) = endpoint.stop(str(ground.attempt), None, grace_s=-4.5)  # the margin of five seconds would be long here
    assert [(sent["pid"], sent["signal"]) for sent in result.signalled] == [
        (pid, "SIGTERM"),
        (pid, "SIGKILL"),
        (rank, "SIGKILL"),
    ]
    assert result.remaining == ()


@pytest.mark.parametrize(("agent_state", "is_killed"), [("S", False), ("R", False), ("D", False), ("T", True)])
def test_agent_that_waits_for_ranks_in_the_kernel_is_killed_only_if_it_is_suspended(
    endpoint: Endpoint, ground: Ground, monkeypatch: pytest.MonkeyPatch, agent_state: str, is_killed: bool
) -> None:
    """An agent that writes to a busy disk has the state of a rank that hangs, for a moment."""
    pid = ground.start(endpoint, "rank(); ready(); time.sleep(1000)")
    states = {pid: agent_state, ground.rank(): "D"}
    monkeypatch.setattr(stop, "_state", lambda number: states.get(number, "S"))
    target = stop.Target("n0", str(ground.folder))
    assert target.signal_all(signal.SIGKILL)
    assert [(sent["pid"], sent["role"]) for sent in target.signalled] == ([(pid, "agent")] if is_killed else [])


STUBBORN = """
rank()
signal.signal(signal.SIGTERM, lambda *_: event("got-sigterm"))
ready()
while True: time.sleep(1000)"""


def test_heartbeats_are_answered_while_a_stop_waits(endpoint: Endpoint, ground: Ground) -> None:
    pid = ground.start(endpoint, STUBBORN)
    rank = ground.rank()
    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(endpoint.stop, str(ground.attempt), ["n0"], grace_s=1000)
        _await_sigterm(ground)
        for _ in range(2):
            observation, _ = endpoint.heartbeat(str(ground.attempt), "n0", Heartbeat(None, (), 0.1))
            assert observation.alive
        assert not stopping.done()
        for victim in (pid, rank):
            os.kill(victim, signal.SIGKILL)
        (result,) = stopping.result()
    assert result.signalled == ({"pid": pid, "role": "agent", "signal": "SIGTERM"},)
    assert result.remaining == ()


def test_stop_kills_what_ignores_sigterm_also_if_its_controller_has_gone(endpoint: Endpoint, ground: Ground) -> None:
    pid = ground.start(endpoint, STUBBORN)
    rank = ground.rank()
    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(endpoint.stop, str(ground.attempt), ["n0"], grace_s=-3.0)  # 2 s, by the margin
        _await_sigterm(ground)
        endpoint.close()  # waits until the program on the node has ended
        with pytest.raises(Unreachable):
            stopping.result()
    assert not alive(pid)
    assert not alive(rank)


def _await_sigterm(ground: Ground) -> None:
    until(lambda: "got-sigterm" in [event["event"] for event in ground.events()], awaited="the agent to get SIGTERM")


def test_stop_ends_the_groups_of_ranks_that_lost_their_agent(endpoint: Endpoint, ground: Ground) -> None:
    program = "rank(['sh', '-c', 'trap \"\" TERM; sleep 1000 & echo $! > child; wait']); ready(); time.sleep(1000)"
    pid = ground.start(endpoint, program)
    rank, child = ground.rank(), int(until(lambda: _text(ground.folder / "child"), awaited="the rank's child"))
    ground.pids.append(child)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), awaited="the agent's end")
    (result,) = endpoint.stop(str(ground.attempt), ["n0"], grace_s=-4.5)
    assert {(sent["pid"], sent["role"]) for sent in result.signalled} == {(rank, "rank 0"), (child, "group of rank 0")}
    assert result.remaining == ()
    assert not alive(rank)
    assert not alive(child)


@pytest.mark.parametrize("is_owned", [True, False])
def test_group_without_its_leader_is_ended_only_if_the_run_owns_it(
    endpoint: Endpoint, ground: Ground, *, is_owned: bool
) -> None:
    env = {**os.environ, **owner_variables(ground, ORCH_RUN_ID="run-1" if is_owned else "run-2")}
    script = "sleep 1000 & echo $!; exec sleep 1000"
    leader = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, env=env, start_new_session=True)
    with leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        ground.pids.append(child)
        ground.write_record(leader.pid)
        leader.kill()
    (result,) = endpoint.stop(str(ground.attempt), None, grace_s=5)
    assert [sent["pid"] for sent in result.signalled] == ([child] if is_owned else [])
    assert alive(child) is not is_owned


def test_stop_takes_all_nodes_at_once(endpoint: Endpoint, ground: Ground) -> None:
    first = ground.start(endpoint, "ready(); time.sleep(1000)")
    ground.folder = ground.attempt / "n1"
    second = ground.start(endpoint, "ready(); time.sleep(1000)")
    results = endpoint.stop(str(ground.attempt), ["n0", "n1", "n2"], grace_s=5)
    assert [(result.node, [sent["pid"] for sent in result.signalled]) for result in results] == [
        ("n0", [first]),
        ("n1", [second]),
        ("n2", []),
    ]


def test_stop_ends_processes_outside_the_groups_of_a_run_whose_agent_has_ended(
    endpoint: Endpoint, ground: Ground
) -> None:
    """A daemon of a rank, its child with another environment, one that ignores SIGTERM, and a stopped one; each in its own session."""
    scripts = [
        "echo $$; exec sleep 1000",
        "env -i sleep 1000 & echo $!; wait",
        "trap '' TERM; echo $$; while :; do sleep 1000; done",
        "echo $$; kill -STOP $$",
    ]
    pids = [_start_shell(ground, script, owner_variables(ground)) for script in scripts]
    ground.write_record(os.getpid(), start_time=1)
    (result,) = endpoint.stop(str(ground.attempt), None, grace_s=0.3)
    assert set(pids) <= {sent["pid"] for sent in result.signalled}
    assert {sent["role"] for sent in result.signalled} == {"process of the run"}
    assert result.remaining == ()
    assert not any(map(alive, pids))


def test_stop_ends_the_session_of_a_killed_agent_even_if_the_environment_was_overwritten(
    endpoint: Endpoint, ground: Ground
) -> None:
    env = owner_variables(ground)
    program = f"""
owned = dict(os.environ, **{env!r})
subprocess.Popen(["sleep", "1000"], env=owned)
print(subprocess.Popen(["sleep", "1000"], env={{"PATH": os.environ["PATH"]}}).pid, file=open("child", "w"), flush=True)
ready(); time.sleep(1000)"""
    pid = ground.start(endpoint, program)
    child = int(until(lambda: _text(ground.folder / "child"), awaited="a child"))
    ground.pids.append(child)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), awaited="the agent's end")
    (result,) = endpoint.stop(str(ground.attempt), ["n0"], grace_s=5)
    assert child in {sent["pid"] for sent in result.signalled}
    assert len(result.signalled) == 2
    assert not alive(child)


@pytest.mark.parametrize("changes", [{"ORCH_RUN_ID": "run-2"}, {"ORCH_ATTEMPT": "2"}, {"ORCH_NODE": "n1"}])
def test_stop_spares_other_runs_attempts_and_nodes(endpoint: Endpoint, ground: Ground, changes: dict[str, str]) -> None:
    stranger = _start_shell(ground, "echo $$; exec sleep 1000", owner_variables(ground, **changes))
    ground.write_record(os.getpid(), start_time=1)
    (result,) = endpoint.stop(str(ground.attempt), None, grace_s=0)
    assert (result.signalled, result.remaining) == ((), ())
    assert alive(stranger)


def test_stop_spares_a_process_with_the_runs_variables_that_is_older_than_its_agent(
    endpoint: Endpoint, ground: Ground
) -> None:
    older = _start_shell(ground, "echo $$; exec sleep 1000", owner_variables(ground))
    until(lambda: _ticks() > _start_time(older), awaited="the clock's next tick")
    leader = ground.sleeper(start_new_session=True)
    ground.write_record(leader.pid)
    leader.kill()
    leader.wait()
    (result,) = endpoint.stop(str(ground.attempt), None, grace_s=0)
    assert result.signalled == ()
    assert alive(older)


def test_stop_ends_an_agent_that_has_not_written_its_record_yet(endpoint: Endpoint, ground: Ground) -> None:
    """Its command line identifies it; after `stop` has returned, no process of the run can start."""
    agent = ground.attempt.parent / "bundle" / "orchestrator" / "node"
    agent.mkdir(parents=True)
    (agent / "__main__.py").write_text("import time; print('up', flush=True); time.sleep(1000)")
    argv = [
        sys.executable,
        "-B",
        str(agent / "__main__.py"),
        "run",
        str(ground.attempt / "job.json"),
        "--node",
        "n0",
        "--node-rank",
        "0",
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as starting:
        ground.pids.append(starting.pid)
        assert starting.stdout is not None
        assert starting.stdout.readline() == b"up\n"
        (neighbour,) = endpoint.stop(str(ground.attempt), ["n1"], grace_s=0)
        assert neighbour.signalled == ()
        (result,) = endpoint.stop(str(ground.attempt), ["n0"], grace_s=5)
        assert [sent["pid"] for sent in result.signalled] == [starting.pid]


@pytest.mark.parametrize("with_pidfd", [True, False])
def test_signal_reaches_exactly_that_process_or_none(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, *, with_pidfd: bool
) -> None:
    if not with_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    child = ground.sleeper()
    start_time = _start_time(child.pid)
    assert not signal_exactly((child.pid, start_time - 1), signal.SIGKILL)
    assert child.poll() is None
    assert signal_exactly((child.pid, start_time), signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not signal_exactly((child.pid, start_time), signal.SIGKILL)


def owner_variables(ground: Ground, **changes: str) -> dict[str, str]:
    """The variables by which a rank of this ground's node is recognised, with changes."""
    run = ground.attempt.parent
    variables = {"ORCH_RUN_ID": run.name, "ORCH_ATTEMPT": "1", "ORCH_NODE": "n0", "ORCH_RUN_DIR": str(run)}
    return {**variables, **changes}


def _start_shell(ground: Ground, script: str, env: dict[str, str]) -> int:
    """Start a shell in a new session; return the pid that the script prints first."""
    shell = subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, env={**os.environ, **env}, start_new_session=True
    )
    ground.children.append(shell)
    assert shell.stdout is not None
    with shell.stdout as out:
        pid = int(out.readline())
    ground.pids.append(pid)
    return pid


def _start_time(pid: int) -> int:
    fields = live_fields(pid)
    assert fields is not None
    return int(fields[START_TIME])


def _ticks() -> float:
    return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_CLK_TCK") - 1


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
