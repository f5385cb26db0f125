"""AdamW, for every strategy except DeepSpeed's offload."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import torch

from trainer.config.config import OptimConfig
from trainer.errors import UserError


def make_optimizer(model: torch.nn.Module, lr: float, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices and embeddings only. Raises UserError: no fused AdamW here."""
    fused = {"fused": True} if config.fused else {}
    try:
        return torch.optim.AdamW(decay_groups(model, config.weight_decay), lr=lr, betas=config.betas, **fused)
    except (RuntimeError, TypeError) as exc:  # this device or torch version has no fused AdamW
        if not config.fused:
            raise
        raise UserError(f"optim.fused=true: no fused AdamW here: {exc}; leave it out") from exc


def load_moments(optimizer: torch.optim.Optimizer, model: torch.nn.Module, moments: Mapping[str, Any]) -> None:
    """Load Adam's state of whole parameters by their names."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    states = {number: moments[name] for number, name in enumerate(ordered) if name in moments}
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def decay_groups(model: torch.nn.Module, weight_decay: float) -> List[Dict[str, Any]]:
    """Parameter groups: matrices and embeddings with weight decay, the rest without."""
    matrices = [parameter for parameter in model.parameters() if len(whole_shape(parameter)) > 1]
    vectors = [parameter for parameter in model.parameters() if len(whole_shape(parameter)) <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def whole_shape(parameter: torch.Tensor) -> torch.Size:
    """The shape of the whole parameter; ZeRO-3 leaves a shard in it."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape
