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
# DeepSpeed's functions that state.py calls, by stage and file; the vendor's 0.9.2 lacks some.
READS = ("safe_get_full_fp32_param", "safe_get_full_optimizer_state")
WRITES = ("safe_set_full_fp32_param", "safe_set_full_optimizer_state")
WRITES_STAGE_3 = ("safe_set_local_fp32_param", "safe_set_local_optimizer_state")
NEEDED: Dict[int, Dict[str, Sequence[str]]] = {
    0: {},
    1: {"__init__.py": (*READS, *WRITES), "tensor_fragment.py": ("set_optim_state_fragment",)},
    2: {"__init__.py": (*READS, *WRITES), "tensor_fragment.py": ("set_optim_state_fragment",)},
    3: {"__init__.py": (*READS, *WRITES_STAGE_3)},
}


def package_problem(accelerator: str, config: TrainConfig) -> str:
    """Return why config.strategy cannot be used on `accelerator` here, with the remedy, or ""."""
    spec = importlib.util.find_spec("deepspeed")
    if spec is None:
        return f"strategy={config.strategy}: deepspeed is not installed: pip install --no-build-isolation deepspeed, or use strategy=ddp"
    version = _version()
    if accelerator.startswith("gcu") and VENDOR_SUFFIX not in version:
        return (
            f"strategy={config.strategy}: deepspeed {version} does not know GCUs; install the one of TopsRider "
            "(0.9.2+gcu has zero0 alone), or use strategy=ddp"
        )
    lacking = [
        name for folder in spec.submodule_search_locations or () for name in _lacking(Path(folder), config.strategy)
    ]
    if lacking:
        newer = "" if accelerator.startswith("gcu") else "pip install --no-build-isolation --upgrade deepspeed, or "
        return (
            f"strategy={config.strategy}: deepspeed {version} is too old to save and load by: it lacks {', '.join(lacking)}; "
            f"{newer}use strategy=ddp or zero0"
        )
    tools = (os.environ.get("CXX", "g++"), "ninja")
    if config.offload_optimizer and not all(shutil.which(tool, path=search_path()) for tool in tools):
        return (
            "offload_optimizer=true: DeepSpeed compiles its Adam for CPUs at the first start; "
            "install a C++ compiler (g++ >= 9) and ninja on this node"
        )
    return ""


def bf16_optimizer_skips() -> bool:
    """Return True if DeepSpeed's BF16_Optimizer skips a step with a gradient that is not finite; it asserts or takes the step in 0.18.0."""
    spec = importlib.util.find_spec("deepspeed")
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    paths = [folder / "runtime" / "bf16_optimizer.py" for folder in folders]
    return any("is_invalid_grad_norm" in path.read_text("utf-8") for path in paths if path.exists())


def search_path() -> str:
    """Return PATH with the folder of this Python appended, where pip installs ninja."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])


def package_warning(accelerator: str, strategy: str) -> str:
    """Return a warning for a supported but unstable combination, or ""."""
    if accelerator.startswith("gcu") and strategy == "zero3":
        return f"WARNING: strategy=zero3 with deepspeed {_version()}: its vendor ships ZeRO-3 as an experiment only"
    return ""


def _lacking(package: Path, strategy: str) -> List[str]:
    """Return the names that its sources lack; none for a package without sources."""
    found: List[str] = []
    for file, names in NEEDED[ZERO_STAGES[strategy]].items():
        path = package / "utils" / file
        words = set(re.findall(r"\w+", path.read_text("utf-8"))) if path.exists() else set(names)
        found += [name for name in names if name not in words]
    return found


def _version() -> str:
    try:
        return metadata.version("deepspeed")
    except metadata.PackageNotFoundError:  # copied onto the path, not installed
        return "of unknown version"
