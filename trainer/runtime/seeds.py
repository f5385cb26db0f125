"""Where random numbers begin, and the switch that has torch compute the same bits each time."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from typing import Any, Iterator, MutableMapping

import torch

from trainer.config.config import TrainConfig
from trainer.errors import UserError
from trainer.runtime.accelerators import Accelerator

WORKSPACES = (":4096:8", ":16:8")  # with any other, cuBLAS may give other bits


def number_of(*parts: object) -> int:
    """A seed of 63 bits that follows from the parts; the same on every machine and Python."""
    name = "/".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1


def seed_everything(seed: int, accelerator: Accelerator) -> None:
    """Python's generator, torch's on the CPU and on devices, and numpy's where that is loaded."""
    random.seed(seed)
    torch.manual_seed(seed)
    accelerator.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed(seed % 2**32)


@contextlib.contextmanager
def as_if_nothing_were_drawn(accelerator: Accelerator) -> Iterator[None]:
    """What is drawn here from torch's generators, on the CPU and on this rank's device, is drawn again after it."""
    before = accelerator.rng_state()
    with torch.random.fork_rng(devices=[]):
        yield
    accelerator.set_rng_state(before)


def make_deterministic(config: TrainConfig, env: MutableMapping[str, str]) -> None:
    """
    Have torch use deterministic algorithms alone. Call it before anything is computed on a device.

    Raises:
        UserError: the environment says otherwise.
    """
    if not config.deterministic:
        return
    if env.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACES[0]) not in WORKSPACES:
        raise UserError(
            f"deterministic=true: CUBLAS_WORKSPACE_CONFIG={env['CUBLAS_WORKSPACE_CONFIG']} is set: "
            f"leave it out, or set one of {', '.join(WORKSPACES)}"
        )
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 -- torch's
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


@contextlib.contextmanager
def what_is_not_deterministic_is_told(config: TrainConfig) -> Iterator[None]:
    """torch refuses an operation of which it has no deterministic kind: a UserError with its words and the way out."""
    try:
        yield
    except RuntimeError as exc:
        if config.deterministic and "determinis" in str(exc):
            reason = str(exc).splitlines()[0].split(". ")[0]
            raise UserError(f"deterministic=true: {reason}: use another operation, or leave deterministic out") from exc
        raise


def doubt(config: TrainConfig, accelerator: str) -> str:
    """What deterministic=true cannot promise here, or ""."""
    if config.deterministic and accelerator.startswith("gcu"):
        return f"WARNING: deterministic=true: torch does not know which operations of {accelerator} are; results may differ"
    return ""
