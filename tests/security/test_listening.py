"""S13: orch opens no listening socket on a node, and the rendezvous listens only at the address that the ranks use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grounds.components import program
from tests.grounds.hosts import Hosts
from tests.grounds.machines import Machine
from tests.until import until

SSHD = "0.0.0.0:22"
SMALL = ("model.layers=1", "model.width=32", "model.heads=2", "model.context=32", "report=")


def _listening(machine: Machine) -> set[str]:
    """Address and port of every TCP socket that listens on the machine."""
    lines = machine.do(program("ss"), "--listening", "--tcp", "--numeric", "--no-header").splitlines()
    return {line.split()[3] for line in lines}


def test_orch_opens_no_listening_socket_on_a_node_or_here(hosts: Hosts, tmp_path: Path) -> None:
    """
    While the run is supervised and followed and its rendezvous port is held, only the host's own sshd listens.

    The check before the run has listened on a port of h0, and has closed it.
    """
    hosts.inventory(tmp_path)
    orch = hosts.orch(tmp_path)
    with orch.start("ssh-launch", "--", "sh", "-c", "echo up; exec sleep 1000") as following:
        assert following.stdout is not None
        for _ in range(3):
            until(lambda: "] up" in following.stdout.readline(), awaited="a rank")  # type: ignore[union-attr]
        [record] = orch.records()
        until(lambda: orch.supervisor(record["id"]), awaited="the supervisor")
        assert [_listening(host) for host in hosts.hosts] == [{SSHD}] * 3
        assert _listening(hosts.controller) == set()
        orch("stop")
        following.communicate(timeout=60)


@pytest.mark.train
def test_trainer_listens_only_at_the_address_of_the_rendezvous(hosts: Hosts, tmp_path: Path) -> None:
    """The trainer's store: torch's own, made from MASTER_ADDR, listens on every interface; see docs/ssh.md."""
    hosts.inventory(tmp_path, nodes=["h0", "h1"])
    orch = hosts.orch(tmp_path)
    run = orch("ssh-launch", "--detach", "steps=1000000", *SMALL).stdout.strip()
    until(lambda: "ranks ready" in "".join(hosts.outputs(orch, run)), awaited="the group")
    for host in hosts.hosts[:2]:
        found = _listening(host) - {SSHD}
        assert {address.rpartition(":")[0] for address in found} == {host.address}
    [agent] = [node["agent"] for node in orch.status(run)["nodes"] if node["node"] == "h0"]
    address, port, _ = agent["rendezvous"].split()
    assert f"{address}:{port}" in _listening(hosts[0])
    orch("stop", run)
