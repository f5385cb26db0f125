"""The optimizer, for every strategy except DeepSpeed's offload: AdamW, SGD, or Muon for the matrices of the blocks beside AdamW for all other parameters."""

from __future__ import annotations

import math
from typing import Any, Callable, Collection, Dict, List, Mapping, Sequence, Tuple

import torch

from trainer.config.config import OptimConfig
from trainer.errors import UserError
from trainer.values import Foreign

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
        found: Mapping[str, Any] = settings(name)
        for setting, value in found.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if setting not in SETTINGS or not is_number or not 0 <= value < math.inf:
                raise UserError.agreed(
                    f"param_group({name!r}) gave {setting}={value!r}: allowed: {' and '.join(SETTINGS)}, numbers from 0 on"
                )
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


def decay_groups(model: torch.nn.Module, weight_decay: float) -> List[Dict[str, Any]]:
    """Parameter groups: matrices and embeddings with weight decay, the rest without."""
    matrices = [parameter for parameter in model.parameters() if len(whole_shape(parameter)) > 1]
    vectors = [parameter for parameter in model.parameters() if len(whole_shape(parameter)) <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def whole_shape(parameter: torch.Tensor) -> torch.Size:
    """The shape of the whole parameter; ZeRO-3 leaves a shard in it."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


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
