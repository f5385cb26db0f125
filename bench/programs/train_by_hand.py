"""The training of bench/trainer.py as written by hand: DistributedDataParallel and nothing around it."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.tasks.gpt import GPT

LOG_STEPS = 10
UNCOUNTED = 10  # as in bench/trainer.py


def main() -> None:
    config = load_config(words=sys.argv[1:])
    on_cuda = config.device == "cuda"
    distributed.init_process_group("nccl" if on_cuda else "gloo")
    rank = distributed.get_rank()
    device = torch.device("cuda", rank) if on_cuda else torch.device("cpu")
    torch.manual_seed(config.seed)
    model = GPT(config.model).to(device)
    optimizer = _optimizer(model, config)
    if config.compile:
        model.compile()
    wrapped = DistributedDataParallel(model, device_ids=[rank] if on_cuda else None, gradient_as_bucket_view=True)
    text = torch.frombuffer(bytearray(Path(config.data.paths[0]).read_bytes()), dtype=torch.uint8)
    torch.manual_seed(config.seed + rank)
    length, moments = config.model.context, []
    for step in range(1, config.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, config)
        starts = torch.randint(len(text) - length, (config.micro_batch,)).tolist()
        rows = torch.stack([text[start : start + length + 1] for start in starts]).long().to(device)
        narrow = torch.autocast(device.type, dtype=torch.bfloat16) if config.precision == "bf16" else None
        with narrow or contextlib.nullcontext():
            loss = wrapped(rows[:, :-1], rows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0 and step % LOG_STEPS == 0:
            sys.stdout.write(f"step {step} loss {loss.item():.4f}\n")
        if on_cuda and step in (UNCOUNTED, config.steps):  # the steps between which the rate is taken
            torch.cuda.synchronize()
        moments.append(time.monotonic())
    if rank == 0:
        sys.stdout.write(f"figures {json.dumps({'moments': moments})}\n")
    distributed.destroy_process_group()


def _optimizer(model: GPT, config: TrainConfig) -> torch.optim.AdamW:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.optim.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.optim.betas, fused=config.optim.fused or None)


def _learning_rate(step: int, config: TrainConfig) -> float:
    warmup = config.optim.warmup_steps
    if step <= warmup:
        return config.lr * step / warmup
    share = (step - warmup) / max(1, config.steps - warmup)
    return config.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


if __name__ == "__main__":
    main()
