"""Whether DeepSpeed, and which one, is installed here; asked of the installation, without importing it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
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
    tools = (os.environ.get("CXX", "g++"), "ninja")
    if config.offload_optimizer and not all(shutil.which(tool, path=search_path()) for tool in tools):
        return (
            "offload_optimizer=true: DeepSpeed compiles its Adam for CPUs at the first start; "
            "install a C++ compiler (g++ >= 9) and ninja on this node"
        )
    return ""


def search_path() -> str:
    """PATH, and then where pip has put the ninja that DeepSpeed asks for: beside a Python that need not be on PATH."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])


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
