"""Limits of this machine that are too low for the nodes of a run: said before anything starts, with the number needed."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from orchestrator.endpoint.access import require_limits
from orchestrator.errors import OrchError
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
    assert "ulimit -n 1088" in stderr
    assert not (orch.home / "runs").exists()


def test_too_few_threads_are_refused_with_the_number_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NPROC: (200, 200), resource.RLIMIT_NOFILE: (1 << 16, 1 << 16)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(os, "geteuid", os.getuid if os.getuid() else lambda: 65534)
    with pytest.raises(OrchError, match="1024 nodes need 2098 threads, and of the 200 processes and threads") as caught:
        require_limits(1024)
    assert caught.value.hint.startswith("ulimit -u 2")
    limits[resource.RLIMIT_NPROC] = (1 << 16, 1 << 16)
    require_limits(1024)
