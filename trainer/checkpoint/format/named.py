"""The saved state of any strategy in one form, by the names of parameters: another strategy and world size can load it."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

import torch

from trainer.state_keys import EMA


def named(
    state: Mapping[str, Any], sizes: Mapping[str, int], *, keep_scale: bool, keep_ema: bool = False
) -> Dict[str, Any]:
    """
    Convert what Strategy.state() returned; no tensor is copied but the step counts.

    Args:
        state: as saved. DDP and ZeRO-0 number the parameters, FSDP2 names them, ZeRO 1 to 3 have one step count for all.
        sizes: parameters of the model, in its order.
        keep_scale: keep the state of fp16's loss scaler.
        keep_ema: keep the averages of the weights.

    Returns:
        "model": name -> tensor, buffers included; "moments": name -> the optimizer's state, Adam's with its step, nothing before the first step;
        "scaler", if kept: as torch or DeepSpeed save it.
    """
    optimizer = state["optimizer"]
    if "moments" in optimizer:
        step = optimizer["step"]
        moments = (
            {}
            if step is None
            else {name: {"step": _tensor(step), **values} for name, values in optimizer["moments"].items()}
        )
    else:
        usual = numbered_names({name: state["model"][name].dim() for name in sizes})
        numbered = optimizer.get("names", usual)
        moments = {numbered[key] if isinstance(key, int) else key: values for key, values in optimizer["state"].items()}
    moments = {
        name: {key: value for key, value in values.items() if key != EMA or keep_ema}
        for name, values in moments.items()
    }
    scaler = {"scaler": state["scaler"]} if keep_scale and "scaler" in state else {}
    return {"model": state["model"], "moments": {name: values for name, values in moments.items() if values}, **scaler}


def numbered_names(dimensions: Mapping[str, int]) -> Sequence[str]:
    """The names in the order of the optimizer's groups (optim/optimizer.py): matrices first."""
    return sorted(dimensions, key=lambda name: dimensions[name] <= 1)


def _tensor(step: torch.Tensor | float) -> torch.Tensor:  # a number in DeepSpeed's Adam for CPUs
    return step.clone() if isinstance(step, torch.Tensor) else torch.tensor(float(step))
