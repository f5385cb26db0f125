"""orch submit from a host of its own that reaches only the login node, on a cluster of hosts with files of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.hosts import Hosts
from tests.grounds.slurm_hosts import SlurmHosts
from tests.until import until

COUNT = 'i=0; while [ "$i" -lt 4000 ]; do i=$((i+1)); echo "line $i of $RANK"; sleep 0.002; done'


@pytest.fixture
def slurm_hosts(hosts: Hosts) -> SlurmHosts:
    for node in hosts.hosts[1:]:
        hosts.block(hosts.controller, node)
    return SlurmHosts(hosts)


@pytest.fixture
def laptop(slurm_hosts: SlurmHosts, tmp_path: Path) -> Orch:
    """orch on a machine without Slurm, whose packets to compute nodes get lost."""
    slurm_hosts.inventory(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "env").symlink_to("/usr/bin/env")
    return slurm_hosts.hosts.orch(tmp_path, PATH=str(tmp_path / "bin"))


def test_run_on_hosts_that_only_the_login_node_reaches(laptop: Orch) -> None:
    done = laptop("submit", "-j", "2x1", "--", "sh", "-c", 'echo "up on $(hostname), head $MASTER_ADDR"')
    said = sorted(re.findall(r"up on (h\d), head (\S+)$", done.stdout, re.MULTILINE))
    assert said == [("h1", "10.77.0.2"), ("h2", "10.77.0.2")]
    assert laptop.status()["state"] == "DONE"


def test_line_to_the_login_node_that_is_silent_for_a_while_costs_no_line(laptop: Orch, slurm_hosts: SlurmHosts) -> None:
    with laptop.start("submit", "-j", "2x1", "--", "sh", "-c", COUNT) as watcher:
        assert watcher.stdout is not None
        assert watcher.stderr is not None
        seen: list[str] = []
        while "line 200 of 0" not in (line := watcher.stdout.readline()):
            assert line, "the log ended"
            seen.append(line)
        seen.append(line)
        hosts, login = slurm_hosts.hosts, slurm_hosts.login
        ways = ((hosts.controller, login), (login, hosts.controller))
        for way in ways:
            hosts.block(*way)
        until(lambda: not slurm_hosts.jobs(), what="the job to end unheard", deadline_s=60)
        for way in ways:
            hosts.unblock(*way)
        text, said = "".join([*seen, watcher.stdout.read()]), watcher.stderr.read()
    assert watcher.returncode == 0, said
    for rank in (0, 1):
        told = re.findall(rf"^\[h\d:{rank}\] (line .*)$", text, re.MULTILINE)
        assert told == [f"line {number} of {rank}" for number in range(1, 4001)]


def test_workdir_that_every_host_has_for_itself_is_named_as_the_cause(laptop: Orch, slurm_hosts: SlurmHosts) -> None:
    slurm_hosts.inventory(laptop.cwd, shared=False)
    done = laptop("submit", "-j", "2x1", "--", "true", code=1)
    assert "nothing of the job shows in ~/work/runs/" in done.stderr
    assert "on h0" in done.stderr
    assert "workdir has to be a folder that it shares with the nodes" in done.stderr
