"""The interface of a parallel strategy, and the base class of those that use torch's optimizers."""

from __future__ import annotations

import abc
import contextlib
import math
from typing import Any, Callable, ContextManager, Dict, Iterator, Mapping, Protocol, Sequence

import torch

from trainer.config.config import TrainConfig
from trainer.optim.clip import CLIP_MARGIN, gradient_norm
from trainer.optim.ema import Ema
from trainer.parallel.parts import (
    LocalState,
    Part,
    allocate_moments,
    buffer_parts,
    described,
    named_moments,
    saved_buffers,
    tied_names,
    torch_parts,
)
from trainer.runtime.group import Group
from trainer.tasks.base import Task, loss_of
from trainer.values import Batch

# A batch is `Any`: tensors in any nesting, as the task makes it.


class Strategy(Protocol):
    """
    One model on all ranks. Every rank calls every method, in the same order.

    unwrapped_model: it may be sharded.
    sizes: number of elements of each parameter of the whole model, by name; kept in checkpoints.
    replicated: the parameters of which each rank has the same whole copy; none if they are sharded.
    """

    unwrapped_model: torch.nn.Module
    sizes: Mapping[str, int]
    replicated: Sequence[torch.Tensor]

    def warm_up(self, batch: Batch) -> None:
        """Prepare so that step 1 reduces gradients in the same order as later steps; the state does not change."""

    def micro_batch(self, *, last: bool) -> ContextManager[None]:
        """Return the block of one micro batch; after the `last` of a step, gradients are those of all ranks."""

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return this rank's mean loss of one micro batch; inside micro_batch()."""

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of loss / accumulation; inside the same block as forward()."""

    def update(self, lr: float, loss: torch.Tensor, *, is_good: torch.Tensor) -> torch.Tensor:
        """
        Clip by the norm over the whole model, make one optimizer step, and free the gradients.

        Args:
            lr: of this step.
            loss: of this rank.
            is_good: on the device; if False, no update is made.

        Returns:
            The norm before clipping, on the device. If it is not finite, the weights are unchanged; the ranks have yet to compare.
        """

    def discard_gradients(self) -> None:
        """Discard the gradients of an unfinished step; the weights are undefined until a state is loaded."""

    def without_gradients(self) -> ContextManager[Any]:
        """Return the block of forward passes that no backward pass follows, which yields the model as it is."""

    def evaluating(self) -> ContextManager[Any]:
        """Return the block of an evaluation, which yields the model in evaluation mode and without gradients."""

    def state(self) -> Dict[str, Any]:
        """
        Return the training state, which the next step may change; complete on rank 0, partial or empty elsewhere.

        "model": name -> value, buffers included. "moments": name -> the optimizer's state, Adam's with its step; nothing before the
        first step. "scaler", if there is one: as torch or DeepSpeed save it.
        """

    def local_state(self) -> LocalState:
        """Return what this rank writes of a sharded checkpoint. The parts of all ranks make up the training state."""

    def parts_to_load(self, steps: Mapping[str, float], further: Mapping[str, Sequence[str]]) -> Sequence[Part]:
        """
        Prepare the optimizer's state, and return the parts that this rank has to load.

        Adam's is that of the parameters in `steps`; `further` moments are as in LocalState.

        Replicated parts are the same on all ranks, in the same order.
        """

    def put(self, weight: torch.Tensor, whole: Callable[[], torch.Tensor]) -> None:
        """Fill a weight with the values that `whole` returns on rank 0; without gradients."""

    def finish_load(self, scaler: Mapping[str, Any]) -> None:
        """Load the loss scale of fp16, if there is one, once all parts are loaded."""


class TorchStrategy(abc.ABC):
    """A model and one of torch's optimizers."""

    model: Any  # a module, wrapped or not
    unwrapped_model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    ema: Ema
    sizes: Mapping[str, int]
    replicated: Sequence[torch.Tensor] = ()

    def __init__(self, group: Group, config: TrainConfig, task: Task) -> None:
        self.group, self.config, self.task = group, config, task
        self.scaler = group.accelerator.scaler() if config.precision == "fp16" else None
        # The fused AdamW and SGD take the divisor of the gradients, and whether to do nothing, from the device.
        is_whole = config.optim.fused and config.optim.name != "muon"
        self.decides_on_device = is_whole and self.scaler is None and group.accelerator.name in ("cpu", "cuda")

    def warm_up(self, batch: Batch) -> None:  # only DDP needs it
        """Do nothing."""

    def forward(self, batch: Batch) -> torch.Tensor:
        with self.computing():
            return loss_of(self.task, self.model, batch)

    def backward(self, loss: torch.Tensor) -> None:
        share = loss / self.config.accumulation
        scaled: torch.Tensor = self.scaler.scale(share) if self.scaler else share
        scaled.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def update(self, lr: float, loss: torch.Tensor, *, is_good: torch.Tensor) -> torch.Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_factor", 1.0)
        limit = self.config.optim.grad_clip or math.inf
        if self.decides_on_device:  # without waiting: torch's GradScaler hands the fused AdamW the same two values
            norm = self.norm()
            fused: Any = self.optimizer
            fused.grad_scale = ((norm + CLIP_MARGIN) / limit).clamp(min=1.0).float()
            fused.found_inf = torch.logical_not(torch.isfinite(norm) & is_good).float()
            fused.step()
        else:
            norm = self._read_and_step(limit, loss, is_good)
        self.ema.update(torch.isfinite(norm) & is_good)
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _read_and_step(self, limit: float, loss: torch.Tensor, is_good: torch.Tensor) -> torch.Tensor:
        """Clip and update; the host waits for the norm."""
        if not self.scaler:
            norm = self.clip(limit)
            if bool(torch.isfinite(norm) & is_good):
                self.group.accelerator.step(self.optimizer, loss, self.model)
            return norm
        if not bool(is_good):
            # The scaler stays as it is: unscale_() without update() would refuse the step after a roll-back.
            return torch.full_like(is_good, math.inf, dtype=torch.float32)
        self.scaler.unscale_(self.optimizer)
        norm = self.clip(limit)
        self.scaler.step(self.optimizer)  # after an overflow it skips the step and halves the scale
        self.scaler.update()
        return norm

    def discard_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def local_state(self) -> LocalState:
        model, scaler = self.unwrapped_model, self.scaler.state_dict() if self.scaler else {}
        buffers = saved_buffers(model, self.group)
        parts = [*torch_parts(model, self.optimizer, self.part), *buffers]
        steps, further = described(named_moments(model, self.optimizer))
        return LocalState(parts, steps, scaler, tied_names(model), further)

    def parts_to_load(self, steps: Mapping[str, float], further: Mapping[str, Sequence[str]]) -> Sequence[Part]:
        step_device = self.group.device if self.config.optim.fused else torch.device("cpu")
        allocate_moments(self.unwrapped_model, self.optimizer, steps, further, step_device=step_device)
        return [*torch_parts(self.unwrapped_model, self.optimizer, self.part), *buffer_parts(self.unwrapped_model)]

    def finish_load(self, scaler: Mapping[str, Any]) -> None:
        if self.scaler and scaler:  # DeepSpeed saves the scale without torch's settings
            native = scaler if "scale" in scaler else {**self.scaler.state_dict(), "scale": float(scaler["cur_scale"])}
            self.scaler.load_state_dict(native)

    @contextlib.contextmanager
    def without_gradients(self) -> Iterator[Any]:
        with torch.no_grad(), self.computing():
            yield self.model

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[Any]:
        self.model.eval()
        try:
            with self.ema.swapped(), self.without_gradients() as model:
                yield model
        finally:
            self.model.train()

    @abc.abstractmethod
    def micro_batch(self, *, last: bool) -> ContextManager[None]:
        """Return the block of one micro batch; after the `last` of a step, gradients are those of all ranks."""

    @abc.abstractmethod
    def put(self, weight: torch.Tensor, whole: Callable[[], torch.Tensor]) -> None:
        """Fill a weight with the values that `whole` returns on rank 0; without gradients."""

    @abc.abstractmethod
    def part(self, key: str, tensor: torch.Tensor) -> Part:
        """Return the part of a weight or moment that this rank has."""

    @abc.abstractmethod
    def computing(self) -> ContextManager[Any]:
        """Return the block of the forward pass."""

    def norm(self) -> torch.Tensor:
        return gradient_norm(self.unwrapped_model.parameters())

    @abc.abstractmethod
    def clip(self, limit: float) -> torch.Tensor:
        """Scale the gradients down to the norm `limit`; returns the norm before."""
