"""The optimizer, for every strategy except DeepSpeed's offload: AdamW, SGD or Muon (muon.py)."""

from __future__ import annotations

import math
from typing import Any, Callable, Collection, Dict, List, Mapping, Sequence, Tuple

import torch

from trainer.config.config import OptimConfig
from trainer.errors import UserError
from trainer.optim.muon import hidden_matrices, muon_and_adamw

Settings = Callable[[str], Mapping[str, float]]
"""The settings of a parameter, by its name, as from Task.param_group."""
SETTINGS = ("lr_factor", "weight_decay")


def no_settings(name: str) -> Mapping[str, float]:  # noqa: ARG001 -- the same for all
    return {}


def make_optimizer(
    model: torch.nn.Module,
    lr: float,
    config: OptimConfig,
    settings: Settings = no_settings,
    *,
    blocks: Sequence[torch.nn.Module] = (),
) -> torch.optim.Optimizer:
    """
    Make the optimizer `config.name`, with weight decay on matrices and embeddings only.

    Args:
        model: its parameters are optimized.
        lr: the peak rate.
        config: the settings.
        settings: settings of single parameters, by name.
        blocks: of the model; Muon takes their matrices.

    Raises:
        UserError: no fused AdamW here, wrong settings, or no matrices for Muon.
    """
    groups = param_groups(model, lr, config.weight_decay, settings)
    hidden = hidden_matrices(model, blocks) if config.name == "muon" else ()
    try:
        return _make(groups, lr, config, hidden)
    except (RuntimeError, TypeError) as exc:  # this device or torch version has no fused one
        if not config.fused:
            raise
        raise UserError(
            f"optim.fused=true: no fused {'SGD' if config.name == 'sgd' else 'AdamW'} here: {exc}; leave it out"
        ) from exc


def _make(
    groups: List[Dict[str, Any]], lr: float, config: OptimConfig, hidden: Collection[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    fused = {"fused": True} if config.fused else {}
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=lr, **_momentum(config, 0.9, nesterov=False), **fused)

    def adamw(some: List[Dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(some, lr=lr, betas=config.betas, **fused)

    if config.name == "muon":
        return muon_and_adamw(groups, hidden, {"lr": lr, **_momentum(config, 0.95, nesterov=True)}, adamw)
    return adamw(groups)


def _momentum(config: OptimConfig, usual: float, *, nesterov: bool) -> Dict[str, Any]:
    """The settings of SGD and Muon, whose usual values differ."""
    return {
        "momentum": usual if config.momentum is None else config.momentum,
        "nesterov": nesterov if config.nesterov is None else config.nesterov,
    }


def param_groups(model: torch.nn.Module, lr: float, weight_decay: float, settings: Settings) -> List[Dict[str, Any]]:
    """The groups of decay_groups() without the parameters that have settings of their own, and one group per kind of these."""
    groups = decay_groups(model, weight_decay)
    special: Dict[Tuple[float, float], List[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        found = settings(name)
        _check(name, found)
        if found:
            usual = weight_decay if len(whole_shape(parameter)) > 1 else 0.0
            key = float(found.get("lr_factor", 1.0)), float(found.get("weight_decay", usual))
            special.setdefault(key, []).append(parameter)
    taken = {parameter for parameters in special.values() for parameter in parameters}
    for group in groups:
        group["params"] = [parameter for parameter in group["params"] if parameter not in taken]
    more = [
        {"params": parameters, "lr": lr * factor, "lr_factor": factor, "weight_decay": decay}
        for (factor, decay), parameters in special.items()
    ]
    return [group for group in (*groups, *more) if group["params"] or not special]


def _check(name: str, found: Mapping[str, Any]) -> None:
    for key, value in found.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if key not in SETTINGS or not is_number or not 0 <= value < math.inf:
            raise UserError.agreed(
                f"param_group({name!r}) gave {key}={value!r}: allowed: {' and '.join(SETTINGS)}, numbers from 0 on"
            )


def decay_groups(model: torch.nn.Module, weight_decay: float) -> List[Dict[str, Any]]:
    """Parameter groups: matrices and embeddings with weight decay, the rest without."""
    matrices = [parameter for parameter in model.parameters() if len(whole_shape(parameter)) > 1]
    vectors = [parameter for parameter in model.parameters() if len(whole_shape(parameter)) <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def whole_shape(parameter: torch.Tensor) -> torch.Size:
    """The shape of the whole parameter; ZeRO-3 leaves a shard in it."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape
