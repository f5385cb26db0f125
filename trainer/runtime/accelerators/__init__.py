"""
The kinds of devices that a rank trains on: Cpu, Cuda, GcuI3x (S60, L300), GcuT2x (T20, T21, i20); choose() selects one.

The two GCU classes follow the vendor's published sources and were not verified on hardware. No process group is needed
here, and torch is an argument, so that every class can be tested without its device.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import sys
from typing import Any, Callable

from ...errors import UserError  # relative: scripts import this package under another name (trainer/scripts)
from ...values import Foreign
from .base import Accelerator
from .cpu import Cpu
from .cuda import CopyStream, Cuda
from .gcu import NO_SCALER_T2X, GcuI3x, GcuT2x

__all__ = ["NO_SCALER_T2X", "Accelerator", "CopyStream", "Cpu", "Cuda", "GcuI3x", "GcuT2x", "choose"]
CUDA_FILES = "/dev/nvidia[0-9]*"
GCU_FILES = "/dev/gcu*"
NOT_INSTALLED = "torch_gcu is not installed for this Python"
INSTALL_GCU = "install TopsRider and its torch_gcu for this Python"
NO_CARD = "torch_gcu finds no device (efsmi, /dev/gcu*, TOPS_VISIBLE_DEVICES)"


def load_torch_gcu() -> tuple[Any, str]:
    """Import torch_gcu, which registers the device and the backend eccl: (torch_gcu, ""), or (None, the problem)."""
    if importlib.util.find_spec("torch_gcu") is None:
        cards = sorted(glob.glob(GCU_FILES))
        return None, NOT_INSTALLED + (f", though this node has {cards[0]}" if cards else "")
    try:
        return importlib.import_module("torch_gcu"), ""
    except (ImportError, OSError, RuntimeError) as exc:  # a missing driver library shows as any of the three
        return None, f"torch_gcu is installed but cannot be imported: {exc}"


def choose(requested: str, torch: Foreign, load_gcu: Callable[[], tuple[Any, str]] = load_torch_gcu) -> Accelerator:
    """
    Return the accelerator for `requested`: auto, cuda, gcu or cpu. auto takes the first that is present, in this order.
    Raises UserError: cuda or gcu was requested and is not present; the message has the remedy.
    """
    if requested == "cpu":
        return Cpu(torch)
    # After the vendor's migration (trainer/scripts/gcu.py), torch.cuda is torch.gcu.
    is_gcu = getattr(sys.modules.get("torch_gcu"), "is_transfer_to_gcu", False)
    if requested in ("auto", "cuda") and not is_gcu and torch.cuda.is_available() and torch.cuda.device_count() > 0:
        return Cuda(torch)
    if requested == "cuda":
        raise UserError(f"device=cuda: {_why_no_cuda(torch)}, or use device=cpu")
    gcu, problem = load_gcu()
    if gcu is not None:
        module = torch.gcu if hasattr(torch, "gcu") else gcu
        if module.is_available() and int(module.device_count()) > 0:
            return GcuI3x(torch) if hasattr(torch, "gcu") else GcuT2x(torch, gcu)
        problem = NO_CARD
    if requested == "gcu":
        raise UserError(f"device=gcu: {problem}; {INSTALL_GCU}, or use device=cpu")
    return Cpu(torch).changed(unusable_card=_unusable_card(torch, problem))


def _unusable_card(torch: Foreign, gcu_problem: str) -> str:
    cards = sorted(glob.glob(CUDA_FILES))
    if cards:
        return f"this node has {cards[0]}, but {_why_no_cuda(torch)}"
    return "" if gcu_problem == NOT_INSTALLED else f"{gcu_problem}; {INSTALL_GCU}"


def _why_no_cuda(torch: Foreign) -> str:
    if getattr(torch.version, "cuda", None):
        return "no NVIDIA device or driver is visible to torch (see nvidia-smi, CUDA_VISIBLE_DEVICES)"
    return f"torch {torch.__version__} is built without CUDA; install a CUDA build"
