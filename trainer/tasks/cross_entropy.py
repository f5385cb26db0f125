"""The cross entropy of a head over a vocabulary, without ever holding the logits of all tokens."""

from __future__ import annotations

import math
from typing import Callable, Tuple, TypeVar

import torch
from torch.nn import functional

from trainer.values import Foreign

T = TypeVar("T")
IGNORED = -100
"""The target of a token that does not count, as in torch."""
MOST_LOGITS = 1 << 25
"""At most this many logits are in memory together: 128 MiB in fp32, four times that while their gradient is computed."""
MULTIPLES = {"cuda": 64}
"""For each device, the multiple of rows to which a head is padded: matrix units compute other numbers of rows in several slower passes."""


def head_loss(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """
    Return the sum of the cross entropies in nats over all targets but -100, in fp32.

    Args:
        x: activations, [..., width].
        weight: of the head, [vocabulary, width].
        target: int64, [...].
    """
    rows, targets = x.reshape(-1, x.shape[-1]), target.reshape(-1)
    if len(rows) * len(weight) > MOST_LOGITS:
        narrow = functional.linear(rows[:1], weight).dtype  # autocast has other types than the weights
        # Gradients that fp16 can hold are those of the scaled loss, which only the backward pass knows.
        if narrow != torch.float16:
            return _loss_in_parts(rows, weight, targets, narrow)
    logits = functional.linear(rows, padded(weight))[:, : len(weight)]
    return functional.cross_entropy(logits.float(), targets, reduction="sum")


# keeps torch.compile from writing each part of a loss into its graph
_uncompiled: Callable[[T], T] = getattr(torch, "_disable_dynamo", lambda same: same)


@_uncompiled
def _loss_in_parts(
    rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, narrow: torch.dtype
) -> torch.Tensor:
    # Without gradients a leaf still has requires_grad, which autograd passes on to its functions.
    wanted = torch.is_grad_enabled()
    loss: torch.Tensor = _HeadLoss.apply(  # type: ignore[no-untyped-call]  # torch leaves it so
        rows if wanted else rows.detach(), weight if wanted else weight.detach(), targets, narrow
    )
    return loss


def padded(weight: torch.Tensor) -> torch.Tensor:
    """The weight with zero rows, up to a multiple that suits the device."""
    missing = -len(weight) % MULTIPLES.get(weight.device.type, 1)
    return functional.pad(weight, (0, 0, 0, missing)) if missing else weight


class Head(torch.nn.Linear):
    """Activations and targets in, head_loss() out, or logits without targets. A module: some strategies gather its weight in its forward()."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        return functional.linear(x, self.weight) if target is None else head_loss(x, self.weight, target)


class _HeadLoss(torch.autograd.Function):
    """The forward pass computes the gradients as well, while the logits of a part are in memory; the backward pass scales them."""

    @staticmethod
    def forward(  # noqa: PLR0917 -- torch calls it so
        ctx: Foreign, rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, narrow: torch.dtype
    ) -> torch.Tensor:
        """`narrow`: the type of the logits."""
        total = torch.zeros((), device=rows.device)
        of_rows, of_weight, *_ = ctx.needs_input_grad
        rows_gradient = torch.empty_like(rows) if of_rows else None
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if of_weight else None
        vocabulary, stored = len(weight), weight.dtype
        weight = padded(weight.to(narrow))
        step = max(1, MOST_LOGITS // len(weight))
        for begin in range(0, len(rows), step):
            end = min(len(rows), begin + step)
            part, wanted = rows[begin:end], targets[begin:end]
            logits = functional.linear(part, weight).float()
            logits[:, vocabulary:] = -math.inf
            total += functional.cross_entropy(logits, wanted, reduction="sum")
            if not (of_rows or of_weight):
                continue
            gradient = _logits_gradient(logits, wanted).to(narrow)
            if rows_gradient is not None:
                rows_gradient[begin:end] = gradient @ weight
            if weight_gradient is not None:
                weight_gradient += (gradient.t() @ part)[:vocabulary]
        ctx.save_for_backward(rows_gradient, None if weight_gradient is None else weight_gradient.to(stored))
        return total

    @staticmethod
    def backward(ctx: Foreign, scale: torch.Tensor) -> Tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        # A scale without dimensions keeps its own precision: rounded to bf16 it would be wrong by up to 0.4 %.
        of_rows, of_weight = (None if gradient is None else gradient * scale for gradient in ctx.saved_tensors)
        return of_rows, of_weight, None, None


def _logits_gradient(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Softmax minus one at the target; 0 for a token that does not count."""
    gradient = torch.softmax(logits, dim=-1)
    index = targets.clamp(min=0).unsqueeze(1)
    gradient.scatter_add_(1, index, torch.full(index.shape, -1.0, device=logits.device))
    return gradient.masked_fill_((targets == IGNORED).unsqueeze(1), 0.0)
