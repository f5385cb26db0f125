"""Building a model without memory for its parameters, and with its buffers."""

from __future__ import annotations

import contextlib
from typing import Callable, Dict, Iterator

import torch


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """
    Within the block, parameters of new modules are moved to `meta` as soon as they are made; buffers and other tensors keep their values.

    So buffers that no file has, such as frequencies of positions, are right, and at most one parameter is in memory.
    """
    register = torch.nn.Module.register_parameter

    def on_meta(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextlib.contextmanager
def parameters_on_cpu(model: torch.nn.Module) -> Iterator[None]:
    """
    Within the block, the parameters on `meta` are on the CPU, each with the memory of one number.

    For code that makes parameters on the device of others. Those on `meta` before are there after the block.
    """
    stand_ins: Dict[torch.nn.Parameter, torch.nn.Parameter] = {}

    def stand_in(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        if not parameter.is_meta:
            return parameter
        number = torch.empty(1, dtype=parameter.dtype).expand(parameter.shape)
        made = torch.nn.Parameter(number, requires_grad=parameter.requires_grad)
        stand_ins[made] = parameter
        return made

    _replace(model, stand_in)
    try:
        yield
    finally:
        for made, parameter in stand_ins.items():
            parameter.requires_grad = made.requires_grad
        _replace(model, lambda parameter: stand_ins.get(parameter, parameter))


def _replace(model: torch.nn.Module, change: Callable[[torch.nn.Parameter], torch.nn.Parameter]) -> None:
    """Replace each parameter of the model; tied ones stay tied."""
    changed: Dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():  # noqa: SLF001 -- named_parameters() leaves out tied ones
            if parameter is not None:
                if parameter not in changed:
                    changed[parameter] = change(parameter)
                module._parameters[name] = changed[parameter]  # noqa: SLF001
