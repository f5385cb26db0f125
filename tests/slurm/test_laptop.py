"""orch submit from a host that reaches only the login node, on a cluster of hosts with unshared files."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.hosts import Hosts
from tests.grounds.slurm_hosts import SlurmHosts
from tests.until import until

COUNT = 'i=0; while [ "$i" -lt 4000 ]; do i=$((i+1)); echo "line $i of $RANK"; [ $((i%10)) != 0 ] || sleep 0.03; done'


@pytest.fixture
def slurm_hosts(hosts: Hosts) -> SlurmHosts:
    for node in hosts.hosts[1:]:
        hosts.block(hosts.controller, node)
    return SlurmHosts(hosts)


@pytest.fixture
def laptop(slurm_hosts: SlurmHosts, tmp_path: Path) -> Orch:
    """orch on a machine without Slurm, whose packets to compute nodes are dropped."""
    slurm_hosts.inventory(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "env").symlink_to("/usr/bin/env")
    return slurm_hosts.hosts.orch(tmp_path, PATH=str(tmp_path / "bin"))


@pytest.mark.extended
def test_run_on_hosts_that_only_the_login_node_reaches(laptop: Orch) -> None:
    """The nodes are checked in the job, and the variables that follow from their facts reach the ranks."""
    program = 'echo "up on $(hostname), head $MASTER_ADDR over $GLOO_SOCKET_IFNAME"'
    done = replace(laptop, checks_jobs=True)("submit", "-j", "2x1", "--", "sh", "-c", program)
    printed = sorted(re.findall(r"up on (h\d), head (\S+) over (\S+)$", done.stdout, re.MULTILINE))
    assert printed == [("h1", "10.77.0.2", "eth0"), ("h2", "10.77.0.2", "eth0")]
    assert laptop.status()["state"] == "DONE"


@pytest.mark.extended
@pytest.mark.slow
def test_no_line_is_lost_while_the_login_node_is_cut_off(laptop: Orch, slurm_hosts: SlurmHosts) -> None:
    with laptop.start("submit", "-j", "2x1", "--", "sh", "-c", COUNT) as watcher:
        assert watcher.stdout is not None
        assert watcher.stderr is not None
        lines: list[str] = []
        while "line 200 of 0" not in (line := watcher.stdout.readline()):
            assert line, "the log ended"
            lines.append(line)
        lines.append(line)
        hosts, login = slurm_hosts.hosts, slurm_hosts.login
        directions = ((hosts.controller, login), (login, hosts.controller))
        for source, target in directions:
            hosts.block(source, target)
        until(lambda: not slurm_hosts.jobs(), awaited="the job to end while the login node is cut off")
        for source, target in directions:
            hosts.unblock(source, target)
        text, stderr = "".join([*lines, watcher.stdout.read()]), watcher.stderr.read()
    assert watcher.returncode == 0, stderr
    for rank in (0, 1):
        printed = re.findall(rf"^\[h\d:{rank}\] (line .*)$", text, re.MULTILINE)
        assert printed == [f"line {number} of {rank}" for number in range(1, 4001)]


def test_files_and_logs_are_copied_over_ssh_if_every_host_has_its_own_workdir(
    laptop: Orch, slurm_hosts: SlurmHosts
) -> None:
    slurm_hosts.inventory(laptop.cwd, shared=False)
    done = laptop(
        "submit",
        "-j",
        "2x1",
        "--",
        "sh",
        "-c",
        'echo "up on $(hostname)$ORCH_SHARED_DIR"; echo no >&2; exit "${RANK}"',
        code=1,
    )
    assert "workdir ~/work is not shared with the nodes" in done.stderr
    assert sorted(re.findall(r"up on (h\d)$", done.stdout, re.MULTILINE)) == ["h1", "h2"]
    status = laptop.status()
    assert (status["state"], status["exit"]["rank"], status["exit"]["code"]) == ("FAILED", 1, 1)
    log = sorted(laptop("logs").stdout.splitlines())
    assert log == sorted(done.stdout.splitlines())
    elsewhere = replace(laptop, env={**laptop.env, "ORCH_HOME": str(laptop.cwd / "elsewhere")})
    found = elsewhere("logs", status["id"], "-i", "inventory.yaml")
    assert sorted(found.stdout.splitlines()) == log


@pytest.mark.extended
def test_run_without_a_shared_workdir_is_not_requeued_and_gc_removes_its_folders(
    laptop: Orch, slurm_hosts: SlurmHosts
) -> None:
    slurm_hosts.inventory(laptop.cwd, shared=False)
    run = laptop("submit", "--detach", "--nodes", "h1,h2", "--", "sh", "-c", "echo up; exit 99").stdout.strip()
    assert laptop("logs", "-f").stdout.count("up") == 2
    assert laptop.status()["state"] == "FAILED"
    folders = [host.path(slurm_hosts.hosts.home / "work" / "runs" / run) for host in slurm_hosts.hosts.hosts]
    assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [
        ["attempt-1"],
        *[[".claimed", "attempt-1", "code"]] * 2,
    ]
    laptop("gc", "--older-than", "0s")
    assert [folder.exists() for folder in folders] == [
        True,
        False,
        False,
    ]  # the login node keeps its folder for an hour, as no rank ran there


@pytest.mark.extended
def test_orch_on_the_login_node_submits_to_nodes_that_share_no_files_with_it(slurm_hosts: SlurmHosts) -> None:
    hosts, login = slurm_hosts.hosts, slurm_hosts.login
    folder = login.path(hosts.home / "job")
    folder.mkdir()
    slurm_hosts.inventory(folder, shared=False, config=hosts.write_ssh_config(folder / "ssh", IdentityFile="~/key"))
    shutil.copy(hosts.client_key, login.path(hosts.home / "key"))
    for path in (folder, login.path(hosts.home / "key")):
        os.chown(path, hosts.uid, hosts.gid)
    env = {"ORCH_HOME": f"{hosts.home}/.orch", "SLURM_CONF": str(slurm_hosts.conf), "PYTHONPATH": str(Path.cwd())}
    words = [f"{name}={value}" for name, value in (env | {"PATH": os.environ["PATH"]}).items()]
    orch = Orch(folder, prefix=(*login.enter_as_account(), "env", "-C", str(hosts.home / "job"), *words))
    done = orch("submit", "-j", "2x1", "--", "sh", "-c", 'echo "up on $(hostname), in $PWD"')
    assert sorted(re.findall(r"up on (h\d), in (\S+)$", done.stdout, re.MULTILINE)) == [
        (name, f"{hosts.home}/work/runs/{orch.status()['id']}/code") for name in ("h1", "h2")
    ]


@pytest.mark.extended
def test_unshared_workdir_is_named_as_the_cause_if_no_node_accepts_a_login(
    laptop: Orch, slurm_hosts: SlurmHosts
) -> None:
    hosts = slurm_hosts.hosts
    login_lines = [line for line in hosts.known_hosts.read_text("utf-8").splitlines() if line.startswith("h0,")]
    (laptop.cwd / "known").write_text("\n".join(login_lines) + "\n", "utf-8")
    config = hosts.write_ssh_config(laptop.cwd / "config", UserKnownHostsFile=str(laptop.cwd / "known"))
    slurm_hosts.inventory(laptop.cwd, shared=False, config=config)
    done = laptop("submit", "-j", "2x1", "--", "true", code=1)
    assert "the job's log is missing from ~/work/runs/" in done.stderr
    assert "on h0" in done.stderr
    assert (
        "workdir must be a folder that it shares with the nodes, or the nodes must accept a login by orch"
        in done.stderr
    )
