"""A script for torchrun runs unchanged: Lightning, on two nodes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grounds import components
from tests.grounds.cli import Orch

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]

INVENTORY = """
name: here
accelerator: cpu
devices: 1
transport: local
env: {OMP_NUM_THREADS: 1}
defaults: {workdir: WORKDIR}
nodes: [{name: "n[0-1]"}]
"""

LIGHTNING = """
import os
import torch
from lightning.pytorch import LightningModule, Trainer

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=2)
trainer = Trainer(accelerator="cpu", devices=1, num_nodes=2, strategy="ddp", max_epochs=1, logger=False,
                  enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), data)
print("trained", trainer.global_rank, trainer.world_size, type(trainer.strategy.cluster_environment).__name__, flush=True)
os._exit(0)  # gloo sometimes aborts at the interpreter's exit, after all work is done
"""


@pytest.fixture
def orch(tmp_path: Path) -> Orch:
    """orch in a folder with an inventory of two local nodes of one rank."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY.replace("WORKDIR", str(tmp_path / ".work")))
    return Orch(tmp_path)


def _out(orch: Orch) -> list[str]:
    return sorted(line["text"] for line in orch.lines() if line["stream"] == "out")


def test_lightning_script_detects_torchrun_under_orch(orch: Orch) -> None:
    components.module("lightning")
    (orch.cwd / "train.py").write_text(LIGHTNING)
    orch("ssh-launch", "--", "train.py", timeout_s=200)
    lines = [text for text in _out(orch) if text.startswith("trained")]
    assert lines == [f"trained {rank} 2 TorchElasticEnvironment" for rank in (0, 1)]
    assert orch.status()["state"] == "DONE"
