"""Starting and observing agents through an endpoint."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.observation import ReportedExit
from orchestrator.errors import NodeError
from orchestrator.node.endpoint import report
from orchestrator.node.protocol.agents import AgentStart
from orchestrator.node.system.machine import is_alive, live_fields
from orchestrator.plan.shell import render
from orchestrator.transports.local import LocalTransport
from tests.grounds.stand_in import AGENT, Ground, alive
from tests.node.agent.test_agent_ground import PYTHONS
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


def test_an_agent_leads_a_session_of_its_own_and_outlives_the_endpoint(ground: Ground) -> None:
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        pid = ground.start(endpoint, "ready(); print('hi', flush=True); time.sleep(1000)")
        until(lambda: (ground.folder / "agent.log").read_text() == "hi\n", awaited="the agent's output")
    assert alive(pid)
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/fd/0").readlink() == Path(os.devnull)
    assert Path(f"/proc/{pid}/cwd").readlink() == ground.folder
    assert stat.S_IMODE((ground.folder / "agent.log").stat().st_mode) == 0o600
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        (state,) = endpoint.observe(str(ground.attempt), ["n0"])
    assert state.alive
    assert state.agent is not None
    assert state.agent.pid == pid


@pytest.mark.processes
def test_arguments_and_folders_may_begin_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    script = f'exec {sys.executable} "$0.py" "$1"\n'
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        files = [("node.sh", script, 0o600), ("node.sh.py", AGENT + "me['node'] = sys.argv[1]; ready()", 0o600)]
        endpoint.put_files("~/n0", files)
        assert endpoint.start(["/bin/sh", "~/n0/node.sh", "~other ~/x"], "~/n0").node == "~other ~/x"


def test_agent_that_ends_at_once_has_started(endpoint: Endpoint, ground: Ground) -> None:
    assert ground.start(endpoint, "ready()") > 0


def test_agent_may_be_a_child_of_the_started_process(endpoint: Endpoint, ground: Ground) -> None:
    program = """
if os.fork():
    os.wait(); sys.exit(0)
