"""The accelerator of a script, and one warning per node if that is the CPU."""

from __future__ import annotations

import functools
import glob
import os
import sys
from typing import Any, Iterable

from ..runtime.accelerators import GCU_FILES, NOT_INSTALLED, Accelerator, choose

# `Any` below stands for torch and its parameters, which is not imported here.


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def accelerator_of_script() -> Accelerator:
    """The accelerator of this rank; torch_gcu counts only if the script has imported it."""
    gcu, cards = sys.modules.get("torch_gcu"), sorted(glob.glob(GCU_FILES))
    found = choose("auto", sys.modules["torch"], lambda: (gcu, NOT_INSTALLED))
    if found.name == "cpu" and gcu is None and cards:
        warn(f"this node has {cards[0]}, but the script has not imported torch_gcu; training on the CPU")
    return found


def kinds_of(parameters: Iterable[Any]) -> set[str]:
    """The device types: cuda, xla, gcu, cpu."""
    return {parameter.device.type for parameter in parameters}


def warn_of_idle_cards(accelerator: Accelerator, parameters: Iterable[Any]) -> None:
    """Warn if a card is unused. With DeepSpeed's offload, parameters are on the CPU by intent, and the card holds other tensors."""
    if accelerator.unusable_card:
        warn_cpu_only("the script", accelerator)
    if accelerator.name != "cpu" and kinds_of(parameters) == {"cpu"} and not accelerator.peak_memory():
        warn_model_on_cpu(accelerator)


def warn_model_on_cpu(accelerator: Accelerator) -> None:
    device = accelerator.device_string(local_rank())
    warn(
        f"the model's parameters are on the CPU although {device} is here: the script trains on the CPU; move the model to "
        f"{device!r} before it is wrapped and its optimizer is made, or take a version of the library that knows the device"
    )


def warn_cpu_only(library: str, accelerator: Accelerator) -> None:
    why = accelerator.unusable_card or "there is no CUDA device here that torch can use, and no GCU"
    warn(f"{why}: {library} trains on the CPU")


@functools.lru_cache(maxsize=None)
def warn(text: str) -> None:
    """Print a warning once, on local rank 0."""
    if local_rank() == 0:
        sys.stderr.write(f"WARNING: {text}\n")
