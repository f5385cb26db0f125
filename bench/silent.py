"""The time that commands take when some nodes do not answer: a launch, `orch status`, and the end of `orch logs --follow`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ruamel.yaml import YAML

from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace
from orchestrator.errors import NodeError
from tests.grounds.cli import Orch
from tests.grounds.ports import silent_port
from tests.grounds.sshd import Farm, open_farm
from tests.until import until

STATUS_NODES, FOLLOWED_NODES, SILENT_NODES = 16, 32, 8
ANSWERED, STUCK, NONE_SILENT = "orch status", "orch status, one node stuck", "all nodes answer"
SILENT = f"{SILENT_NODES} nodes silent"
PRINTED, ENDED = "to the end", "after Ctrl-C"
REFUSED_NODES, CONNECT_S = 64, 10.0
REFUSED = "orch ssh-launch, every eighth node silent"

STATUS_DESCRIPTION = f"""\
A sleeping rank on each of {STATUS_NODES} loopback addresses of one sshd. *One node stuck*: its login hangs. `orch status` shows the other
{STATUS_NODES - 1} nodes and names the stuck one."""
FOLLOW_DESCRIPTION = f"""\
`orch logs --follow` of {FOLLOWED_NODES} such nodes gets SIGINT. *{SILENT}*: their endpoints are stopped (SIGSTOP), so their connections are open and
mute."""

REFUSED_DESCRIPTION = f"""\
`orch ssh-launch` on {REFUSED_NODES} loopback addresses of one sshd, of which every eighth accepts connections and sends nothing: nothing is
started, and one message names the silent nodes. `ssh.connect_timeout_s` is {CONNECT_S:g}."""


def measure_refused(workspace: Workspace, *, repetitions: int) -> Measure:
    """Time the launch that is refused because nodes are silent."""
    with open_farm() as farm, silent_port() as port:
        inventory = farm.inventory(workspace.folder, nodes=REFUSED_NODES)
        content = YAML(typ="safe").load(inventory)
        content["ssh"]["connect_timeout_s"] = CONNECT_S
        for node in content["nodes"][1::8]:
            node["port"] = port
        YAML(typ="safe").dump(content, inventory)
        orch = Orch(workspace.folder)

        def run() -> Mapping[str, float]:
            begun = time.monotonic()
            done = orch("ssh-launch", "--", "sleep", "1000", code=NodeError.exit_code)
            figures = {PRINTED: time.monotonic() - begun}
            assert f"(8 of {REFUSED_NODES})" in done.stderr, done.stderr
            until(lambda: not farm.processes(), deadline_s=60, awaited="the nodes' processes to end")
            return figures

        series = run_rounds([Contestant(REFUSED, run)], repetitions=repetitions)
    targets = (Target(REFUSED, PRINTED, CONNECT_S + 2, worst=True),)
    return Measure("Launch with silent nodes", REFUSED_DESCRIPTION, REFUSED, (PRINTED,), targets, series)


def measure_status(workspace: Workspace, *, repetitions: int) -> Measure:
    """Time `orch status` with and without a stuck node."""
    with open_farm() as farm:
        config = workspace.folder / "ssh_config"
        answering = farm.ssh_config.read_text("utf-8")
        stuck = f"Host {farm.addresses(STATUS_NODES)[7]}\n  ProxyCommand sleep 1000\n{answering}"
        farm.inventory(workspace.folder, nodes=STATUS_NODES, ssh={"config": str(config)})
        config.write_text(answering, "utf-8")
        orch = Orch(workspace.folder)

        def run(text: str, code: int) -> Mapping[str, float]:
            config.write_text(text, "utf-8")
            begun = time.monotonic()
            done = orch("status", code=code)
            figures = {PRINTED: time.monotonic() - begun}
            assert done.stdout.count("running") == STATUS_NODES - (code > 0), done.stdout
            return figures

        with _sleeping(orch):
            contestants = [
                Contestant(ANSWERED, lambda: run(answering, 0)),
                Contestant(STUCK, lambda: run(stuck, 4)),
            ]
            series = run_rounds(contestants, repetitions=repetitions)
            config.write_text(answering, "utf-8")
    targets = (Target(STUCK, PRINTED, 6.0, worst=True),)
    return Measure("Status with a stuck node", STATUS_DESCRIPTION, ANSWERED, (PRINTED,), targets, series)


def measure_follow(workspace: Workspace, *, repetitions: int) -> Measure:
    """Time the end of `orch logs --follow` by Ctrl-C with and without silent nodes."""
    with open_farm() as farm:
        farm.inventory(workspace.folder, nodes=FOLLOWED_NODES)
        orch = Orch(workspace.folder)
        with _sleeping(orch) as run_id:
            contestants = [
                Contestant(NONE_SILENT, lambda: _interrupted(farm, orch, run_id, silent=0)),
                Contestant(SILENT, lambda: _interrupted(farm, orch, run_id, silent=SILENT_NODES)),
            ]
            series = run_rounds(contestants, repetitions=repetitions)
    targets = (Target(SILENT, ENDED, 0.5, worst=True),)
    return Measure("Ctrl-C with silent nodes", FOLLOW_DESCRIPTION, NONE_SILENT, (ENDED,), targets, series)


@contextmanager
def _sleeping(orch: Orch) -> Iterator[str]:
    """A run of sleeping ranks without a supervisor, whose connections would be among the counted ones."""
    run_id = orch("ssh-launch", "--detach", "--", "sh", "-c", "echo up; exec sleep 1000").stdout.strip()
    orch.kill_supervisor(run_id)
    try:
        yield run_id
    finally:
        orch("stop", run_id)


def _interrupted(farm: Farm, orch: Orch, run_id: str, *, silent: int) -> Mapping[str, float]:
    before = farm.processes().keys()

    def endpoints() -> list[int]:
        return [pid for pid, name in farm.processes().items() if pid not in before and name.startswith("python")]

    with orch.start("logs", "--follow", run_id) as follower:
        assert follower.stdout is not None
        shown = 0
        while shown < FOLLOWED_NODES:
            shown += follower.stdout.readline().rstrip().endswith("] up")
        until(lambda: len(endpoints()) == FOLLOWED_NODES, awaited="an endpoint on each node")
        stopped = endpoints()[:silent]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        os.killpg(follower.pid, signal.SIGINT)
        follower.wait()
        figures = {ENDED: time.monotonic() - begun}
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not endpoints(), deadline_s=30, awaited="the endpoints to end")
    return figures
