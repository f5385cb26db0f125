"""The trainer on an NVIDIA GPU: one rank under torchrun, over NCCL. Skipped without a GPU."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.grounds import components
from tests.grounds.metrics import read_metrics
from tests.train.conftest import Torchrun

pytestmark = [pytest.mark.train, pytest.mark.gpu, pytest.mark.slow]

DEVICE, BACKEND = "cuda", "nccl"
WORDS = (f"device={DEVICE}", "steps=60", "save_steps=60", "lr=1e-2", "accumulation=4")


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [("ddp", "fp32"), ("ddp", "bf16"), ("ddp", "fp16"), ("fsdp2", "bf16"), ("zero2", "bf16")],
)
def test_loss_falls_on_a_gpu_over_nccl(torchrun: Torchrun, tmp_path: Path, strategy: str, precision: str) -> None:
    if strategy.startswith("zero"):
        components.module("deepspeed")
    done = torchrun(*WORDS, f"strategy={strategy}", f"precision={precision}", ranks=1)
    assert done.returncode == 0, done.stderr
    assert f"1/1 ranks ready, backend {BACKEND}, device {DEVICE}\n" in done.stdout
    metrics = read_metrics(tmp_path / "out")
    assert metrics[0]["loss"] > 5.4
    assert metrics[-1]["loss"] < 4
    assert metrics[-1]["peak_memory_bytes"] > 0


def test_resumed_run_on_a_gpu_repeats_an_uninterrupted_one_bit_for_bit(torchrun: Torchrun, tmp_path: Path) -> None:
    words = (f"device={DEVICE}", "steps=8", "save_steps=4", "accumulation=2", "deterministic=true")
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    assert torchrun(*words, f"out={uninterrupted}", ranks=1).returncode == 0
    resumed.mkdir(mode=0o700)
    shutil.copytree(uninterrupted / "step_4", resumed / "step_4")
    done = torchrun(*words, f"out={resumed}", ranks=1)
    assert done.returncode == 0, done.stderr
    assert f"resuming from {resumed / 'step_4'}, step 4" in done.stdout
    losses = [[record["loss"] for record in read_metrics(out)] for out in (uninterrupted, resumed)]
    assert losses[1] == losses[0][4:]
    assert (resumed / "step_8/r00000.safetensors").read_bytes() == (
        uninterrupted / "step_8/r00000.safetensors"
    ).read_bytes()


def test_compiled_training_on_a_gpu_keeps_the_losses(torchrun: Torchrun, tmp_path: Path) -> None:
    base = (f"device={DEVICE}", "task=tests.grounds.tasks:Counted", "micro_batch=2", "report=", "steps=3")
    plain = torchrun(f"out={tmp_path / 'plain'}", ranks=1, base=base)
    compiled = torchrun("compile=true", f"out={tmp_path / 'compiled'}", ranks=1, base=base)
    assert (plain.returncode, compiled.returncode) == (0, 0), plain.stderr + compiled.stderr
    assert int(re.findall(r"^graphs=(\d+)$", compiled.stdout, re.MULTILINE)[-1]) > 0
    losses = [[record["loss"] for record in read_metrics(tmp_path / name)] for name in ("plain", "compiled")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_rank_without_its_own_gpu_is_named(torchrun: Torchrun) -> None:
    count = torch.cuda.device_count()
    done = torchrun(f"device={DEVICE}", "steps=1", ranks=count + 1)
    assert done.returncode != 0
    assert f"rank {count}: local rank {count} has no device: this node shows {count} ({DEVICE})" in done.stderr
