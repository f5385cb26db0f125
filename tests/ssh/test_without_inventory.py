"""`orch ssh-launch --nodes n0,n1` without an inventory: nodes are names of ~/.ssh/config and are probed."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.endpoint.access import Terminal
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.cards import close_all, detect_cards
from orchestrator.node.cards import count_cards
from orchestrator.progress import no_progress
from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm


def test_launch_needs_only_names_of_ssh_config(farm: Farm, tmp_path: Path) -> None:
    """HOME has a ~/.ssh/config like a user's; the nodes' working folder is ~/.orch there."""
    (tmp_path / ".ssh").mkdir(mode=0o700)
    (tmp_path / ".ssh" / "config").write_text(farm.ssh_config.read_text("utf-8"))
    orch = Orch(tmp_path, env={"HOME": str(tmp_path)})
    orch("ssh-launch", "--nodes", "n0,n1", "--", "sh", "-c", 'echo "$ORCH_NODE $RANK of $WORLD_SIZE"')
    assert sorted(line["text"] for line in orch.lines() if line["stream"] == "out") == ["n0 0 of 2", "n1 1 of 2"]
    assert (farm.home / ".orch" / "runs").is_dir()


def test_devices_are_counted_by_their_device_files(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "gcu0", "gcuctl"):
        (tmp_path / name).touch()
    assert count_cards(str(tmp_path)) == {"cuda": 2, "gcu": 1}


@pytest.mark.processes
@pytest.mark.parametrize(("written", "devices"), [(1, 1), (4, 4)])
def test_probe_fills_in_what_the_inventory_leaves_open(written: int, devices: int) -> None:
    inventory = Inventory(transport="local", nodes=(Node(name="n0", devices=written), Node(name="n1")))
    found, connected = detect_cards(inventory, "n0", Terminal(), no_progress)
    close_all(connected)
    assert (found.nodes[0].accelerator, found.nodes[0].devices) == ("cpu", devices)
    assert found.nodes[1] == inventory.nodes[1]
