"""The training of bench/trainer.py with the Trainer of Hugging Face: the same model, text and arithmetic."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.tasks.gpt import GPT

UNCOUNTED = 10  # as in bench/trainer.py


class Windows(torch.utils.data.Dataset[Mapping[str, torch.Tensor]]):
    """Every sequence of the text, one for each start position."""

    def __init__(self, text: bytes, context: int) -> None:
        self.text, self.context = torch.frombuffer(bytearray(text), dtype=torch.uint8), context

    def __len__(self) -> int:
        return len(self.text) - self.context

    def __getitem__(self, start: int) -> Mapping[str, torch.Tensor]:
        row = self.text[start : start + self.context + 1].long()
        return {"tokens": row[:-1], "labels": row[1:]}


class Model(nn.Module):
    """The interface of the Trainer: keywords in, a mapping with the loss out."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.gpt = GPT(config.model)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {"loss": self.gpt(tokens, labels)}


class Moments(transformers.TrainerCallback):
    """The end time of each step."""

    def __init__(self, steps: int, *, on_cuda: bool) -> None:
        self.moments: list[float] = []
        self.steps, self.on_cuda = steps, on_cuda

    def on_step_end(self, *_: Any, **__: Any) -> None:  # the Trainer's own types
        if self.on_cuda and len(self.moments) + 1 in (UNCOUNTED, self.steps):  # as in train_by_hand.py
            torch.cuda.synchronize()
        self.moments.append(time.monotonic())


def main() -> None:
    config = load_config(words=sys.argv[1:])
    on_cuda = config.device == "cuda"
    moments = Moments(config.steps, on_cuda=on_cuda)
    settings = transformers.TrainingArguments(
        output_dir=config.out or "out",
        max_steps=config.steps,
        per_device_train_batch_size=config.micro_batch,
        learning_rate=config.lr,
        weight_decay=config.optim.weight_decay,
        adam_beta1=config.optim.betas[0],
        adam_beta2=config.optim.betas[1],
        max_grad_norm=config.optim.grad_clip,
        lr_scheduler_type="cosine",
        warmup_steps=config.optim.warmup_steps,
        optim="adamw_torch_fused" if config.optim.fused else "adamw_torch",
        bf16=config.precision == "bf16",
        torch_compile=config.compile,
        seed=config.seed,
        use_cpu=not on_cuda,
        ddp_find_unused_parameters=False,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    dataset = Windows(Path(config.data.paths[0]).read_bytes(), config.model.context)
    trainer = transformers.Trainer(Model(config), settings, train_dataset=dataset, callbacks=[moments])
    trainer.accelerator.ddp_handler.gradient_as_bucket_view = True  # TrainingArguments has no option for it
    trainer.train()
    if trainer.is_world_process_zero():
        sys.stdout.write(f"figures {json.dumps({'moments': moments.moments})}\n")
    sys.stdout.flush()
    os._exit(0)  # gloo's threads sometimes abort a process at its normal exit


if __name__ == "__main__":
    main()
