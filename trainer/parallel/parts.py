"""The part of the training state that one rank holds, from which it writes its shard of a checkpoint, and into which it reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

import torch

from trainer.errors import UserError
from trainer.runtime.group import Group
from trainer.state_keys import FURTHER_MOMENTS, MODEL, MOMENTS


@dataclass(frozen=True)
class Part:
    """
    Contiguous elements of a flattened tensor.

    key: model/NAME for a weight or buffer, and the moments' as in state_keys.py, such as exp_avg/NAME.
    shape: of the whole tensor.
    start: the first element, of the flattened whole.
    tensor: the elements, in any shape.
    is_replicated: every rank has the same; one of them writes it.
    replica, replicas: this rank is number `replica` of `replicas` ranks with the same elements; each writes an equal part of them.
    store: called with the loaded elements, flat and on the CPU; None: copy them into `tensor`.
    """

    key: str
    shape: Tuple[int, ...]
    start: int
    tensor: torch.Tensor
    is_replicated: bool = False
    replica: int = 0
    replicas: int = 1
    store: Callable[[torch.Tensor], None] | None = None

    def load(self, values: torch.Tensor) -> None:
        if self.store is not None:
            self.store(values)
        else:
            with torch.no_grad():
                self.tensor.copy_(values.view(self.tensor.shape))

    def missing_in(self, name: str) -> str:
        return f"{name}: {self.key} of shape {list(self.shape)} is not in it"

    def load_from(self, whole: torch.Tensor) -> None:
        """Load the elements of this part from the whole tensor, on the CPU."""
        size = whole.numel() if self.is_replicated else self.tensor.numel()
        self.load(whole.flatten()[self.start :][:size])

    def share(self) -> Tuple[int, int]:
        """The elements of `tensor`, from and to, that this rank writes."""
        size = self.tensor.numel()
        return size * self.replica // self.replicas, size * (self.replica + 1) // self.replicas


@dataclass(frozen=True)
class LocalState:
    """
    The state of one rank.

    steps: Adam's step count of each parameter that has its two moments.
    scaler: the state of fp16's loss scaler, plain values.
    aliases: further names of tied weights -> the name they are saved under.
    further: FURTHER_MOMENTS -> the parameters that have them.
    """

    parts: List[Part]
    steps: Dict[str, float]
    scaler: Dict[str, Any] = field(default_factory=dict)
    aliases: Dict[str, str] = field(default_factory=dict)
    further: Dict[str, List[str]] = field(default_factory=dict)


def put_replica(group: Group, weight: torch.Tensor, whole: Callable[[], torch.Tensor]) -> None:
    """Fill a weight that every rank has with the values that `whole` returns on rank 0; without gradients."""
    value = whole().to("cpu", weight.dtype) if group.rank.is_main else torch.empty(weight.shape, dtype=weight.dtype)
    group.broadcast(value)
    weight.copy_(value)


def whole_part(key: str, tensor: torch.Tensor) -> Part:
    """A tensor of which every rank has the same whole copy."""
    return Part(key, tuple(tensor.shape), 0, tensor, is_replicated=True)


def replicated_sizes(parts: Sequence[Part]) -> List[int]:
    return [math.prod(part.shape) for part in parts if part.is_replicated]


def persistent_buffers(model: torch.nn.Module) -> Dict[str, torch.Tensor]:
    """The buffers that a checkpoint holds, such as running means."""
    kept = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


def tied_names(model: torch.nn.Module) -> Dict[str, str]:
    """
    Further names of tied weights and buffers, in the model's state -> their first name.
    Raises UserError: on all ranks alike; the state has a value that is no tensor.
    """
    plain = [name for name, value in model.state_dict(keep_vars=True).items() if not isinstance(value, torch.Tensor)]
    if plain:
        raise UserError.agreed(f"{plain[0]}: shards hold tensors only")
    return first_names(model)


def first_names(model: torch.nn.Module) -> Dict[str, str]:
    """As tied_names(), without its check."""
    first = {tensor: name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    everything = {
        name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)
    }
    return {name: first[tensor] for name, tensor in everything.items() if first.get(tensor, name) != name}


def torch_parts(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, part: Callable[[str, torch.Tensor], Part]
) -> Iterator[Part]:
    """The weights and moments of one of torch's optimizers, each made by `part`."""
    for name, parameter in model.named_parameters():
        yield part(f"{MODEL}/{name}", parameter.detach())
        values = optimizer.state.get(parameter, {})
        for key in (*MOMENTS, *FURTHER_MOMENTS):
            if values.get(key) is not None:  # an older SGD without momentum keeps None
                yield part(f"{key}/{name}", values[key])


def buffer_parts(model: torch.nn.Module) -> List[Part]:
    """The persistent buffers, to be loaded by all ranks."""
    return [whole_part(f"{MODEL}/{name}", buffer) for name, buffer in persistent_buffers(model).items()]


def saved_buffers(model: torch.nn.Module, group: Group) -> List[Part]:
    """The persistent buffers on rank 0, whose values are saved: under DDP those of other ranks may differ."""
    return [replace(part, is_replicated=False) for part in buffer_parts(model)] if group.rank.is_main else []


def named_moments(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Dict[str, Dict[str, Any]]:
    """The state of one of torch's optimizers by the names of the parameters that have one."""
    states = {name: optimizer.state.get(parameter, {}) for name, parameter in model.named_parameters()}
    # an older SGD without momentum keeps None
    kept = {
        name: {key: value for key, value in of_name.items() if value is not None} for name, of_name in states.items()
    }
    return {name: of_name for name, of_name in kept.items() if of_name}


def described(moments: Mapping[str, Mapping[str, Any]]) -> Tuple[Dict[str, float], Dict[str, List[str]]]:
    """LocalState's steps and further moments of the state of an optimizer by names."""
    steps = {name: float(of_name["step"]) for name, of_name in moments.items() if "step" in of_name}
    having = {kind: [name for name, of_name in moments.items() if kind in of_name] for kind in FURTHER_MOMENTS}
    return steps, {kind: names for kind, names in having.items() if names}


def allocate_moments(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: Mapping[str, float],
    further: Mapping[str, Sequence[str]],
    *,
    step_device: torch.device,
) -> None:
    """Create the state that LocalState describes, with moments to be filled, in the optimizer's order, and remove all other state."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    kinds: Dict[str, List[str]] = {name: list(MOMENTS) for name in steps}
    for kind, having in further.items():
        for name in having:
            kinds.setdefault(name, []).append(kind)
    optimizer.state.clear()
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        name = names[parameter]
        if name in kinds:
            step = {"step": torch.tensor(steps[name], device=step_device)} if name in steps else {}
            moments = {key: torch.zeros_like(parameter, requires_grad=False) for key in kinds[name]}
            optimizer.state[parameter] = {**step, **moments}
