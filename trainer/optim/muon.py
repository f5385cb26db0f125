"""Muon for the matrices of the blocks, and AdamW for all other parameters, as one optimizer."""

from __future__ import annotations

from typing import Any, Callable, Collection, Dict, List, Sequence

import torch

from trainer.errors import UserError
from trainer.values import Foreign


class MuonAndAdamW(torch.optim.Optimizer):
    """Both optimizers share this one's parameter groups and state."""

    def __init__(self, muon: torch.optim.Optimizer, adamw: torch.optim.Optimizer) -> None:
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self.inner = (muon, adamw)
        begin = 0
        for optimizer in self.inner:
            end = begin + len(optimizer.param_groups)
            optimizer.state, optimizer.param_groups = self.state, self.param_groups[begin:end]
            begin = end

    def step(self, closure: Callable[[], Any] | None = None) -> Foreign:  # a loss
        loss = closure() if closure else None
        for optimizer in self.inner:
            optimizer.step()
        return loss


def muon_and_adamw(
    groups: Sequence[Dict[str, Any]],
    hidden: Collection[torch.nn.Parameter],
    muon_settings: Dict[str, Any],
    make_adamw: Callable[[List[Dict[str, Any]]], torch.optim.Optimizer],
) -> torch.optim.Optimizer:
    """Split each parameter group between Muon, for `hidden`, and AdamW. Raises UserError: there are no hidden matrices."""
    if not hidden:
        raise UserError.agreed(
            "optim.name=muon updates the matrices of the model's blocks, but the task names no blocks(), or they have no "
            "matrices: use optim.name=adamw"
        )
    kind: Any = torch.optim
    # With the scale of AdamW's updates, so that one rate and decay fit both.
    muon = kind.Muon(_part(groups, hidden, inside=True), **muon_settings, adjust_lr_fn="match_rms_adamw")
    remaining = _part(groups, hidden, inside=False)
    return MuonAndAdamW(muon, make_adamw(remaining)) if remaining else muon


def hidden_matrices(model: torch.nn.Module, blocks: Sequence[torch.nn.Module]) -> Collection[torch.nn.Parameter]:
    """The 2-D parameters of the blocks that are no embeddings of the model."""
    embeddings = {
        parameter
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding)
        for parameter in module.parameters()
    }
    matrices = {parameter for block in blocks for parameter in block.parameters() if parameter.dim() == 2}  # noqa: PLR2004
    return matrices - embeddings


def _part(
    groups: Sequence[Dict[str, Any]], hidden: Collection[torch.nn.Parameter], *, inside: bool
) -> List[Dict[str, Any]]:
    found = [
        {**group, "params": [parameter for parameter in group["params"] if (parameter in hidden) == inside]}
        for group in groups
    ]
    return [group for group in found if group["params"]]
