"""torch.gcu.amp (TG2 gcu/amp): the scaler of torch, for tensors on a card alone."""

from __future__ import annotations

from typing import Any

import torch
import torch.amp


class GradScaler(torch.amp.GradScaler):
    """TG2 gcu/amp/grad_scaler.py."""

    def __init__(self, init_scale: float = 2.0**16) -> None:
        super().__init__("cpu", init_scale=init_scale)

    def scale(self, outputs: Any) -> Any:
        if outputs.device.type != "gcu":
            raise ValueError("Device type of outputs should be gcu.")
        return super().scale(outputs)
