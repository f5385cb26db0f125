"""An endpoint starts an agent as node.sh does, but in a fork of itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.code import bundle as bundles
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.node.endpoint.fork import AgentFork
from orchestrator.node.protocol.agents import AgentStart
from orchestrator.node.run.events import Kind
from orchestrator.node.run.ownership import LOADER, agent_owner, proc_strings
from orchestrator.plan.files import agent_start, start_command
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import Program, Request
from orchestrator.transports.local import LocalTransport
from tests.grounds.marked import guards_of
from tests.launchers.starting import push_and_start
from tests.until import until

RUN = "here-20260102-030405-0abc"
NOT_COMPARED = {"SHLVL", "_", "OLDPWD", "PYTEST_CURRENT_TEST"}  # a shell may set the first three
STATUS = ("Umask", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Cpus_allowed", "Threads", "TracerPid")


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[DirectLauncher]:
    bundle = bundles.build(trainer=False, code=None)
    launcher = DirectLauncher(_plan(tmp_path, bundle.digest), lambda node: LocalTransport(node.name))
    try:
        push_and_start(launcher, bundle)
        yield launcher
    finally:
        launcher.stop(None, grace_s=0.0)
        launcher.close()


def _plan(folder: Path, digest: str, python: str = sys.executable) -> LaunchPlan:
    env = {"TEXT": "two\nlines, 'quotes' and ümläuts", "PATH": "/nowhere:/usr/bin:/bin"}
    node = Node(name="n0", python=python, workdir=str(folder), env=env)
    request = Request("ssh", Program("executable", ("sleep", "1000")))
    return make_plan(Inventory(name="here", transport="local", nodes=(node,)), request, run_id=RUN, bundle=digest)


def _state(pid: int) -> dict[str, object]:
    """The properties of a process that it has from the one that started it."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    links = {}
    for link in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a file that the agent reads now and then
            links[link.name] = str(link.readlink())
    return {
        **{name: status[name] for name in STATUS},
        "files": [links[standard] for standard in "012"],
        "channels": sorted(target.partition(":")[0] for target in links.values() if not target.startswith("/")),
        "name": (process / "comm").read_text(),
        "cwd": str((process / "cwd").readlink()),
        "oom": (process / "oom_score_adj").read_text(),
        "limits": (process / "limits").read_text(),
        "leads": os.getsid(pid) == os.getpgid(pid) == pid,
    }


def _processes(folder: Path) -> list[dict[str, object]]:
    """The guard, the agent and the rank, and the environment of the rank."""

    def found() -> list[int]:
        for guard, agent in guards_of(RUN).items():
            children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
            if children and Kind.RANK_STARTED in (folder / "events.jsonl").read_text():
                return [guard, agent, int(children[0])]
        return []

    guard, agent, rank = until(found, awaited="the rank")
    variables = dict(word.partition("=")[::2] for word in proc_strings(rank, "environ"))
    environment: dict[str, object] = {name: value for name, value in variables.items() if name not in NOT_COMPARED}
    assert agent_owner(guard) == agent_owner(agent)
    return [_state(guard), _state(agent), _state(rank), environment]


@pytest.mark.processes
def test_agent_forked_by_an_endpoint_is_that_of_its_node_script(launcher: DirectLauncher, tmp_path: Path) -> None:
    """Guard, agent and rank, started by the endpoint and by hand, have the same environment, signals, files and limits."""
    plan = launcher.plan
    folder = tmp_path / "runs" / RUN / "attempt-1" / "n0"
    forked = _processes(folder)
    [(guard, agent)] = guards_of(RUN).items()
    assert {LOADER in proc_strings(pid, "cmdline") for pid in (guard, agent)} == {True}
    assert agent_owner(agent) == (RUN, "1", "n0", str(tmp_path / "runs" / RUN))
    record = launcher.reach(plan.head).observe(str(folder.parent), ["n0"])[0].agent
    assert record is not None
    (folder / "agent.json").unlink()  # what they carry identifies them
    (folder / "events.jsonl").unlink()
    [stopped] = launcher.reach(plan.head).stop(str(folder.parent), ["n0"], grace_s=5.0)
    assert {guard, agent} & {sent["pid"] for sent in stopped.signalled}  # the signal to one may end the other
    assert not guards_of(RUN)
    command = start_command(plan, plan.head, record.rendezvous)
    with (folder / "agent.log").open("a") as log:
        by_hand = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        assert _processes(folder) == forked
        launcher.stop(None, grace_s=5.0)
        assert by_hand.wait() != 0


def test_endpoint_forks_no_agent_for_another_python_than_its_own(tmp_path: Path) -> None:
    script = tmp_path / "python3"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)

    def may_fork(python: str, **changed: object) -> bool:
        plan = _plan(tmp_path, "b", python)
        values: AgentStart = {**agent_start(plan, plan.head, "127.0.0.1 1 x"), **changed}  # type: ignore[typeddict-item]
        return AgentFork(values, str(tmp_path)).is_possible()

    name = Path(sys.executable).name
    assert may_fork(sys.executable)
    assert may_fork(name, env={"PATH": f"{tmp_path}/none:{Path(sys.executable).parent}"})
    assert not may_fork(str(script))  # such as a script that starts Python
    assert not may_fork(name, env={"PATH": str(tmp_path)})
    assert not may_fork(name, python_folder=str(tmp_path), env={}) or name != "python3"
