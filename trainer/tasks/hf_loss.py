"""The loss of a language model of transformers, without the logits of all tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from trainer.tasks.cross_entropy import IGNORED, Head
from trainer.values import Foreign, Model


def add_loss(model: Model) -> None:  # changes its class
    """Let the model return the loss when it is called with targets. Names and values of parameters stay."""
    model.get_output_embeddings().__class__ = LogitsOrLoss
    model.__class__ = type(type(model).__name__, (WithLoss, type(model)), {})


class LogitsOrLoss(Head):
    """A head that returns logits, unless there are targets."""

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        return functional.linear(x, self.weight) if target is None else super().forward(x, target)


class WithLoss(torch.nn.Module):
    """A part of the class of a model of transformers: its forward() takes targets as well."""

    config: Any
    base_model: Any
    get_output_embeddings: Any

    def forward(self, *inputs: Any, target: torch.Tensor | None = None, **options: Any) -> Foreign:  # transformers'
        """With int64 targets [batch, length]: the sum of the cross entropies over all but -100, in fp32. `options` has return_dict=False."""
        if target is None:
            return super().forward(*inputs, **options)
        if getattr(self.config, "final_logit_softcapping", None) is not None:
            logits = super().forward(*inputs, **options)[0]
            return functional.cross_entropy(
                logits.float().flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum"
            )
        x = self.base_model(*inputs, **options)[0]
        scaling = getattr(self.config, "logits_scaling", 1.0)  # granite divides its logits
        return self.get_output_embeddings()(x if scaling == 1.0 else x / scaling, target)
