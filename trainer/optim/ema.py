"""An exponential average of the weights, which is evaluated and exported in their place."""

from __future__ import annotations

import contextlib
from typing import Iterator, List, Tuple

import torch

from trainer.state_keys import EMA
from trainer.tensors import local_elements


class Ema:
    """
    The average of each parameter, kept in the state of the optimizer: it is saved, sharded and loaded like a moment.

    It begins with the weights after the first step. Buffers, such as running means, are not averaged.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float) -> None:
        """A decay of 0 keeps no average."""
        self.optimizer, self.decay = optimizer, decay

    def update(self, is_updated: torch.Tensor) -> None:
        """Average the weights of the step that was just made, if `is_updated`; nothing waits for the device."""
        if not self.decay:
            return
        with torch.no_grad():
            share = (1 - self.decay) * is_updated.float()
            for weights, average in self._pairs():
                average.lerp_(weights, share.to(average.dtype))
            for parameter in self._parameters():
                state = self.optimizer.state.get(parameter, {})
                # Adam would take an average for its own beginning of a parameter that it has not updated, such as after an overflow of fp16.
                is_begun = bool(state) or isinstance(self.optimizer, torch.optim.SGD)
                if parameter.grad is not None and is_begun and EMA not in state:
                    self.optimizer.state[parameter][EMA] = parameter.detach().clone()

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Exchange the weights and their averages within the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        with torch.no_grad():
            for weights, average in self._pairs() if self.decay else ():
                before = weights.clone()
                weights.copy_(average)
                average.copy_(before)

    def _pairs(self) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """This rank's elements of each parameter, with those of the average."""
        states = ((parameter, self.optimizer.state.get(parameter, {})) for parameter in self._parameters())
        return [
            (local_elements(parameter.detach()), local_elements(state[EMA]))
            for parameter, state in states
            if EMA in state
        ]

    def _parameters(self) -> Iterator[torch.Tensor]:
        return (parameter for group in self.optimizer.param_groups for parameter in group["params"])
