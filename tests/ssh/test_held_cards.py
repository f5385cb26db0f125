"""A launch on cards that a living run holds, which another machine of the same user has launched."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm


def test_run_launched_from_elsewhere_refuses_a_launch_on_its_cards_until_it_ends(farm: Farm, tmp_path: Path) -> None:
    here, elsewhere = Orch(tmp_path / "here"), Orch(tmp_path / "elsewhere")
    for orch in (here, elsewhere):  # two record stores
        orch.cwd.mkdir()
    inventory = farm.inventory(here.cwd, accelerator="cuda", devices=2, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    shutil.copy(inventory, elsewhere.cwd)
    launch = ("ssh-launch", "--no-check", "--detach")
    run = elsewhere(*launch, "--", "sleep", "1000").stdout.strip()
    refused = here(*launch, "--", "sleep", "1000", code=3).stderr
    assert f"n[0-1]: run {run} (farm) holds cards 0,1 since " in refused
    assert f"next: orch stop {run} -i inventory.yaml; --wait-free SPAN" in refused
    assert here.status()["state"] == "FAILED"
    here(*launch, "--env", "CUDA_VISIBLE_DEVICES=2,3", "--", "true")
    here(*launch, "--share", "--", "true")
    with here.start("ssh-launch", "--no-check", "--wait-free", "90s", "--", "true") as waiting:
        assert waiting.stderr
        report = next((line for line in waiting.stderr if "--wait-free" in line), "")
        assert f"at the latest (--wait-free): n[0-1]: run {run} (farm) holds cards 0,1" in report
        here("stop", run, "-i", "inventory.yaml")  # as proposed, once the launch has seen that the cards are held
        waiting.stderr.read()
        assert waiting.wait(timeout=60) == 0
