"""Checks of the installed DeepSpeed, without importing it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Dict, List, Sequence

from trainer.config.config import ZERO_STAGES, TrainConfig

VENDOR_SUFFIX = "+gcu"
# DeepSpeed's functions that the trainer calls, by stage; the vendor's 0.9.2 lacks some of stage 3.
READS = ("safe_get_full_fp32_param", "safe_get_full_optimizer_state")
WRITES_STAGE_3 = ("safe_set_local_fp32_param", "safe_set_local_optimizer_state")
COMPILES_STAGE_3 = "set_z3_leaf_module"
NEEDED: Dict[int, Sequence[str]] = {0: (), 1: READS, 2: READS, 3: (*READS, *WRITES_STAGE_3)}


def package_problem(accelerator: str, config: TrainConfig) -> str:
    """Return why config.strategy cannot be used on `accelerator` here, with the remedy, or ""."""
    spec = importlib.util.find_spec("deepspeed")
    if spec is None:
        return f"strategy={config.strategy}: deepspeed is not installed: pip install --no-build-isolation deepspeed, or use strategy=ddp"
    version = _version()
    if accelerator.startswith("gcu"):
        problem = _problem_on_gcu(config, version)
        if problem:
            return problem
    lacking = [name for folder in spec.submodule_search_locations or () for name in _lacking(Path(folder), config)]
    if lacking:
        newer = "" if accelerator.startswith("gcu") else "pip install --no-build-isolation --upgrade deepspeed, or "
        return (
            f"strategy={config.strategy}: deepspeed {version} is too old: it lacks {', '.join(lacking)}; "
            f"{newer}use strategy=ddp, zero0, zero1 or zero2"
        )
    if config.strategy == "zero1" and clips_fp16_alone():
        return (
            f"strategy=zero1: deepspeed {version} computes wrong gradients there (upstream's 0.9.2: 3 % off in the norm): "
            "use strategy=zero2, which needs less memory"
        )
    tools = (os.environ.get("CXX", "g++"), "ninja")
    if config.offload_optimizer and not all(shutil.which(tool, path=search_path()) for tool in tools):
        return (
            "offload_optimizer=true: DeepSpeed compiles its Adam for CPUs at the first start; "
            "install a C++ compiler (g++ >= 9) and ninja on this node"
        )
    return ""


def bf16_optimizer_skips() -> bool:
    """DeepSpeed's BF16_Optimizer skips a step with a gradient that is not finite; it asserts or takes the step in 0.18.0."""
    return "is_invalid_grad_norm" in _source("bf16_optimizer.py")


def clips_fp16_alone() -> bool:
    """DeepSpeed computes the norm of the gradients, and clips them, for fp16 alone under zero1 and zero2, as 0.9.2 does."""
    return bool(
        re.search(
            r"if self\.dtype == torch\.float16:\s+see_memory_usage\('Before norm", _source("zero/stage_1_and_2.py")
        )
    )


def _problem_on_gcu(config: TrainConfig, version: str) -> str:
    if VENDOR_SUFFIX not in version:
        return (
            f"strategy={config.strategy}: deepspeed {version} does not know GCUs; install the one of TopsRider "
            "(0.9.2+gcu has zero0 to zero2), or use strategy=ddp"
        )
    if config.offload_optimizer:
        return "offload_optimizer=true: the vendor's Adam for CPUs may hang (known issues of TopsRider 2): leave it out"
    if ZERO_STAGES[config.strategy] > 0 and config.precision != "fp32" and clips_fp16_alone():
        return (
            f"strategy={config.strategy} precision={config.precision}: deepspeed {version} adds micro batches in {config.precision}: "
            "use precision=fp32, or strategy=ddp"
        )
    return ""


def search_path() -> str:
    """Return PATH with the folder of this Python appended, where pip installs ninja."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])


def package_warning(accelerator: str, strategy: str) -> str:
    """Return a warning for a supported but unstable combination, or ""."""
    if accelerator.startswith("gcu") and strategy == "zero3":
        return f"WARNING: strategy=zero3 with deepspeed {_version()}: its vendor ships ZeRO-3 as an experiment only"
    return ""


def _lacking(package: Path, config: TrainConfig) -> List[str]:
    """Return the names that its sources lack; none for a package without sources."""
    compiled = [COMPILES_STAGE_3] if config.compile and config.strategy == "zero3" else []
    needed, path = [*NEEDED[ZERO_STAGES[config.strategy]], *compiled], package / "utils" / "__init__.py"
    words = set(re.findall(r"\w+", path.read_text("utf-8"))) if path.exists() else set(needed)
    return [name for name in needed if name not in words]


def _source(file: str) -> str:
    """Return the text of a file of deepspeed.runtime; empty if there is none."""
    spec = importlib.util.find_spec("deepspeed")
    paths = [Path(folder, "runtime", file) for folder in (spec.submodule_search_locations if spec else None) or ()]
    return "".join(path.read_text("utf-8") for path in paths if path.exists())


def _version() -> str:
    try:
        return metadata.version("deepspeed")
    except metadata.PackageNotFoundError:  # copied onto the path, not installed
        return "of unknown version"
