"""Requirements of the settings on this rank's device, torch and packages, checked before anything is built."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil

import torch

from trainer.config.config import SELECTIVE, ZERO_STAGES, TrainConfig
from trainer.parallel.activation_checkpoint import can_recompute_selectively, can_recompute_without_reentry
from trainer.parallel.deepspeed.package import package_problem
from trainer.parallel.fp8 import unmet_fp8
from trainer.runtime.accelerators import Accelerator
from trainer.runtime.group import Group


def unmet_requirement(group: Group, config: TrainConfig) -> str:
    """Return the first requirement that this rank does not meet, with its remedy, or ""."""
    accelerator = group.accelerator
    problem = _precision_problem(accelerator, config)
    if problem:
        return problem
    if config.strategy != "ddp" and not group.rank.launched:
        return f"strategy={config.strategy} needs a process group: start through orch, or torchrun --nproc-per-node=1"
    if config.strategy in ZERO_STAGES:
        problem = package_problem(accelerator.name, config)
        if problem:
            return problem
    if config.strategy == "fsdp2" and not has_fully_shard():
        return f"strategy=fsdp2 needs torch >= 2.6, here is {torch.__version__}: use strategy=ddp or zero3"
    if config.optim.name == "muon" and not hasattr(torch.optim, "Muon"):
        return f"optim.name=muon needs torch >= 2.9, here is {torch.__version__}: use optim.name=adamw"
    return (
        unmet_fp8(accelerator, config)
        or _ddp_problem(accelerator, config)
        or _recomputing_problem(config)
        or _compiling_problem(group, config)
    )


def _ddp_problem(accelerator: Accelerator, config: TrainConfig) -> str:
    if config.sync_batchnorm and accelerator.name not in ("cuda", "gcu-i3x"):
        return f"sync_batchnorm=true: torch's SyncBatchNorm does not run on {accelerator.name}; leave it out"
    if config.gradient_as_bucket_view and accelerator.name == "gcu-t2x":
        return "gradient_as_bucket_view=true: torch_gcu's DistributedDataParallel refuses it on this card; leave it out"
    return ""


def _precision_problem(accelerator: Accelerator, config: TrainConfig) -> str:
    if config.tf32 and accelerator.name != "cuda":
        return f"tf32=true: {accelerator.name} has none: leave it out"
    if config.precision in accelerator.precisions():
        return ""
    known = f"{accelerator.name} with torch {torch.__version__} has {', '.join(accelerator.precisions())}"
    return f"precision={config.precision}: {(config.precision == 'fp16' and accelerator.no_fp16) or known}"


def has_fully_shard() -> bool:
    """FSDP2 under its public name."""
    found = importlib.util.find_spec("torch.distributed.fsdp")
    return found is not None and hasattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard")


def _recomputing_problem(config: TrainConfig) -> str:
    if config.activation_checkpointing == SELECTIVE and not can_recompute_selectively():
        return (
            f"activation_checkpointing=selective needs torch >= 2.4, here is {torch.__version__}: take "
            "activation_checkpointing=true"
        )
    if config.activation_checkpointing and config.find_unused_parameters and not can_recompute_without_reentry():
        return f"activation_checkpointing and find_unused_parameters exclude each other in torch {torch.__version__}"
    return ""


def _compiling_problem(group: Group, config: TrainConfig) -> str:
    if not config.compile:
        return ""
    if not hasattr(torch.nn.Module, "compile"):
        return f"compile=true needs torch >= 2.2, here is {torch.__version__}"
    if group.accelerator.name.startswith("gcu"):
        return "compile=true on a GCU: its compiler was never tried with this trainer; leave it out"
    if group.accelerator.name == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
        return "compile=true on a CPU needs a C++ compiler: install g++, or name one in CXX"
    if group.accelerator.name == "cuda" and not importlib.util.find_spec("triton"):
        return "compile=true on CUDA needs triton, which is not installed for this Python"
    return ""
