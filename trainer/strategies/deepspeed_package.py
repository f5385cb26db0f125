"""Whether DeepSpeed, and which one, is installed here; asked of the installation, without importing it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from importlib import metadata

from trainer.config import TrainConfig

VENDORS_MARK = "+gcu"


def package_problem(accelerator: str, config: TrainConfig) -> str:
    """Why config.strategy cannot be used on `accelerator` here, with the remedy; "" where it can."""
    if importlib.util.find_spec("deepspeed") is None:
        return f"strategy={config.strategy}: deepspeed is not installed: pip install --no-build-isolation deepspeed, or use strategy=ddp"
    version = _version()
    if accelerator.startswith("gcu") and VENDORS_MARK not in version:
        return (
            f"strategy={config.strategy}: deepspeed {version} does not know GCUs; install the one of TopsRider "
            "(0.9.2+gcu), or use strategy=ddp"
        )
    if config.offload_optimizer and not (shutil.which(os.environ.get("CXX", "g++")) and shutil.which("ninja")):
        return (
            "offload_optimizer=true: DeepSpeed compiles its Adam for CPUs at the first start; "
            "install a C++ compiler (g++ >= 9) and ninja on this node"
        )
    return ""


def package_warning(accelerator: str, strategy: str) -> str:
    """What is known to be shaky though it may be used; "" for nothing."""
    if accelerator.startswith("gcu") and strategy == "zero3":
        return f"WARNING: strategy=zero3 with deepspeed {_version()}: its vendor ships ZeRO-3 as an experiment only"
    return ""


def _version() -> str:
    try:
        return metadata.version("deepspeed")
    except metadata.PackageNotFoundError:  # copied onto the path, not installed
        return "of unknown version"
