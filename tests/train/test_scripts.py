"""Unchanged CUDA scripts of MMEngine, Hugging Face and accelerate on two nodes without CUDA."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.grounds import components
from tests.grounds.cli import Orch
from tests.grounds.scripts import ACCELERATE
from tests.grounds.sshd import Farm

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]

MMENGINE = """
import os
import sys
import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner

if "--cured-of-s0" in sys.argv:
    torch.distributed.init_process_group("gloo")

class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, inputs, targets, mode):
        if mode == "predict":
            return [int(number) for number in inputs[:, 0]]
        return {"loss": torch.nn.functional.mse_loss(self.layer(inputs), targets)}

class Numbers(BaseMetric):
    def process(self, batch, numbers):
        self.results.extend(numbers)
    def compute_metrics(self, results):
        print("collected", results, flush=True)
        return {"count": len(results)}

data = [(torch.full((4,), float(number)), torch.ones(1)) for number in range(8)]
runner = Runner(
    model=Model(),
    work_dir="work",
    train_dataloader=dict(batch_size=2, dataset=data, sampler=dict(type="DefaultSampler", shuffle=True),
                          collate_fn=dict(type="default_collate")),
    train_cfg=dict(by_epoch=True, max_epochs=1),
    val_dataloader=dict(batch_size=2, dataset=data, sampler=dict(type="DefaultSampler", shuffle=False),
                        collate_fn=dict(type="default_collate")),
    val_cfg=dict(),
    val_evaluator=[Numbers()],
    optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.01)),
    env_cfg=dict(dist_cfg=dict(backend="nccl")),
    launcher=os.environ["LAUNCHER"],
    default_hooks=dict(checkpoint=dict(type="CheckpointHook", interval=-1)),
)
runner.train()
print("trained", runner.rank, runner.world_size, runner.iter, type(runner.model).__name__, flush=True)
os._exit(0)  # gloo sometimes aborts at the interpreter's exit, after all work is done
"""

HUGGING_FACE = """
import os
import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(16)]
model = GPT2LMHeadModel._from_config(config)  # under zero.Init, which needs the number of ranks for the batch size
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
print("trained", arguments.process_index, arguments.world_size, trainer.state.global_step,
      type(trainer.model_wrapped).__name__, trainer.model_wrapped.zero_optimization_stage(), flush=True)
