"""A standby: the processes that wait on a node for the next attempt, and the ranks that they fork. The program imports no torch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.endpoint.client import Endpoint
from orchestrator.node.agent.warm import NoFork, WarmParent
from orchestrator.node.protocol.agents import AgentStart
from orchestrator.node.system.machine import is_alive
from orchestrator.transports.local import LocalTransport
from tests.paths import ROOT
from tests.until import until

RUN = "here-20260102-030405-0abc"
PROGRAM = """
import os, sys
os.environ["SET_BY_PROGRAM"] = "1"
os.environ.setdefault("RANK", "7")
del os.environ["VALUE"]
if "ORCH_WARM" in os.environ:
    from trainer.runtime import warm
    warm.MODULES = ("extra",)
    warm.become_rank(int(os.environ["ORCH_WARM"]))
import ctypes, random, resource, signal, json
death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death), 0, 0, 0)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
report = {
    "env": dict(os.environ), "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "killed_by": death.value,
    "command": open("/proc/self/cmdline").read(), "leads_group": os.getpgid(0) == os.getpid(),
    "in_agents_session": os.getsid(0) == os.getppid(), "umask": os.umask(0o22), "cpus": sorted(os.sched_getaffinity(0)),
    "limits": [resource.getrlimit(getattr(resource, name)) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")],
    "open": sorted(name for name in os.listdir("/proc/self/fd") if int(name) < 10), "stdin": os.readlink("/proc/self/fd/0"),
    "nice": stat[16], "threads": status["Threads"].strip(),
    **{name: status[name].strip() for name in ("Name", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs")},
}
print(json.dumps({"pid": os.getpid(), "random": random.random(), "report": report}), flush=True)
signal.pause()
"""
LATE = (
    "MASTER_PORT",
    "TORCHELASTIC_ERROR_FILE",
    "ORCH_ATTEMPT",
    "ORCH_HOSTFILE",
    "PWD",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
)


class Node:
    """The folders of a run on a node with two ranks, and the requests for its attempts."""

    def __init__(self, root: Path, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.run = root / RUN
        self.bundle = root / "bundle"
        (self.bundle / "code").mkdir(parents=True)
        (self.bundle / "code" / "extra.py").write_text("")
        for package in ("orchestrator", "trainer"):
            (self.bundle / package).symlink_to(ROOT / package)

    def folder(self, attempt: int) -> Path:
        return self.run / f"attempt-{attempt}" / "n0"

    def agent(self, attempt: int) -> AgentStart:
        """Write the job of an attempt; return the values for the agent."""
        folder = self.folder(attempt)
        folder.mkdir(parents=True, mode=0o700)
        program = {"python": True, "args": ["-u", "-c", PROGRAM], "pythonpath": "", "cwd": None}
        job = {
            "version": 1,
            "run_id": RUN,
            "attempt": attempt,
            "run_dir": str(self.run),
            "bundle_dir": str(self.bundle),
        }
        job |= {"nodes": ["n0"], "addresses": ["127.0.0.1"], "ranks": [2], "program": program, "grace_s": 0.0}
        path = folder.parent / "job.json"
        path.write_text(json.dumps(job))
        return {
            "python": sys.executable,
            "python_folder": "",
            "env": {"VALUE": "\udcff'$x"},  # any bytes
            "defaults": {},
            "bundle": str(self.bundle),
            "job": str(path),
            "node": "n0",
            "node_rank": 0,
            "rendezvous": self.endpoint.reserve(["127.0.0.1"], {}),
        }

    def start(self, attempt: int, agent: AgentStart) -> int:
        """Start an attempt; return the pid of the agent."""
        return self.endpoint.start(["/bin/false"], str(self.folder(attempt)), agent=agent).pid

    def stand_by(self, agent: AgentStart) -> dict[str, Any]:
        """Start a standby and wait until it can be used; return its record."""
        self.endpoint.stand_by(agent, str(self.folder(1)))
        return until(lambda: self.record() if self.record().get("ready") else None, awaited=self.log)

    def record(self) -> dict[str, Any]:
        file = self.folder(1) / "standby.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def log(self) -> str:
        return f"the standby; agent.log: {(self.folder(1) / 'agent.log').read_text()}"

    def ranks(self, attempt: int) -> list[dict[str, Any]]:
        """Wait for the reports of both ranks."""
        files = [self.folder(attempt) / f"rank-{rank}.out" for rank in (0, 1)]
        until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files), awaited="the ranks")
        return [json.loads(file.read_text()) for file in files]

    def texts(self, attempt: int) -> list[str]:
        return [json.loads(line)["text"] for line in (self.folder(attempt) / "events.jsonl").read_text().splitlines()]

    def processes(self) -> list[int]:
        """The processes that are found by the run's variables."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and f"ORCH_RUN_DIR={self.run}".encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        yield endpoint


@pytest.fixture
def node(tmp_path: Path, endpoint: Endpoint) -> Iterator[Node]:
    node = Node(tmp_path, endpoint)
    yield node
    for pid in node.processes():
        with suppress(ProcessLookupError):  # the agent ends the ranks with the first of them
            os.kill(pid, signal.SIGKILL)
    until(lambda: not node.processes(), awaited="the end of the ranks")


def test_forked_rank_differs_in_nothing_from_one_that_is_started_by_exec(node: Node) -> None:
    """Its environment, streams, limits, signals, group, session and parent; and it is found and ended by the same rules."""
    first = node.agent(1)
    node.start(1, first)
    started = node.ranks(1)
    standby = node.stand_by(first)
    node.endpoint.stop(str(node.folder(1).parent), ["n0"], grace_s=0.0, keeps_standby=True)
    assert is_alive(standby)
    agent_pid = node.start(2, node.agent(2))
    forked = node.ranks(2)
    assert "the ranks are forked from a process that has imported the trainer" in node.texts(2)
    assert not node.record()
    for rank_started, rank_forked in zip(started, forked, strict=True):
        for report in (rank_started["report"], rank_forked["report"]):
            assert all(report["env"].pop(name) for name in LATE)
        assert rank_forked["report"] == rank_started["report"]
        assert rank_forked["report"]["killed_by"] == signal.SIGKILL
        assert rank_forked["report"]["in_agents_session"]
    assert len({rank["random"] for rank in (*started, *forked)}) == 4
    pids = [rank["pid"] for rank in forked]
    assert sorted(node.processes()) == sorted(
        pids
    )  # also by the environment that /proc shows; and their parent has ended
    assert f"ORCH_ATTEMPT={2}".encode() in Path(f"/proc/{pids[0]}/environ").read_bytes().split(b"\0")
    os.kill(agent_pid, signal.SIGKILL)
    until(lambda: not node.processes(), awaited="the end of the ranks of a killed agent")


def _close(node: Node) -> None:
    node.endpoint.close()


def _stop_elsewhere(node: Node) -> None:
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        endpoint.stop(str(node.folder(1).parent), ["n0"], grace_s=0.0)
        assert not node.processes()  # before the reply


def _end(node: Node) -> None:
    node.endpoint.stand_by(None, str(node.folder(1)))
    assert not node.processes()


def _kill_endpoint(node: Node) -> None:
    os.kill(node.endpoint.facts.pid, signal.SIGKILL)


def _terminate_guard(node: Node) -> None:
    os.kill(node.record()["pid"], signal.SIGTERM)


@pytest.mark.parametrize("act", [_close, _stop_elsewhere, _end, _kill_endpoint, _terminate_guard])
def test_standby_ends_with_the_connection_and_with_the_run(node: Node, act: Callable[[Node], None]) -> None:
    record = node.stand_by(node.agent(1))
    (parent,) = node.processes()
    assert Path(f"/proc/{parent}/comm").read_text() == "orch-warm\n"
    act(node)
    until(lambda: not node.processes() and not is_alive(record), awaited="the end of the standby")


def test_standby_of_a_lost_connection_ends_with_the_attempt_although_another_one_is_to_follow(node: Node) -> None:
    """Nothing can start it any more, and its endpoint ends only once it finds its connection lost."""
    record = node.stand_by(node.agent(1))
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as later:
        later.stop(str(node.folder(1).parent), ["n0"], grace_s=0.0, keeps_standby=True)
    assert not is_alive(record)
    assert not node.processes()
    assert not node.record()


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "started threads, 1 ",
        ),
        ("file = open('/dev/zero')", "opened /dev/zero"),
        ("import os; os._exit(3)", "the process to be forked has ended"),
    ],
)
def test_ranks_are_started_by_exec_if_their_modules_forbid_a_fork(node: Node, module: str, reason: str) -> None:
    (node.bundle / "code" / "extra.py").write_text(module)
    node.endpoint.stand_by(node.agent(1), str(node.folder(1)))
    until(lambda: node.record() and not _children(node.record()["pid"]), awaited="the end of the standby's agent")
    node.start(2, node.agent(2))
    node.ranks(2)
    log = (node.folder(2) / "agent.log").read_text()
    assert re.search(f"the ranks are not forked but started by exec: .*{reason}", log), log
    assert not any("are forked" in text for text in node.texts(2))


