"""
The state of a ZeRO engine as whole tensors, in the same form as under other strategies.

Each rank keeps flat slices of the fp32 weights and of Adam's state. They are gathered one parameter at a time, so no rank
but 0 holds more than one whole tensor. docs/decisions/010 explains why DeepSpeed's own files are not used.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

import torch

from trainer.optim.optimizer import whole_shape
from trainer.parallel.parts import Part, persistent_buffers
from trainer.runtime.group import Group
from trainer.state_keys import MODEL, MOMENTS
from trainer.values import Foreign

SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def collect(engine: Foreign, *, keep: bool) -> Dict[str, Any]:
    """
    Gather the weights in fp32, Adam's moments and step, and the loss scale. All ranks must call.

    Args:
        engine: stage 1, 2 or 3.
        keep: return the tensors on this rank, on the CPU.
    """
    tools = importlib.import_module("deepspeed.utils")
    sharded, parameters, model, moments = engine.optimizer, dict(engine.module.named_parameters()), {}, {}
    started = next((values for values in sharded.optimizer.state.values() if values), None)
    if started:
        _link(sharded, parameters)
    for name, parameter in parameters.items():
        whole = {"weights": tools.safe_get_full_fp32_param(parameter)}
        for key in MOMENTS if started else ():
            whole[key] = tools.safe_get_full_optimizer_state(parameter, key)
        if keep:
            on_cpu = {key: value.detach().cpu().clone() for key, value in whole.items()}
            model[name] = on_cpu.pop("weights")
            moments.update({name: {"step": started["step"], **on_cpu}} if started else {})
    for name, buffer in persistent_buffers(engine.module).items() if keep else ():
        model[name] = buffer.detach().cpu().clone()
    first = {parameter: name for name, parameter in parameters.items()}
    for name, tensor in engine.module.state_dict(keep_vars=True).items() if keep else ():
        if name not in model and tensor in first:  # a tied weight has two names, as in the state of other strategies
            model[name] = model[first[tensor]]
    return {"model": model, "moments": moments, "scaler": scale(engine)}


def scale(engine: Foreign) -> Dict[str, Any]:
    """The state of the loss scaler; empty without fp16."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    return {key: getattr(scaler, key) for key in SCALER if hasattr(scaler, key)}


def load_scale(engine: Foreign, scaler: Mapping[str, Any]) -> None:
    """Load the state of torch's loss scaler or of DeepSpeed's."""
    for key, value in ({"cur_scale": scaler["scale"]} if "scale" in scaler else scaler).items():
        setattr(engine.optimizer.loss_scaler, key, value)


def clip_gradients(engine: Foreign, limit: float) -> float:
    """Clip the averaged gradients of stage 1 or 2 to this norm over all ranks, 0 for none; return the norm before. All ranks must call."""
    norm = float(engine.optimizer.scaled_global_norm())
    for gradients in engine.optimizer.averaged_gradients.values() if 0 < limit < norm else ():
        for gradient in gradients:
            gradient.mul_(limit / norm)
    return norm


def local_parts(engine: Foreign, group: Group) -> Tuple[List[Part], float | None]:
    """The fp32 weights and moments that this rank has, and Adam's step; None before the first step."""
    sharded, parameters = engine.optimizer, dict(engine.module.named_parameters())
    started = next((values for values in sharded.optimizer.state.values() if values), None)
    if started:
        _link(sharded, parameters)
    keys = MOMENTS if started else ()
    find = _parts_of_stage_3 if hasattr(sharded, "fp32_partitioned_groups_flat") else _parts
    parts = [part for name, parameter in parameters.items() for part in find(name, parameter, keys, group)]
    return parts, float(started["step"]) if started else None


def parts_to_load(engine: Foreign, steps: Mapping[str, float], group: Group) -> List[Part]:
    """The parts of this rank, with moments if there are `steps`, and the low-precision weights, which are set as a whole."""
    sharded, parameters = engine.optimizer, dict(engine.module.named_parameters())
    if steps:
        _make_moments(sharded, parameters, torch.tensor(next(iter(steps.values()))))
    keys = MOMENTS if steps else ()
    is_stage_3 = hasattr(sharded, "fp32_partitioned_groups_flat")
    find, set_weights_of = (_parts_of_stage_3, _set_weights_of_stage_3) if is_stage_3 else (_parts, _set_weights_of)
    parts = []
    for name, parameter in parameters.items():
        store = functools.partial(set_weights_of, parameter, group)
        parts.append(
            Part(f"{MODEL}/{name}", tuple(whole_shape(parameter)), 0, parameter, is_replicated=True, store=store)
        )
        parts += find(name, parameter, keys, group)
    return parts


