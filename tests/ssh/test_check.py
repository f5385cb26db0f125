"""`orch check` and the check of a launch on hosts of which each has another fault."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grounds.hosts import Host, Hosts

pytestmark = pytest.mark.processes


@contextlib.contextmanager
def _mounted(host: Host, *options: str) -> Iterator[None]:
    """Mount something on this host only; the last of `options` is the mount point."""
    host.do("mount", *options)
    try:
        yield
    finally:
        host.do("umount", "--lazy", options[-1])


@contextlib.contextmanager
def _package(hosts: Hosts, version: str) -> Iterator[Path]:
    """Install an empty package for the hosts' Python; returns the file that has its version."""
    [packages] = hosts.python.parent.parent.glob("lib/python3.*/site-packages")
    metadata = packages / "demo.egg-info"
    metadata.mkdir(mode=0o755)
    (metadata / "PKG-INFO").write_text(f"Name: demo\nVersion: {version}\n")
    try:
        yield metadata / "PKG-INFO"
    finally:
        (metadata / "PKG-INFO").unlink()
        metadata.rmdir()


def test_each_fault_is_named_with_its_node_and_refuses_a_launch(hosts: Hosts, tmp_path: Path) -> None:
    h0, h1, h2 = hosts.hosts
    folder = hosts.folder / secrets.token_hex(4)  # which the account can read, unlike tmp_path
    folder.mkdir(mode=0o755)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "train.py").chmod(0o644)
    work = hosts.home / "work"
    for host in hosts.hosts:
        host.path(work).mkdir()
        os.chown(host.path(work), hosts.uid, hosts.gid)
    inventory = hosts.inventory(tmp_path, defaults={"workdir": str(work)})
    few_files = folder / "python-with-256-files"
    few_files.write_text(f'#!/bin/sh\nulimit -n 256; exec {hosts.python} "$@"\n')
    few_files.chmod(0o755)
    limited = inventory.with_name("limited.yaml")
    limited.write_text(inventory.read_text().replace("name: h1\n", f"name: h1\n  python: {few_files}\n"))
    orch = hosts.orch(folder, ORCH_HOME=str(tmp_path / "home"), ORCH_INVENTORY=str(inventory))

    changed = {name: hosts.folder / f"{secrets.token_hex(4)}-{name}" for name in ("hosts", "train.py", "PKG-INFO")}
    changed["hosts"].write_text(f"127.0.0.1 localhost h2\n{h0.address} h0\n{h1.address} h1\n")
    changed["train.py"].write_text("print('hallo')\n")
    changed["PKG-INFO"].write_text("Name: demo\nVersion: 1.1\n")

    assert "no finding" in orch("check").stdout
    with contextlib.ExitStack() as faults:
        package = faults.enter_context(_package(hosts, "1.0"))
        faults.enter_context(_mounted(h1, "--bind", str(changed["hosts"]), "/etc/hosts"))
        faults.enter_context(_mounted(h2, "--bind", str(changed["train.py"]), str(folder / "train.py")))
        faults.enter_context(_mounted(h2, "--bind", str(changed["PKG-INFO"]), str(package)))
        faults.enter_context(
            _mounted(h0, "-t", "tmpfs", "-o", f"size=64m,uid={hosts.uid},mode=700", "tmpfs", str(work))
        )
        orch.env["ORCH_INVENTORY"] = str(limited)
        hosts.block(h2, h0)
        h1.do(
            "ip", "address", "add", f"{h0.address}/32", "dev", "lo"
        )  # refuses connections to h0, as a firewall that rejects
        faults.callback(h1.do, "ip", "address", "delete", f"{h0.address}/32", "dev", "lo")
        done = orch("check", "--json", code=3)
        found = {
            (finding["check"], *finding["nodes"]): finding["text"] for finding in json.loads(done.stdout)["findings"]
        }
        refused = orch("ssh-launch", "--", "train.py", code=3).stderr

    assert found == {
        ("names", "h1"): "h2 resolves to the loopback address 127.0.0.1: it would be taken for this node",
        ("port", "h2"): f"h0 at {h0.address} cannot be reached at a rendezvous port: no answer within 3 s",
        (
            "port",
            "h1",
        ): f"h0 at {h0.address} cannot be reached at a rendezvous port: connection refused, although h0 listens: "
        "a firewall rejects it, or the address is another machine's there",
        ("disk", "h0"): found["disk", "h0"],
        ("nofile", "h1"): "a process may open 256 files; data loaders and NCCL need 4096",
        ("packages", "h2"): "packages differ: demo 1.1 on h2; 1.0 on the other 2",
        ("code", "h2"): found["code", "h2"],
    }
    assert found["disk", "h0"].startswith("workdir is full: ")
    assert found["code", "h2"].startswith("the files of the code differ: files ")
    assert "orch: error: the check of the nodes failed, so nothing was started" in refused
    for text in ("disk: h0: workdir is full", "nofile: h1: a process", "port: h1: h0 at", "port: h2: h0 at"):
        assert text in refused
    assert not list(h1.path(work).glob("runs/*/attempt-1/h1/agent.json"))
    [record] = orch.records()
    assert record["state"] == "FAILED"
    assert "hello" in orch("ssh-launch", "--no-check", "--", "train.py").stdout
