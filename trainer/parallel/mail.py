"""A few numbers of each rank for all others, on board of the gradient that DistributedDataParallel sums anyway."""

from __future__ import annotations

from typing import Any, Callable, List

import torch

from trainer.runtime.group import NOTE_SIZE, Group


class Mail(torch.nn.Module):
    """
    The model with one more parameter, which it never uses: its gradient is what the ranks tell each other.

    For gloo, where a collective of its own takes the time of a core. On a card it would take the computing stream's.
    """

    def __init__(self, model: torch.nn.Module, group: Group) -> None:
        super().__init__()
        self.model, self.rank, self.world_size = model, group.rank.global_rank, group.rank.world_size
        self.slots = torch.nn.Parameter(torch.zeros(self.world_size, NOTE_SIZE, device=group.device))

    def forward(self, *args: Any, **named: Any) -> Any:  # noqa: ANN401 -- as the task calls it
        return self.model(*args, **named)

    def sent(self, note: torch.Tensor, loss: torch.Tensor) -> Callable[[], List[torch.Tensor]]:
        """Compute the gradient of `loss`, with this rank's note; gives those of all ranks, to a rounding of fp32."""
        mine = torch.zeros_like(self.slots)
        mine[self.rank] = note * self.world_size  # the ranks' mean is taken
        torch.autograd.backward([loss, self.slots], [None, mine])
        assert self.slots.grad is not None
        everyone = list(self.slots.grad.clone())  # it may be a view of what the next gradient comes into
        self.slots.grad = None
        return lambda: everyone
