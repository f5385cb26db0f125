"""
Scripts on an S60: the vendor's migration, by which code written for CUDA uses the card.

It replaces torch.cuda, the device `cuda` and the backend nccl in torch itself. So accelerate, Hugging Face's Trainer and MMEngine, which
know CUDA, train on the card. Taken from the vendor's published sources; not verified on hardware.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

from .devices import warn

SWITCH = "ENFLAME_TORCH_GCU_ENABLE_AUTO_MIGRATION"
OFF = ("0", "false", "no", "off")
MIGRATION = "torch_gcu.transfer_to_gcu"  # importing it migrates


def migrate_with_torch(torch: Any) -> None:
    """Migrate once torch is imported, unless torch_gcu has imported it: then torch_gcu has to be complete first."""
    if not _is_importing("torch_gcu") and _is_wanted(torch):
        _migrate()


def migrate_with_torch_gcu(_: Any) -> None:  # torch_gcu
    """Migrate once torch_gcu is imported, unless torch imports it as a backend: then torch has to be complete first."""
    if not _is_importing("torch") and _is_wanted(sys.modules["torch"]):
        _migrate()


def _is_wanted(torch: Any) -> bool:
    """Torch has no CUDA, torch_gcu has the migration, as that of the S60 does, and the user has not turned it off."""
    if getattr(getattr(torch, "version", None), "cuda", None) or os.environ.get(SWITCH, "1").strip().lower() in OFF:
        return False
    package = (
        importlib.util.find_spec("torch_gcu") if "torch_gcu" not in sys.modules else sys.modules["torch_gcu"].__spec__
    )
    folders = package.submodule_search_locations if package is not None else None
    return folders is not None and importlib.machinery.PathFinder.find_spec(MIGRATION, folders) is not None


def _migrate() -> None:
    os.environ.setdefault(SWITCH, "1")  # for the vendor's code and for children of the script
    try:
        importlib.import_module(MIGRATION)
    # A driver or library of another version causes any of these errors.
    except (ImportError, OSError, RuntimeError, AttributeError) as exc:
        warn(f"torch_gcu is installed, but its migration from CUDA fails: {exc}; {SWITCH}=0 turns it off")


def _is_importing(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