me.update(record(os.getpid())); ready(); time.sleep(1000)"""
    pid = ground.start(endpoint, program)
    (state,) = endpoint.observe(str(ground.attempt), None)
    assert state.alive
    assert live_fields(pid) is not None


def test_the_record_of_an_agent_that_is_gone_is_not_taken_for_the_new_one(endpoint: Endpoint, ground: Ground) -> None:
    first = ground.start(endpoint, "ready()")
    until(lambda: not alive(first), awaited="its end")
    assert ground.start(endpoint, "time.sleep(0.3); ready()") != first


def test_an_agent_that_fails_at_once_is_reported_with_its_output(endpoint: Endpoint, ground: Ground) -> None:
    with pytest.raises(NodeError, match=r"exited with code 4 before it wrote agent.json\nno such program"):
        ground.start(endpoint, "print('no such program', flush=True); sys.exit(4)")
    with pytest.raises(NodeError, match=r"^n0: no such program$"):
        ground.start(endpoint, "print('orch agent: no such program', flush=True); sys.exit(4)")
    with pytest.raises(NodeError, match="was killed by SIGKILL before"):
        ground.start(endpoint, "os.kill(os.getpid(), signal.SIGKILL)")


def test_missing_program_is_named(endpoint: Endpoint, ground: Ground) -> None:
    endpoint.put_files(str(ground.folder), [])
    with pytest.raises(NodeError, match="/nope/sh: No such file"):
        endpoint.start(["/nope/sh"], str(ground.folder))


@pytest.mark.parametrize(("argument", "reason"), [("\ud800", "surrogates not allowed"), ("a\0b", "embedded null byte")])
def test_argument_that_cannot_be_passed_is_the_reason_why_the_agent_did_not_start(
    endpoint: Endpoint, ground: Ground, argument: str, reason: str
) -> None:
    endpoint.put_files(str(ground.folder), [])
    with pytest.raises(NodeError, match=f"/bin/sh: .*{reason}"):
        endpoint.start(["/bin/sh", argument], str(ground.folder))


@pytest.mark.parametrize("python", PYTHONS)
def test_traceback_of_a_forked_agent_is_in_its_log(ground: Ground, python: str) -> None:
    with Endpoint.connect(LocalTransport("n0"), python) as endpoint:
        endpoint.put_files(str(ground.folder), [])
        with pytest.raises(NodeError, match=r"exited with code 1 (?s:.)*\nFileNotFoundError: .*no-bundle"):
            endpoint.start(["/bin/false"], str(ground.folder), agent=_agent_start(ground, python))


def test_agent_that_cannot_be_forked_leaves_no_open_log(endpoint: Endpoint, ground: Ground) -> None:
    endpoint.put_files(str(ground.folder), [])
    agent = _agent_start(ground, sys.executable)
    agent["env"] = {"NAME": "\ud800"}
    with pytest.raises(NodeError, match="surrogates not allowed"):
        endpoint.start(["/bin/false"], str(ground.folder), agent=agent)
    descriptors = Path(f"/proc/{endpoint.facts.pid}/fd")
    assert ground.folder / "agent.log" not in [descriptor.readlink() for descriptor in descriptors.iterdir()]


def _agent_start(ground: Ground, python: str) -> AgentStart:
    """The values of an agent without a bundle."""
    return {
        "python": python,
        "python_folder": "",
        "bundle": str(ground.attempt / "no-bundle"),
        "job": str(ground.attempt / "job.json"),
        "node": "n0",
        "node_rank": 0,
        "rendezvous": "",
        "env": {},
        "defaults": {},
    }


def test_an_agent_that_never_writes_its_record_is_ended(endpoint: Endpoint, ground: Ground) -> None:
    program = "print(os.getpid(), flush=True); time.sleep(1000)"
    with pytest.raises(NodeError, match=r"no agent.json after 0.5 s, the agent was killed\n\d+"):
        ground.start(endpoint, program, wait_s=0.5)
    assert not alive(int((ground.folder / "agent.log").read_text()))


def test_a_second_agent_in_one_folder_is_refused(endpoint: Endpoint, ground: Ground) -> None:
    pid = ground.start(endpoint, "ready(); time.sleep(1000)")
    with pytest.raises(NodeError, match=rf"an agent already runs in .*/n0, pid {pid}"):
        ground.start(endpoint, "ready()")


def test_an_agents_log_is_not_written_through_a_link(endpoint: Endpoint, ground: Ground, tmp_path: Path) -> None:
    ground.folder.mkdir(mode=0o700)
    (ground.folder / "agent.log").symlink_to(tmp_path / "victim")
    with pytest.raises(NodeError, match=r"agent\.log"):
        ground.start(endpoint, "ready()")
    assert not (tmp_path / "victim").exists()


def test_observe_reports_ranks_progress_and_the_first_failure(endpoint: Endpoint, ground: Ground) -> None:
    failure = "rank=0, pid=1, code=None, signal='SIGKILL', done=False, error='lost'"
    program = f"""
event("rank-started", rank=1, pid=1, start_time=1)
event("rank-started", rank=0, pid=1, start_time=1)
event("rank-started", rank=2, pid=1, start_time=1)
event("rank-exited", rank=1, pid=1, code=3, signal=None, done=True, error=None)
event("rank-exited", {failure})
os.mkdir("progress"); open("progress/0.json", "w").write('{{"step": 5}}'); open("progress/2.json", "w").write('{{"st')
open("events.jsonl", "a").write('{{"event": "agent-fin')
ready(); time.sleep(1000)"""
    ground.start(endpoint, program)
    (state,) = endpoint.observe(str(ground.attempt), None)
    assert state.ranks == {0: "exited", 1: "exited", 2: "running"}
    assert state.first_failure == ReportedExit(0, None, "SIGKILL", "lost")
    assert state.progress == {0: {"step": 5}}
    assert (state.alive, state.same_boot, state.finished, state.log) == (True, True, None, "")


def test_observe_reports_the_ranks_that_a_program_has_started(endpoint: Endpoint, ground: Ground) -> None:
    program = """
