"""The time of `orch check` on one node and on many."""

from __future__ import annotations

from collections.abc import Mapping

from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace
from tests.grounds.sshd import open_farm

TIME, NODES = "orch check", 64
SINGLE, MANY = "1 node", f"{NODES} nodes"

DESCRIPTION = f"""\
`orch check` of {NODES} loopback addresses of one sshd, and of one of them: from the command to its end, with the login to each node and its
facts. The nodes have separate working folders, so each is probed, and all logins and probes share the processors of this machine; on
a cluster the nodes do most of that in parallel."""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    with open_farm() as farm:
        inventories = {SINGLE: farm.inventory(workspace.folder, nodes=1).rename(workspace.folder / "one.yaml")}
        inventories[MANY] = farm.inventory(workspace.folder, nodes=NODES)

        def contestant(name: str) -> Contestant:
            command = [str(workspace.orch), "check", "-i", str(inventories[name])]

            def run() -> Mapping[str, float]:
                return {TIME: time_job(Job([command], cwd=workspace.folder, env=workspace.env)).end}

            return Contestant(name, run)

        series = run_rounds([contestant(SINGLE), contestant(MANY)], repetitions=repetitions)
    targets = (Target(MANY, TIME, 10.0), Target(MANY, TIME, 3.0, baseline=SINGLE))
    return Measure("Check", DESCRIPTION, SINGLE, (TIME,), targets, series)
