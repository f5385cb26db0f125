"""state.pt, the form of a whole state in earlier versions: each strategy kept its optimizer's state as it was."""

from __future__ import annotations

import inspect
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, Dict, Mapping, Sequence

import torch

from trainer.errors import UserError
from trainer.state_keys import EMA
from trainer.values import Tree


def load_state(file: Path | BinaryIO, name: str) -> Tree:
    """
    Load the saved state to the CPU.

    Args:
        file: its hash was verified before: torch 1.10 has no weights_only. The tensors are mapped from a path, if torch can (>= 2.1).
        name: of the checkpoint, for messages.
    """
    known = inspect.signature(torch.load).parameters
    more = {"weights_only": True} if "weights_only" in known else {}
    if isinstance(file, Path) and "mmap" in known:
        more["mmap"] = True
    try:
        return torch.load(str(file) if isinstance(file, Path) else file, map_location="cpu", **more)
    except (UnpicklingError, RuntimeError, EOFError) as exc:
        raise UserError(f"{name}: state.pt: cannot be loaded: {str(exc).splitlines()[0]}") from exc


def named(
    state: Mapping[str, Any], sizes: Mapping[str, int], *, keep_scale: bool, keep_ema: bool = False
) -> Dict[str, Any]:
    """
    The form of Strategy.state(), by the names of the parameters; no tensor is copied but the step counts.

    Args:
        state: as saved. DDP and ZeRO-0 number the parameters, FSDP2 names them, ZeRO 1 to 3 have one step count for all.
        sizes: parameters of the model, in its order.
        keep_scale: keep the state of fp16's loss scaler.
        keep_ema: keep the averages of the weights.
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
    moments = {  # an older SGD without momentum keeps None
        name: {key: value for key, value in values.items() if value is not None and (key != EMA or keep_ema)}
        for name, values in moments.items()
    }
    scaler = {"scaler": state["scaler"]} if keep_scale and "scaler" in state else {}
    return {"model": state["model"], "moments": {name: values for name, values in moments.items() if values}, **scaler}


def numbered_names(dimensions: Mapping[str, int]) -> Sequence[str]:
    """The names in the order of the optimizer's groups (optim/optimizer.py): matrices first."""
    return sorted(dimensions, key=lambda name: dimensions[name] <= 1)


def _tensor(step: torch.Tensor | float) -> torch.Tensor:  # a number in DeepSpeed's Adam for CPUs
    return step.clone() if isinstance(step, torch.Tensor) else torch.tensor(float(step))