event("rank-started", rank=None, pid=1, start_time=1)
os.mkdir("progress"); open("progress/1.json", "w").write('{"step": 5}')
me["ranks"] = [0, 1]
ready(); time.sleep(1000)"""
    ground.start(endpoint, program)
    (state,) = endpoint.observe(str(ground.attempt), None)
    assert (state.ranks, state.progress) == ({0: "running", 1: "running"}, {1: {"step": 5}})
    (ground.folder / "progress/3.json").write_text(
        '{"step": 6}'
    )  # torchrun's c10d has numbered the nodes in another order
    (state,) = endpoint.observe(str(ground.attempt), None)
    assert (state.ranks, state.progress[3]) == ({1: "running", 3: "running"}, {"step": 6})


def test_observe_distinguishes_an_agent_that_finished_from_one_that_was_killed(
    endpoint: Endpoint, ground: Ground
) -> None:
    ground.start(endpoint, "event('agent-finished', state='DONE', exit=None); print('chatter'); ready()")
    (state,) = until(
        lambda: [s for s in endpoint.observe(str(ground.attempt), ["n0"]) if not s.alive], awaited="its end"
    )
    assert state.finished is not None
    assert (state.finished.state, state.finished.exit, state.log) == ("DONE", None, "")
    (ground.folder / "events.jsonl").unlink()
    (state,) = endpoint.observe(str(ground.attempt), ["n0"])
    assert (state.finished, state.log) == (None, "chatter\n")


def test_agent_that_ends_while_it_is_observed_has_its_last_event(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = ground.attempt / "n0" / "events.jsonl"
    events.parent.mkdir(parents=True)
    last = {"time": 1.0, "event": "agent-finished", "text": "", "state": "DONE", "exit": None}

    def end_agent(_record: object) -> bool:
        events.write_text(json.dumps(last) + "\n")
        return False

    monkeypatch.setattr(report, "is_alive", end_agent)
    assert report.observe_node("n0", str(events.parent))["finished"] is not None


def test_observe_reports_no_agent_if_none_was_started(endpoint: Endpoint, ground: Ground) -> None:
    (state,) = endpoint.observe(str(ground.attempt), ["n7"])
    assert (state.node, state.agent, state.alive, state.ranks) == ("n7", None, False, {})
    assert endpoint.observe(str(ground.attempt / "none"), None) == []


def test_zombie_is_not_alive(ground: Ground) -> None:
    child = ground.sleeper()
    fields = live_fields(child.pid)
    assert fields is not None
    record = {"pid": child.pid, "start_time": int(fields[19])}
    child.kill()
    until(lambda: not is_alive(record), awaited="the zombie")
    child.wait()


def test_rendezvous_port_is_held_while_the_endpoint_lives(endpoint: Endpoint) -> None:
    """A plain bind of the port fails; a store that sets SO_REUSEADDR, as torch's does, can listen on it."""
    address, port, host_id = endpoint.reserve(["127.0.0.7"], {}).split()
    assert (address, host_id) == ("127.0.0.7", endpoint.facts.host_id)
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("", int(port)))
    with socket.socket() as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", int(port)))
        store.listen()


def test_port_of_a_check_listens_until_it_is_stopped(endpoint: Endpoint) -> None:
    first = endpoint.listen(["127.0.0.7"], {}).split()
    address, port, host_id = endpoint.listen(["127.0.0.7"], {}).split()
    assert (address, host_id) == ("127.0.0.7", endpoint.facts.host_id)
    assert endpoint.connect_error(address, int(port)) == ""
    endpoint.stop_listening()
    endpoint.stop_listening()
    refused = [endpoint.connect_error(address, int(number)) for number in (first[1], port)]
    assert refused == ["connection refused"] * 2


def test_rendezvous_has_the_address_of_the_named_interface(endpoint: Endpoint) -> None:
    """Both a candidate and the interface are loopback, so a loopback address is accepted."""
    assert endpoint.reserve(["127.0.0.1"], {"GLOO_SOCKET_IFNAME": "lo"}).startswith("127.0.0.1 ")


def test_line_of_setup_that_takes_too_long_is_named_and_ended(endpoint: Endpoint, ground: Ground) -> None:
    ground.folder.mkdir(mode=0o700)
    script = ground.attempt / "setup.sh"
    script.write_text(render("setup.sh.j2", run_id="r", setup=("true", "sleep 1000"), by_slurm=False))
    with pytest.raises(NodeError, match=r"no agent.json after 0.2 s(?s:.)*setup: this line ended with 143: sleep 1000"):
        endpoint.start(["/bin/bash", str(script), "true"], str(ground.folder), wait_s=0.2)