def _parts(name: str, parameter: Foreign, keys: Sequence[str], group: Group) -> Iterator[Part]:  # as for stage 3
    """Stage 1 and 2: the fragment of a parameter in this rank's slice of the group."""
    mapping = getattr(parameter, "_hp_mapping", None)  # None if this rank has no fragment of it
    if mapping is not None:
        shape, start = tuple(parameter.shape), mapping.lp_fragment_address.start
        yield Part(f"{MODEL}/{name}", shape, start, mapping.hp_fragment)
        for key in keys:
            yield Part(f"{key}/{name}", shape, start, mapping.optim_fragment[key])


def _parts_of_stage_3(name: str, parameter: Foreign, keys: Sequence[str], group: Group) -> Iterator[Part]:
    """Stage 3: equal slices, the last ones padded."""
    tools = importlib.import_module("deepspeed.utils")
    shape, count = tuple(whole_shape(parameter)), parameter.ds_tensor.numel()
    start = min(whole_shape(parameter).numel(), count * group.rank.global_rank)
    used = min(whole_shape(parameter).numel() - start, count)

    def part(key: str, whole: torch.Tensor, set_local: Callable[[torch.Tensor], None]) -> Part:
        def store(values: torch.Tensor) -> None:
            padded = torch.zeros(count, dtype=values.dtype)
            padded[:used] = values
            set_local(padded.to(group.device))

        return Part(f"{key}/{name}", shape, start, whole.detach()[:used], store=store)

    yield part(
        MODEL,
        tools.safe_get_local_fp32_param(parameter),
        lambda values: tools.safe_set_local_fp32_param(parameter, values),
    )
    for key in keys:
        whole = tools.safe_get_local_optimizer_state(parameter, key)
        yield part(
            key,
            whole,
            lambda values, key=key: tools.safe_set_local_optimizer_state(parameter, values, key),  # type: ignore[misc]
        )


def _set_weights_of(parameter: Foreign, group: Group, values: torch.Tensor) -> None:  # as for stage 3
    parameter.data.copy_(values.view(parameter.shape))


def _set_weights_of_stage_3(parameter: Foreign, group: Group, values: torch.Tensor) -> None:
    gathered = importlib.import_module("deepspeed").zero.GatheredParameters
    with gathered([parameter], modifier_rank=0):
        if group.rank.is_main:
            parameter.data.copy_(values.view(whole_shape(parameter)))


def copy_weights(model: torch.nn.Module) -> Dict[str, torch.Tensor]:
    """Copies on the CPU."""
    return {name: weight.detach().to("cpu", copy=True) for name, weight in model.named_parameters()}


def set_weights(engine: Foreign, group: Group, whole: Callable[[str, Any], torch.Tensor]) -> None:
    """Set all weights, also in fp32, to what `whole` returns on rank 0 for a name and a parameter."""
    parts: Dict[str, List[Part]] = {}
    for part in parts_to_load(engine, {}, group):
        parts.setdefault(part.key, []).append(part)
    for name, parameter in engine.module.named_parameters():
        weights = whole(name, parameter).float() if group.rank.is_main else torch.empty(whole_shape(parameter))
        group.broadcast(weights)
        for part in parts[f"{MODEL}/{name}"]:
            part.load_from(weights)


def _flat_slices(sharded: Foreign) -> List[torch.Tensor]:
    """This rank's fp32 weights, one tensor per parameter group; DeepSpeed's classes use different names."""
    names = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition")
    flat: List[torch.Tensor] = next(getattr(sharded, name) for name in names if hasattr(sharded, name))
    return flat


def _make_moments(sharded: Foreign, parameters: Mapping[str, Any], step: Foreign) -> None:
    """Create Adam's state, which it would create in its first step, to be filled."""
    inner, flat = sharded.optimizer, _flat_slices(sharded)
    for weights in flat:
        # A fused Adam keeps its step count on the device, DeepSpeed's Adam for CPUs as a plain number.
        mine = step.to(weights.device if inner.defaults.get("fused") else "cpu", copy=True)
        mine = mine if isinstance(inner, torch.optim.AdamW) else int(mine)
        inner.state[weights] = {"step": mine, **{key: torch.zeros_like(weights) for key in MOMENTS}}
    _link(sharded, parameters)


def _link(sharded: Foreign, parameters: Mapping[str, Any]) -> None:
    """
    Link every parameter of stage 1 and 2 to its fragment of the moments.

    DeepSpeed links all in the first step of the first parameter group, when the second has no moments yet.
    """
    flat = _flat_slices(sharded)
    for parameter in parameters.values():
        mapping = getattr(parameter, "_hp_mapping", None)  # None if this rank has no fragment of it
        if mapping is not None:
            state, address = sharded.optimizer.state[flat[mapping.param_group_index]], mapping.hp_fragment_address
            mapping.optim_fragment = {key: state[key].narrow(0, address.start, address.numel) for key in MOMENTS}