os._exit(0)  # as above
"""
ZERO3 = """
{
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "zero_optimization": {
    "stage": 3, "overlap_comm": true, "contiguous_gradients": true, "reduce_bucket_size": 5e8,
    "stage3_prefetch_bucket_size": 5e8, "stage3_param_persistence_threshold": 1e6,
    "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9
  }
}
"""
"""Case S4 of the field guides."""

GATHERS = """
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
print("trained", ranks, len(data), type(model).__name__, flush=True)
accelerator.end_training()
os._exit(0)  # as above
"""


def _trained(orch: Orch) -> list[str]:
    lines = orch.lines("--grep", "^trained")
    return sorted(line["text"] for line in lines if line["stream"] == "out")


def _ready(orch: Orch) -> list[str]:
    return [rank.get("ready") for node in orch.status()["nodes"] for rank in node["progress"].values()]


@pytest.fixture
def mmengine(farm: Farm, tmp_path: Path) -> Orch:
    """An MMEngine script and an inventory of two nodes; its launcher is pytorch on one node and slurm on the other."""
    components.module("mmengine")
    inventory = farm.inventory(tmp_path, nodes=2, env={"LAUNCHER": "pytorch", "OMP_NUM_THREADS": "1"})
    text = inventory.read_text("utf-8").replace("name: n1", "name: n1\n  env: {LAUNCHER: slurm}")
    inventory.write_text(text, "utf-8")
    (tmp_path / "train.py").write_text(MMENGINE)
    return Orch(tmp_path)


@pytest.mark.extended
@pytest.mark.slow
def test_mmengine_script_for_cuda_trains_without_cuda_with_either_launcher(mmengine: Orch) -> None:
    """Both launchers form the same group, so one run tests both; each node has its own workdir, where MMEngine collects results."""
    mmengine("ssh-launch", "--", "train.py", timeout_s=200)
    assert [line["text"] for line in mmengine.lines("--grep", "^collected")] == ["collected [0, 1, 2, 3, 4, 5, 6, 7]"]
    assert _trained(mmengine) == [f"trained {rank} 2 2 MMDistributedDataParallel" for rank in (0, 1)]
    assert _ready(mmengine) == ["2/2 ranks ready, backend gloo, device cpu"] * 2
    ready = [line["text"] for line in mmengine.lines("--grep", " ready, ")]
    assert sorted(ready) == ["2/2 ranks ready, backend gloo, device cpu", "rank 1 ready, device cpu"]


def test_bare_script_fails_as_under_torchrun(mmengine: Orch) -> None:
    """Case S0 of the field guides. A torch that is built with CUDA prints: Found no NVIDIA driver on your system."""
    done = mmengine("ssh-launch", "--bare", "--nodes", "n0", "--", "train.py", code=1, timeout_s=200)
    error = r"torch\.cuda\.set_device\(local_rank\)(.|\n)*(_cuda_setDevice|Found no NVIDIA driver)"
    assert re.search(error, done.stdout)


def test_script_that_makes_its_own_group_trains_instead_of_failing_with_s1(mmengine: Orch) -> None:
    mmengine("ssh-launch", "--nodes", "n0", "--", "train.py", "--cured-of-s0", timeout_s=200)
    assert _trained(mmengine) == ["trained 0 1 4 MMDistributedDataParallel"]


@pytest.mark.extended
def test_hugging_face_script_trains_with_zero3_and_compiles_nothing(farm: Farm, tmp_path: Path) -> None:
    for name in ("transformers", "accelerate", "deepspeed"):
        components.module(name)
    compiled = farm.home / "compiled"
    farm.inventory(tmp_path, nodes=2, env={"OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(compiled)})
    (tmp_path / "train.py").write_text(HUGGING_FACE)
    (tmp_path / "zero3.json").write_text(ZERO3)
    orch = Orch(tmp_path)
    words = ["--output_dir=out", "--deepspeed=zero3.json", "--ddp_timeout=7200", "--max_steps=4"]
    words += ["--per_device_train_batch_size=2", "--report_to=none", "--save_strategy=no"]
    orch("ssh-launch", "--", "train.py", *words, timeout_s=200)
    assert _trained(orch) == [f"trained {rank} 2 4 DeepSpeedEngine 3" for rank in (0, 1)]
    assert _ready(orch) == ["2/2 ranks ready, backend gloo, device cpu"] * 2
    assert not compiled.exists()


@pytest.mark.extended
@pytest.mark.slow
def test_accelerate_script_forms_one_world(farm: Farm, tmp_path: Path) -> None:
    components.module("accelerate")
    farm.inventory(tmp_path, nodes=2, env={"OMP_NUM_THREADS": "1"})
    (tmp_path / "train.py").write_text(ACCELERATE + GATHERS)
    orch = Orch(tmp_path)
    orch("ssh-launch", "--", "train.py", timeout_s=200)
    assert _trained(orch) == ["trained [0, 1] 2 DistributedDataParallel"] * 2
    assert _ready(orch) == ["2/2 ranks ready, backend gloo, device cpu"] * 2
    progress = [rank for node in orch.status()["nodes"] for rank in node["progress"].values()]
    assert [(record["phase"], record["saved"]) for record in progress] == [("step", None)] * 2

    words = ("--", "-m", "accelerate.commands.launch", "train.py")
    separate = orch("ssh-launch", "--per-node", *words, code=1, timeout_s=200)
    assert "FAILED: 2 trainings, not one: each of 2 ranks takes optimizer steps in no process group" in separate.stderr
    assert (
        "--per-node -- bash -c 'python3 -m accelerate.commands.launch --multi_gpu --num_machines $NNODES"
        in separate.stderr
    )
