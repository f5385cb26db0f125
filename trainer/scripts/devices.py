"""What a script can train on, as far as it has asked for it; and the word to its user, a line a node, where that is the CPU."""

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
    """The accelerator that is there; torch_gcu is not imported for a script that has not done so itself."""
    gcu, cards = sys.modules.get("torch_gcu"), sorted(glob.glob(GCU_FILES))
    found = choose("auto", sys.modules["torch"], lambda: (gcu, NOT_INSTALLED))
    if found.name == "cpu" and gcu is None and cards:
        warn(f"this node has {cards[0]}, but the script has not imported torch_gcu; training on the CPU")
    return found


def kinds_of(parameters: Iterable[Any]) -> set[str]:
    """Such as cuda, xla, gcu, cpu."""
    return {parameter.device.type for parameter in parameters}


def warn_of_idle_cards(accelerator: Accelerator, parameters: Iterable[Any]) -> None:
    """Parameters may be on the CPU by intent, as DeepSpeed's are with offload: then the card holds something else."""
    if accelerator.passed_over:
        there_is_only_the_cpu("the script", accelerator)
    if accelerator.name != "cpu" and kinds_of(parameters) == {"cpu"} and not accelerator.peak_memory():
        model_is_left_on_the_cpu(accelerator)


def model_is_left_on_the_cpu(accelerator: Accelerator) -> None:
    device = accelerator.device_string(local_rank())
    warn(
        f"the model's parameters are on the CPU although {device} is here: the script trains on the CPU; move the model to "
        f"{device!r} before it is wrapped and its optimizer is made, or take a version of its library that knows the device"
    )


def there_is_only_the_cpu(library: str, accelerator: Accelerator) -> None:
    why = accelerator.passed_over or "there is no CUDA device here that torch can use, and no GCU"
    warn(f"{why}: {library} trains on the CPU")


@functools.lru_cache(maxsize=None)
def warn(text: str) -> None:
    """Once, from the first rank of a node."""
    if local_rank() == 0:
        sys.stderr.write(f"WARNING: {text}\n")
