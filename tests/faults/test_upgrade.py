"""The files of orch are replaced while a run continues."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.paths import ROOT
from tests.until import until

PACKAGES = ("orchestrator", "templates", "inventories", "trainer")
INVENTORY = "name: local\ntransport: local\naccelerator: cpu\ndevices: 1\nnodes: [{name: n0}]\n"
PROGRAM = """
cd "$ORCH_RUN_DIR/attempt-$ORCH_ATTEMPT/n0/progress"
echo '{"step": 1, "phase": "step", "saved": 1}' > new && mv new 0.json
until [ -e "$0" ]; do sleep 0.1; done
exit 7
"""


@pytest.mark.extended
@pytest.mark.processes
def test_run_is_restarted_and_diagnosed_while_the_files_of_orch_are_away(tmp_path: Path) -> None:
    """As in an upgrade: what a failure needs has been imported since the run is up."""
    installed, failing = tmp_path / "installed", tmp_path / "fail"
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "inventory.yaml").write_text(INVENTORY)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, installed / name)
    modules = [
        installed / "orchestrator/launch/spare_check.py",
        installed / "orchestrator/diagnosis/rank_causes.py",
    ]
    for module in modules:
        shutil.rmtree(module.parent / "__pycache__", ignore_errors=True)  # written again by an import
    orch = Orch(folder, env={"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": ""})
    run = orch("ssh-launch", "--detach", "--max-retries", "1", "--", "sh", "-c", PROGRAM, str(failing)).stdout.strip()
    caches = [(module.parent / "__pycache__", f"{module.stem}.*") for module in modules]
    until(lambda: all(any(cache.glob(name)) for cache, name in caches), awaited="the imports")
    os.rename(installed / "orchestrator", installed / "away")  # noqa: PTH104
    failing.touch()
    until(lambda: (orch.home / "runs" / run / "run.json").read_text().count('"FAILED"') > 0, awaited="the end")
    orch.env = {}
    until(lambda: (orch.status(run)["failure"] or {}).get("kind"), awaited="the diagnosis")
    status = orch.status(run)
    assert (status["state"], status["attempt"]) == ("FAILED", 2)
