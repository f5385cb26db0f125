"""Seeds, deterministic algorithms, and the precision of fp32."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from typing import Any, Iterator, List, MutableMapping

import torch

from trainer.config.config import TrainConfig
from trainer.errors import UserError
from trainer.runtime.accelerators import Accelerator

WORKSPACES = (":4096:8", ":16:8")  # with other values, cuBLAS results may vary


def derive_seed(*parts: object) -> int:
    """Hash the parts to a 63-bit seed; the same on every machine and Python."""
    name = "/".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1


def seed_everything(seed: int, accelerator: Accelerator) -> None:
    """Seed Python's generator, torch's on the CPU and on the device, and numpy's if it is loaded."""
    random.seed(seed)
    torch.manual_seed(seed % 2**63)
    accelerator.seed(seed % 2**63)
    numpy: Any = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed(seed % 2**32)


@contextlib.contextmanager
def seeded_rng(seed: int) -> Iterator[None]:
    """Seed Python's, torch's and numpy's CPU generators within the block; restore their states afterwards."""
    numpy: Any = sys.modules.get("numpy")
    before: List[Any] = [random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy else None]
    random.seed(seed)
    torch.default_generator.manual_seed(seed % 2**63)  # torch.manual_seed would seed the devices too
    if numpy:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])
        if numpy:
            numpy.random.set_state(before[2])


@contextlib.contextmanager
def preserve_device_rng(accelerator: Accelerator) -> Iterator[None]:
    before = accelerator.rng_state()
    yield
    accelerator.set_rng_state(before)


def make_deterministic(config: TrainConfig, env: MutableMapping[str, str]) -> None:
    """
    Restrict torch to deterministic algorithms, if configured. Call it before the first computation on a device.
    Raises UserError: an environment variable contradicts it.
    """
    if not config.deterministic:
        return
    if env.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACES[0]) not in WORKSPACES:
        raise UserError(
            f"deterministic=true: CUBLAS_WORKSPACE_CONFIG={env['CUBLAS_WORKSPACE_CONFIG']} is set: "
            f"leave it out, or set one of {', '.join(WORKSPACES)}"
        )
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def set_tf32(*, allowed: bool) -> None:
    """Have CUDA compute products and convolutions of fp32 values in TF32 or in fp32: torch's own default is TF32 for the latter, and was for both."""
    # torch before 1.12 has no such function
    set_precision = getattr(torch, "set_float32_matmul_precision", lambda _precision: None)
    set_precision("high" if allowed else "highest")
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


@contextlib.contextmanager
def report_nondeterminism(config: TrainConfig) -> Iterator[None]:
    """Turn torch's error about an operation without a deterministic variant into a UserError with a remedy."""
    try:
        yield
    except RuntimeError as exc:
        if config.deterministic and "determinis" in str(exc):
            reason = str(exc).splitlines()[0].split(". ")[0]
            raise UserError(f"deterministic=true: {reason}: use another operation, or leave deterministic out") from exc
        raise


def determinism_warning(config: TrainConfig, accelerator: str) -> str:
    """Return a warning if deterministic=true is not guaranteed on this accelerator, else ""."""
    if config.deterministic and accelerator.startswith("gcu"):
        return f"WARNING: deterministic=true: torch does not know which operations of {accelerator} are deterministic; results may differ"
    return ""
