"""The defaults that follow from the device, for settings that are not given; each can be set back by its key."""

from __future__ import annotations

import contextlib
import gc
from typing import Any, Dict, Iterator, Mapping, MutableMapping, Sequence, Tuple

from trainer.config.config import TrainConfig
from trainer.config.load import with_values

WORKERS = 2
SAVE_SHARE = 0.02
SEGMENTS = "expandable_segments:True"
COLLECT_STEPS = 100
"""Steps between collections of cyclic garbage."""
WHOLE_COLLECTIONS = 10
"""One of so many collections looks at all objects made since the start: the others leave those that an earlier one met alone."""


def with_device(config: TrainConfig, device: str, precisions: Sequence[str]) -> Tuple[TrainConfig, str]:
    """
    Return the settings with the defaults of a device, and a line that names those that differ from the ones of a CPU, or "".

    Args:
        config: of a start; a value that was given stays.
        device: the accelerator's name; only cuda has other defaults than a CPU.
        precisions: that the device supports.
    """
    if device != "cuda":
        return config, ""
    wanted: Dict[str, Any] = {"optim.fused": True, "data.workers": WORKERS, "data.pin_memory": True}
    if "precision" not in config.given and not config.deterministic:  # a given precision=fp32 is fp32
        wanted["tf32"] = True
    if "bf16" in precisions:
        wanted["precision"] = "bf16"
    return _unless_given(config, wanted)


def with_shards(config: TrainConfig, device: str, *, has_memory: bool) -> Tuple[TrainConfig, str]:
    """
    Return the settings with the defaults of checkpoints in shards, and a description of those that a CPU does not have, or "".

    Args:
        config: a given time of saving stays.
        device: only cuda has other defaults: cards may wait for the save of a large model as long as for hundreds of steps.
        has_memory: every node has memory for a copy of the shards.
    """
    if device != "cuda":
        return config, ""
    wanted: Dict[str, Any] = {"async_save": True} if has_memory else {}
    if not {"save_steps", "save_minutes"} & config.given:
        wanted["save_share"] = SAVE_SHARE
    return _unless_given(config, wanted)


def _unless_given(config: TrainConfig, wanted: Mapping[str, Any]) -> Tuple[TrainConfig, str]:
    found = {key: value for key, value in wanted.items() if key not in config.given}
    words = [f"{key}={str(value).lower()}" for key, value in found.items()]
    return with_values(config, found), f"defaults for cuda: {' '.join(words)}" if words else ""


def expand_segments(torch_version: str, env: MutableMapping[str, str]) -> None:
    """Let CUDA's allocator grow its segments, against fragmentation, unless the user has configured it. Call it before CUDA is used."""
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    if (major, minor) < (2, 2) or {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(env):
        return
    env["PYTORCH_ALLOC_CONF" if (major, minor) >= (2, 10) else "PYTORCH_CUDA_ALLOC_CONF"] = SEGMENTS


class Garbage:
    """Within held(), cyclic garbage is collected by after_step() alone, on all ranks after the same steps: otherwise each rank pauses in turn."""

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        was_enabled = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            yield
        finally:
            gc.unfreeze()
            if was_enabled:
                gc.enable()

    def after_step(self, step: int) -> None:
        if step % COLLECT_STEPS == 0:
            gc.collect(1 if step % (COLLECT_STEPS * WHOLE_COLLECTIONS) else 2)
