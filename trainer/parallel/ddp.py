"""DistributedDataParallel, from torch or from the accelerator's vendor: every rank has the whole model."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict

import torch

from trainer.config.config import TrainConfig
from trainer.optim.clip import clip_gradients
from trainer.optim.ema import Ema
from trainer.optim.optimizer import make_optimizer
from trainer.parallel.base import TorchStrategy
from trainer.parallel.building import build_whole, sizes_of, warn_if_on_cpu
from trainer.parallel.compiling import compile_blocks
from trainer.parallel.parts import Part, named_moments, put_replica, whole_part
from trainer.runtime.group import STOCK_BACKENDS, Group
from trainer.runtime.seeds import preserve_device_rng, seeded_rng
from trainer.tasks.base import Task, loss_of
from trainer.values import Batch, Model


class Ddp(TorchStrategy):
    """Without a launcher, the model is not wrapped."""

    def __init__(self, group: Group, config: TrainConfig, task: Task) -> None:
        super().__init__(group, config, task)
        model = build_whole(group, config, task)
        if config.sync_batchnorm:
            convert: Any = torch.nn.SyncBatchNorm.convert_sync_batchnorm  # torch leaves it untyped
            model = convert(model)
        if config.channels_last:
            to: Any = model.to  # this overload is missing in torch's annotations
            to(memory_format=torch.channels_last)
        self.unwrapped_model = model
        self.sizes = sizes_of(model)
        blocks = task.blocks(model)
        if config.compile:
            compile_blocks(model, blocks, task.ends(model))
        self.model = self._wrap(model) if group.rank.launched else model
        self.optimizer = make_optimizer(model, config.lr, config.optim, task.param_group, blocks=blocks)
        self.ema = Ema(self.optimizer, config.optim.ema)
        self.parameters = list(model.parameters())
        self.replicated = self.parameters

    def warm_up(self, batch: Batch) -> None:
        """
        Make one pass without an update, so that a resumed run repeats an uninterrupted one bit for bit.

        DDP rebuilds its buckets after the first backward pass, and their order decides how gloo and NCCL round a sum
        over three or more ranks.
        """
        if not self.group.rank.launched:
            return
        buffers = [(buffer, buffer.clone()) for buffer in self.unwrapped_model.buffers()]
        # A task may draw from any generator, and a resume has restored their states by now.
        with preserve_device_rng(self.group.accelerator), seeded_rng(self.config.seed):
            with self.computing():
                loss = loss_of(self.task, self.model, batch)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        # forward() can create parameters.
        warn_if_on_cpu(self.unwrapped_model, self.group.accelerator, self.group.rank.global_rank)
        self.optimizer.zero_grad(set_to_none=True)
        for buffer, before in buffers:  # such as the running means of a BatchNorm
            buffer.copy_(before)

    def state(self) -> Dict[str, Any]:
        state: Dict[str, Any] = {
            "model": self.unwrapped_model.state_dict(),
            "moments": named_moments(self.unwrapped_model, self.optimizer),
        }
        return {**state, "scaler": self.scaler.state_dict()} if self.scaler else state

    def put(self, weight: torch.Tensor, whole: Callable[[], torch.Tensor]) -> None:
        put_replica(self.group, weight, whole)

    def part(self, key: str, tensor: torch.Tensor) -> Part:
        return whole_part(key, tensor)

    def micro_batch(self, *, last: bool) -> ContextManager[None]:
        is_local = self.group.rank.launched and not last
        return self.model.no_sync() if is_local else contextlib.nullcontext()

    def computing(self) -> ContextManager[Any]:
        return self.group.accelerator.autocast(self.config.precision)

    def clip(self, limit: float) -> torch.Tensor:
        return clip_gradients(self.parameters, limit)

    def _wrap(self, model: torch.nn.Module) -> Model:  # stock or vendor's class
        accelerator, config = self.group.accelerator, self.config
        views = config.gradient_as_bucket_view
        if views is None:
            views = accelerator.backend in STOCK_BACKENDS
        flags = {"find_unused_parameters": config.find_unused_parameters, "gradient_as_bucket_view": views}
        set_flags = {key: True for key, value in flags.items() if value}  # the vendor's fork lacks some of them
        device_ids = accelerator.device_ids(self.group.rank.local_rank)
        return accelerator.data_parallel(model, device_ids=device_ids, **set_flags)
