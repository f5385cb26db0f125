"""The seam between the loop and a strategy; and what the strategies on torch's own optimizers have in common."""

from __future__ import annotations

import abc
import contextlib
import math
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Protocol

import torch

from trainer.config.config import TrainConfig
from trainer.runtime.group import Group
from trainer.tasks.base import Task, loss_of

# A batch is `Any`: tensors in any nesting, as the task makes it.

Note = Callable[[torch.Tensor], torch.Tensor]
"""Asked with this rank's share of the loss; gives what the rank tells all others, as Group.note makes it."""


class Strategy(Protocol):
    """
    One model on all ranks. Every method is called by every rank, in the same order.

    reshards: a state may be loaded by another number of ranks than wrote it.
    lends_state: tensors of state() may be those that the next step changes.
    sizes: numbers in each parameter of the whole model, by name; kept in checkpoints, to know them by.
    notes: gives what each rank told in the last backward() that had a note, in rank order; waits for them.
    """

    reshards: bool
    lends_state: bool
    sizes: Mapping[str, int]
    notes: Callable[[], List[torch.Tensor]]

    def settle(self, batch: Any) -> None:  # noqa: ANN401
        """Whatever it takes for the first counted step to round as all later ones; the state stays as it is."""

    def backward(self, batch: Any, *, note: Note | None = None) -> torch.Tensor:  # noqa: ANN401
        """
        Add one micro batch to the gradient; the last of a step comes with a note, and makes it that of all ranks.

        Returns:
            This rank's share of the loss.
        """

    def update(self, lr: float, loss: torch.Tensor) -> float:
        """
        Clip by the norm over the whole model, then one step of the optimizer; gradients are gone afterwards.

        Returns:
            The norm before clipping. Where it is not finite, the weights are as before; the ranks have yet to compare.
        """

    def drop(self) -> None:
        """Forget the gradients of a step that is not made. The weights may be anything until load() gives others."""

    def evaluating(self) -> ContextManager[Any]:
        """The block in which the model, which this gives, is called without gradients, in evaluation mode."""

    def state(self) -> Dict[str, Any]:
        """Everything needed to go on, whole on rank 0, in part or not at all on the others; plain values and tensors."""

    def load(self, state: Mapping[str, Any]) -> None:
        """
        Take over what state() gave.

        It is whole on rank 0. Elsewhere its large tensors are room, which Group.broadcast() fills: one at a time where it can
        be, so that a rank need not hold what is not its own.
        """


class TorchStrategy(abc.ABC):
    """A model and one of torch's optimizers, without anything around the forward pass."""

    reshards = False
    lends_state = True
    model: Any  # a module, wrapped or not
    optimizer: torch.optim.Optimizer
    sizes: Mapping[str, int]
    notes: Callable[[], List[torch.Tensor]]

    def __init__(self, group: Group, config: TrainConfig, task: Task) -> None:
        self.group, self.config, self.task = group, config, task
        self.scaler = group.accelerator.scaler() if config.precision == "fp16" else None

    def settle(self, batch: Any) -> None:  # noqa: ANN401, B027  most need nothing
        """Nothing to do."""

    def backward(self, batch: Any, *, note: Note | None = None) -> torch.Tensor:  # noqa: ANN401
        with self.accumulating(last=note is not None):
            with self.computing():
                loss = loss_of(self.task, self.model, batch)
            loss = loss / self.config.accumulation
            scaled: torch.Tensor = self.scaler.scale(loss) if self.scaler else loss
            if note:
                self.notes = self.sent(note(loss.detach()), scaled)
            else:
                scaled.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss.detach()

    def sent(self, note: torch.Tensor, loss: torch.Tensor) -> Callable[[], List[torch.Tensor]]:
        """Compute the gradient of `loss`; meanwhile the ranks hear of each other's notes, which this gives."""
        gathered = self.group.start_all_gather(note)
        loss.backward()  # type: ignore[no-untyped-call]  # as above
        return gathered

    def update(self, lr: float, loss: torch.Tensor) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        norm = self.clip(self.config.optim.grad_clip or math.inf)
        if self.scaler:
            self.scaler.step(self.optimizer)  # skips the step after an overflow, and halves the scale
            self.scaler.update()
        elif math.isfinite(norm):
            self.group.accelerator.step(self.optimizer, loss, self.model)
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def drop(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[Any]:
        self.model.eval()
        try:
            with torch.no_grad(), self.computing():
                yield self.model
        finally:
            self.model.train()

    @abc.abstractmethod
    def accumulating(self, *, last: bool) -> ContextManager[Any]:
        """The block of one micro batch; ranks exchange gradients in the last one only."""

    @abc.abstractmethod
    def computing(self) -> ContextManager[Any]:
        """The block of the forward pass."""

    @abc.abstractmethod
    def clip(self, limit: float) -> float:
        """Scale the gradients down to `limit`; the norm before."""
