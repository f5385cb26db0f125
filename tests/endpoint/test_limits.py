"""Limits of this machine that are too low for the nodes of a run: said before anything starts, with the number needed."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from orchestrator.endpoint import access
from orchestrator.endpoint.access import count_gateways, require_limits
from orchestrator.errors import OrchError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers import launcher_for
from orchestrator.plan.make import make_plan
from orchestrator.run import Program, Request
from tests.grounds.cli import Orch
from tests.grounds.inventories import write_inventory


@pytest.mark.processes
def test_too_few_open_files_refuse_a_launch_before_anything_starts(tmp_path: Path) -> None:
    nodes = [{"name": f"n{index}", "address": "127.0.0.1", "port": 1} for index in range(1024)]
    write_inventory(
        tmp_path / "inventory.yaml", {"name": "many", "accelerator": "cpu", "devices": 1, "nodes": nodes}, {}
    )
    orch = Orch(tmp_path, prefix=("sh", "-c", 'ulimit -n 256; exec "$@"', "sh"))
    stderr = orch("ssh-launch", "--", "true", code=4).stderr
    assert "1024 nodes need 1088 open files, and the limit is 256" in stderr
    assert "the hard limit (`ulimit -Hn`) is too low" in stderr
    assert not (orch.home / "runs").exists()


@pytest.mark.processes
@pytest.mark.parametrize("words", [("ssh-launch", "--", "true"), ("ladder", "--", "true")])
def test_limit_of_the_size_of_files_refuses_a_launch_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The owner of a run waits until the record is written, as on a full disk: it would never end."""
    write_inventory(tmp_path / "inventory.yaml", {"name": "here", "transport": "local", "nodes": [{"name": "n0"}]}, {})
    # Python cuts what it compiles at the limit too, and keeps it
    orch = Orch(tmp_path, prefix=("bash", "-c", 'ulimit -f 7; PYTHONDONTWRITEBYTECODE=1 exec "$@"', "sh"))
    stderr = orch(*words, code=4).stderr
    assert "files may have 7 KiB here, too little for the record of a run" in stderr
    assert "next: raise the limit: ulimit -f unlimited" in stderr
    assert not (orch.home / "runs").exists()


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[int, int]]:
    """Limits of an ordinary user, 200 threads; the test may change them."""
    limits = {resource.RLIMIT_NPROC: (200, 200), resource.RLIMIT_NOFILE: (1 << 16, 1 << 16)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(os, "geteuid", os.getuid if os.getuid() else lambda: 65534)
    return limits


def test_too_few_threads_are_refused_with_the_number_needed(limits: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(OrchError, match="1024 nodes need 3122 threads, and of the 200 processes and threads") as caught:
        require_limits(1024)
    assert "the hard limit (`ulimit -Hu`) is too low" in caught.value.hint
    with pytest.raises(OrchError, match="1024 nodes need 3112 threads"):
        require_limits(1024, connected=10)
    limits[resource.RLIMIT_NPROC] = (200, 1 << 16)  # the soft limit is raised
    require_limits(1024)


def test_jump_hosts_and_proxy_commands_are_counted(
    limits: dict[int, tuple[int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("Host by-command\n  ProxyCommand nc %h %p\nHost by-jump\n  ProxyJump first,second\n")
    ssh = {"config": str(config), "proxy_jump": None, "host_keys": "strict", "fanout": 64, "connect_timeout_s": 10.0}
    nodes = [Node(name=name) for name in ("by-command", "by-jump", "direct")]
    assert [count_gateways([node], ssh) for node in nodes] == [2, 2, 0]
    monkeypatch.setattr(access, "_threads_of_user", lambda: 0)
    limits[resource.RLIMIT_NPROC] = (62, 62)
    require_limits(3)
    with pytest.raises(OrchError, match="3 nodes need 63 threads"):
        require_limits(3, on_the_way=lambda: count_gateways(nodes, ssh))


def test_threads_are_not_counted_where_the_system_shows_none(
    limits: dict[int, tuple[int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on macOS."""
    monkeypatch.setattr(access, "PROCESSES", tmp_path)
    require_limits(1024)
    assert limits[resource.RLIMIT_NPROC] == (200, 200)


def test_limits_refuse_only_a_launch(limits: dict[int, tuple[int, int]]) -> None:
    """A run that is watched from a machine whose limit its supervisor nearly reaches can still be stopped."""
    limits[resource.RLIMIT_NOFILE] = (1, 1)
    inventory = Inventory(name="here", nodes=(Node(name="n0", address="127.0.0.1"),))
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    assert plan.transport == "ssh"
    launcher_for(plan).close()
