"""
CPUs as an accelerator of DeepSpeed 0.9.2, which has none for them: the vendor's fork brings its own in the same way.

DeepSpeed 0.9.2 looks for this module by name. Streams and events do nothing, because operations on a CPU end before they return.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator  # type: ignore[import-untyped]

setattr(np, "BUFSIZE", 8192)  # noqa: B010 -- not in newer versions of numpy; DeepSpeed's autotuner imports it


def _nothing(*_: object, **__: object) -> None:
    return None


def _stream(*_: object, **__: object) -> SimpleNamespace:
    return SimpleNamespace(synchronize=_nothing, wait_stream=_nothing, wait_event=_nothing)


class _Flattening:
    """In place of an operator that DeepSpeed compiles."""

    def load(self) -> SimpleNamespace:
        return SimpleNamespace(
            flatten=torch._utils._flatten_dense_tensors,
            unflatten=torch._utils._unflatten_dense_tensors,
        )


_METHODS: dict[str, Any] = {
    **dict.fromkeys(DeepSpeedAccelerator.__abstractmethods__, _nothing),
    **{
        name: (lambda *_: 0)
        for name in DeepSpeedAccelerator.__abstractmethods__
        if "memory" in name and "pin" not in name
    },
    "__init__": lambda self: setattr(self, "_name", "cpu"),
    "device_name": lambda *_: "cpu",
    "current_device_name": lambda *_: "cpu",
    "current_device": lambda *_: "cpu",
    "device_count": lambda *_: 2,
    "communication_backend_name": lambda *_: "gloo",
    "is_available": lambda *_: True,
    "is_bf16_supported": lambda *_: True,
    "is_fp16_supported": lambda *_: False,
    "on_accelerator": lambda _, tensor: tensor.device.type == "cpu",
    "pin_memory": lambda _, tensor: tensor,
    "Stream": _stream,
    "Event": lambda *_, **__: SimpleNamespace(record=_nothing, synchronize=_nothing),
    "current_stream": _stream,
    "default_stream": _stream,
    "stream": lambda *_: contextlib.nullcontext(),
    "FloatTensor": property(lambda _: torch.FloatTensor),
    "ByteTensor": property(lambda _: torch.ByteTensor),
    "get_op_builder": lambda *_: _Flattening,
    "create_op_builder": lambda *_: _Flattening(),
}
XPU_Accelerator = type("XPU_Accelerator", (DeepSpeedAccelerator,), _METHODS)