def _children(pid: int) -> list[str]:
    """The children that have not ended."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in pids if is_alive({"pid": int(child), "start_time": _start_time(child)})]


def _start_time(pid: str) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.mark.processes
def test_agent_does_not_wait_for_a_process_that_is_stopped() -> None:
    script = (
        "from orchestrator.node.agent import warm; warm.FORK_S = 0.05; parent = warm.WarmParent([], '/', {}, ())\n"
        "parent.link, parent_end = warm.socketpair()\n"
        "try: parent.fork_ranks([{}], [(1, 2)], [])\n"
        "except warm.NoFork as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert "timed out" in done.stdout or "timeout" in done.stdout


def test_ranks_are_started_by_exec_if_a_variable_has_changed(node: Node) -> None:
    node.stand_by(node.agent(1))
    agent = node.agent(2)
    agent["env"]["LATER"] = "1"
    node.start(2, agent)
    assert node.ranks(2)[1]["report"]["env"]["LATER"] == "1"
    assert "the ranks are not forked but started by exec: LATER has changed" in node.texts(2)


@pytest.mark.parametrize(
    ("command", "environment", "cpus", "reason"),
    [
        (["python"], {b"A": b"1", b"RANK": b"3"}, [], ""),
        (["python"], {b"A": b"1", b"OMP_NUM_THREADS": b"1"}, [{0}], "OMP_NUM_THREADS has changed"),
        (["python"], {b"A": b"1"}, [{0}], "they are bound to CPUs, but OMP_NUM_THREADS is not set"),
        (["python"], {}, [], "A has changed"),
        (["python3"], {b"A": b"1"}, [], "the command or its folder has changed"),
    ],
)
def test_ranks_are_forked_if_they_would_start_as_their_parent_did(
    command: list[str], environment: dict[bytes, bytes], cpus: list[set[int]], reason: str
) -> None:
    parent = WarmParent(["python"], "/", {b"A": b"1", b"RANK": b"0"}, {b"RANK"})
    if not reason:
        parent.check(command, "/", environment, cpus)
        return
    with pytest.raises(NoFork, match=reason):
        parent.check(command, "/", environment, cpus)
