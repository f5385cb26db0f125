"""DistributedDataParallel, of torch or of the accelerator's vendor: the model whole on every rank."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Dict, Mapping

import torch

from trainer.accelerators import autocast
from trainer.config import TrainConfig
from trainer.data.batches import drawing_from
from trainer.distributed import Group
from trainer.strategies.base import TorchStrategy
from trainer.strategies.building import build_whole, sizes_of
from trainer.strategies.optimizer import make_optimizer
from trainer.tasks.base import Task, loss_of


class Ddp(TorchStrategy):
    """One process alone trains the bare model."""

    def __init__(self, group: Group, config: TrainConfig, task: Task) -> None:
        super().__init__(group, config, task)
        self.bare = model = build_whole(group, config, task)
        self.sizes = sizes_of(model)
        if config.compile:
            model.compile()
        self.model = self._wrap(model) if group.place.launched else model
        self.optimizer = make_optimizer(model, config.lr, config.optim)
        self.parameters = list(model.parameters())

    def settle(self, batch: Any) -> None:  # noqa: ANN401
        """
        One pass without an update, so that a resumed run repeats a straight one bit for bit.

        DDP orders its buckets anew after the first backward pass, and the order decides how gloo and NCCL round a sum
        over three or more ranks. This way every counted step has the final order.
        """
        if not self.group.place.launched:
            return
        buffers = [(one, one.clone()) for one in self.bare.buffers()]
        devices = [self.group.device] if self.group.device.type == "cuda" else []
        # A task may draw from any of the generators, whose state a resume has restored by now.
        with torch.random.fork_rng(devices=devices), drawing_from(self.config.seed):
            with self.computing():
                loss = loss_of(self.task, self.model, batch)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.zero_grad(set_to_none=True)
        for one, before in buffers:  # such as the running means of a BatchNorm
            one.copy_(before)

    def state(self) -> Dict[str, Any]:
        state: Dict[str, Any] = {"model": self.bare.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**state, "scaler": self.scaler.state_dict()} if self.scaler else state

    def load(self, state: Mapping[str, Any]) -> None:
        self.bare.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler and "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])

    def accumulating(self, *, last: bool) -> ContextManager[Any]:
        wrapped = self.group.place.launched
        return self.model.no_sync() if wrapped and not last else contextlib.nullcontext()

    def computing(self) -> ContextManager[Any]:
        return autocast(self.group.accelerator, self.config.precision)

    def clip(self, limit: float) -> float:
        return float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))

    def _wrap(self, model: torch.nn.Module) -> Any:  # noqa: ANN401 -- stock or vendor's class
        accelerator, config = self.group.accelerator, self.config
        # Left out where they are off: the vendor's fork has not all of them.
        asked = {key: True for key in ("find_unused_parameters", "gradient_as_bucket_view") if getattr(config, key)}
        device_ids = accelerator.device_ids(self.group.place.local_rank)
        return accelerator.data_parallel(model, device_ids=device_ids, **asked)
