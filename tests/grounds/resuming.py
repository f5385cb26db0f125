"""
Programs as people write them that save after steps 10, 20 and 30 and resume; the last rank kills itself in step 15 of the first attempt.

The model has one parameter and all samples are equal, so `last_loss` is the last loss of an undisturbed training with any number of ranks.
"""

from __future__ import annotations

import torch

STEPS, DIES_AT = 30, 15

MODEL = """
import os, signal, sys
import torch

OUT = sys.argv[1]
ATTEMPT = os.environ.get("ORCH_ATTEMPT", str(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1))
losses = []

def loss_of(layer, inputs):
    is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if is_last and ATTEMPT == "1" and len(losses) == 14 and "undisturbed" not in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    loss = (layer(inputs) - 1).pow(2).mean()
    losses.append(loss.item())
    return loss

def layer_of_zeros():
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    return layer
"""
END = """
print(f"attempt {ATTEMPT} made {len(losses)} steps, last loss {losses[-1]:.6f}", flush=True)
"""

PLAIN = f"""{MODEL}
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(layer_of_zeros())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
first, file = 0, os.path.join(OUT, "checkpoint.pt")
if os.path.exists(file):
    state = torch.load(file)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
for step in range(first, 30):
    optimizer.zero_grad()
    loss_of(model, torch.ones(2, 1)).backward()
    optimizer.step()
    if (step + 1) % 10 == 0 and os.environ["RANK"] == "0":
        os.makedirs(OUT, exist_ok=True)
        state = {{"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}}
        torch.save(state, file + ".new")
        os.replace(file + ".new", file)
{END}
torch.distributed.destroy_process_group()
"""

HUGGING_FACE = f"""{MODEL}
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = layer_of_zeros()
    def forward(self, inputs):
        return {{"loss": loss_of(self.layer, inputs)}}

arguments = TrainingArguments(OUT, max_steps=30, save_steps=10, learning_rate=0.01, optim="sgd", optim_args="momentum=0.9",
    lr_scheduler_type="constant", max_grad_norm=0, per_device_train_batch_size=2, report_to=[], disable_tqdm=True,
    save_on_each_node="each" in sys.argv, remove_unused_columns=False, logging_strategy="no")
trainer = Trainer(Model(), arguments, train_dataset=[{{"inputs": torch.ones(1)}}] * 120)
trainer.train(resume_from_checkpoint=get_last_checkpoint(OUT) if os.path.isdir(OUT) else None)
{END}
"""

LIGHTNING = f"""{MODEL}
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = layer_of_zeros()
    def training_step(self, batch, index):
        return loss_of(self.layer, batch[0])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(40, 1)), batch_size=2)
trainer = Trainer(accelerator="cpu", devices=1, num_nodes=2, strategy="ddp", max_epochs=3, logger=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[ModelCheckpoint(OUT, save_last=True)])
trainer.fit(Model(), data, ckpt_path="last")
{END}
"""

MMENGINE = f"""{MODEL}
from mmengine.model import BaseModel
from mmengine.runner import Runner

class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = layer_of_zeros()
    def forward(self, inputs, mode):
        return {{"loss": loss_of(self.layer, inputs)}}

loader = dict(batch_size=2, dataset=[torch.ones(1)] * 40, sampler=dict(type="DefaultSampler", shuffle=True),
              collate_fn=lambda batch: {{"inputs": torch.stack(batch)}})
runner = Runner(Model(), OUT, train_dataloader=loader, train_cfg=dict(by_epoch=True, max_epochs=3), resume=True,
    optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.01, momentum=0.9)), launcher="pytorch",
    env_cfg=dict(dist_cfg=dict(backend="gloo")), default_hooks=dict(checkpoint=dict(type="CheckpointHook", interval=1)))
runner.train()
{END}
"""

PROGRAMS = {"plain": PLAIN, "transformers": HUGGING_FACE, "lightning": LIGHTNING, "mmengine": MMENGINE}
"""The framework -> the text of a program whose first argument is the folder for checkpoints."""


def last_loss() -> str:
    """The last loss of an undisturbed training, as the programs print it."""
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    optimizer, loss = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9), torch.zeros(1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (layer(torch.ones(2, 1)) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
    return f"{loss.item():.6f}"
