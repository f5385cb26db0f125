"""DeepSpeed's Adam for state on the CPU; compiled at the first start on a node."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import List

import torch

from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.optim.optimizer import decay_groups
from trainer.parallel.deepspeed.package import search_path
from trainer.parallel.deepspeed.threads import take_share_of_cpus
from trainer.runtime.group import Group
from trainer.values import Foreign


def cpu_adam(group: Group, config: TrainConfig, model: torch.nn.Module) -> Foreign:  # a DeepSpeedCPUAdam
    """Build it on all ranks. Raises UserError on all of them if it cannot be compiled on some node."""
    take_share_of_cpus(group, os.environ)
    os.environ["PATH"] = search_path()
    _warn_of_locks(group)
    adam, problem = None, ""
    try:
        adam = importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam(
            decay_groups(model, config.optim.weight_decay), lr=config.lr, betas=config.optim.betas, adamw_mode=True
        )
    except (RuntimeError, OSError, ImportError) as exc:
        problem = (
            f"offload_optimizer=true: DeepSpeed cannot build its Adam for CPUs (g++ >= 9 and ninja): {_cause(exc)}"
        )
    group.raise_if_any(problem)
    return adam


def _warn_of_locks(group: Group) -> None:
    """Warn of lock files: torch waits silently for another process that compiles, for ever if that was killed."""
    extensions = importlib.import_module("torch.utils.cpp_extension")
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or extensions.get_default_build_root())
    for lock in folder.glob("**/cpu_adam/lock") if group.rank.local_rank == 0 else ():
        log_line(
            f"WARNING: rank {group.rank.global_rank}: {lock}: DeepSpeed's Adam is being compiled by another program, or was when "
            "that was killed: this one waits until the file is gone, so remove it if nothing is compiling"
        )
    group.raise_if_any("")  # no rank compiles before all have looked


def _cause(error: BaseException | None) -> str:
    """Return the compiler's error line, or the last line of the chain of causes."""
    lines: List[str] = []
    while error is not None:
        lines += str(error).splitlines()
        error = error.__cause__
    return next((line for line in lines if "error: " in line), lines[-1])
