"""TG1 amp: autocast for two types, and a scaler whose step works with use_zero_grad=True alone."""

from __future__ import annotations

from typing import Any

import torch

from .. import fetch_gradients, unlazy


class autocast:  # the vendor's name
    """TG1 amp/autocast_mode.py."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> None:
        if dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError(
                f"Current GCU Device does not support {dtype}. Please switch dtype to float16 && bfloat16."
            )
        self._inner: Any = torch.autocast("cpu", dtype=dtype, enabled=enabled)

    def __enter__(self) -> None:
        self._inner.__enter__()

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)


class GradScaler:
    """TG1 amp/grad_scaler.py, with a constant scale."""

    def __init__(self, init_scale: float = 2.0**16, *, use_zero_grad: bool = False) -> None:
        self._scale, self._use_zero_grad = init_scale, use_zero_grad

    def scale(self, outputs: torch.Tensor) -> torch.Tensor:
        assert outputs.device.type == "xla"
        return outputs * self._scale

    def step(self, optimizer: Any) -> None:
        gradients = fetch_gradients(optimizer)
        if not self._use_zero_grad:
            unlazy([], device=str(gradients[0].device))  # type: ignore[call-arg]  # the vendor's bug: a TypeError
        for gradient in gradients:
            gradient.div_(self._scale).nan_to_num_()
        optimizer.step()
