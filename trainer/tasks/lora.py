"""LoRA by peft: small trained matrices beside frozen ones, lora.* in the settings."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from typing import Any, Dict, Iterator, Mapping, Sequence, Tuple

import torch

from trainer.config.config import LoraConfig
from trainer.errors import UserError
from trainer.values import Foreign, Model

ADAPTER = "lora_"
"""A part of the names of adapters, by peft."""
BASE = ".base_layer."  # peft's part of the name of a frozen weight beside a trained one


class Adapted(torch.nn.Module):
    """
    A model of which only the adapters are visible as parameters and state.

    So the optimizer, checkpoints, norms and fingerprints have nothing to leave out. frozen_weights() returns the rest.
    """

    # `Any` below stands for the arguments of Module, whatever this version of torch has.
    def named_parameters(self, *args: Any, **options: Any) -> Iterator[Tuple[str, torch.nn.Parameter]]:
        found = super().named_parameters(*args, **options)
        return ((name, parameter) for name, parameter in found if parameter.requires_grad)

    def state_dict(self, *args: Any, **options: Any) -> Dict[str, Any]:  # type: ignore[override]
        state: Dict[str, Any] = super().state_dict(*args, **options)
        start = options.get("prefix", "")
        for name, parameter in super().named_parameters(remove_duplicate=False):
            if not parameter.requires_grad:
                state.pop(f"{start}{name}", None)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], **options: Any) -> Foreign:  # type: ignore[override]
        differing = sorted(set(state_dict) ^ set(self.state_dict()))
        if differing:
            raise RuntimeError(f"not the adapters of this model: {', '.join(differing[:3])}")
        return super().load_state_dict(state_dict, **{**options, "strict": False})


def frozen_weights(model: torch.nn.Module) -> Dict[str, torch.nn.Parameter]:
    """The weights that are not trained, by their names without adapters; none of another model."""
    if not isinstance(model, Adapted):
        return {}
    found = torch.nn.Module.named_parameters(model)
    return {name.replace(BASE, "."): parameter for name, parameter in found if not parameter.requires_grad}


def narrow_frozen_weights(model: torch.nn.Module, precision: str) -> None:
    """Give frozen weights the 16-bit type of a precision, in which they are multiplied: nothing updates them."""
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    if narrow:
        for weight in frozen_weights(model).values():
            weight.data = weight.data.to(narrow)


def initialise_adapter(name: str, weight: torch.Tensor, seed: int) -> None:
    """The first values of an adapter, as those of peft: random in the first matrix, zeros in the second one."""
    if "lora_B" in name:
        weight.zero_()
    else:
        limit = weight.shape[1] ** -0.5
        weight.uniform_(-limit, limit, generator=torch.Generator().manual_seed(seed))


def add_adapters(model: Model, blocks: Sequence[torch.nn.Module], config: LoraConfig) -> None:  # changes its class
    """
    Freeze the model, and add adapters to the linear layers in its blocks whose names end with one of the targets.
    Raises UserError: there is no such layer, or peft is missing.
    """
    if importlib.util.find_spec("peft") is None:
        raise UserError(f"lora.rank={config.rank}: needs the package peft, which is not installed for {sys.executable}")
    linear = [name for block in blocks for name, module in block.named_modules() if isinstance(module, torch.nn.Linear)]
    known = sorted({name.rpartition(".")[2] for name in linear})
    unknown = [target for target in config.targets if target not in known]
    if unknown:
        raise UserError(
            f"lora.targets={','.join(config.targets)}: the model has no linear layer {', '.join(unknown)}; it has {', '.join(known)}"
        )
    peft: Any = importlib.import_module("peft")
    targets = list(config.targets)
    settings = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, lora_dropout=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # under ZeRO-3, peft initialises what is split already
        peft.inject_adapter_in_model(settings, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = ADAPTER in name
    model.__class__ = type(type(model).__name__, (Adapted, type(model)), {})
