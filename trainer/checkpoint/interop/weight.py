"""A tensor in a file of weights, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Tuple

import torch


@dataclass(frozen=True)
class Weight:
    """
    One tensor, not read yet.

    file: that has it, or its index.
    kind: as safetensors name the type; other types by their names in torch.
    read: raises UserError; the message begins with the file.
    """

    file: str
    kind: str
    shape: Tuple[int, ...]
    size: int
    read: Callable[[], torch.Tensor]
