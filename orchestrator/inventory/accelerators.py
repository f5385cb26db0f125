"""
The accelerators, one row each: how torch names a device, which backend connects them, what hides and shows them.

Enflame has two generations that share only the name (both "gcu" in an inventory): a node's probe says which one it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One row of the table; a text that does not apply is empty."""

    name: str
    kind: str  # the word in an inventory: cuda, gcu or cpu
    devices: str  # the torch device of local rank n
    backend: str  # of torch.distributed (t2x: of torch_gcu.distributed, its own fork)
    visibility: str  # the variable that selects devices for a process
    tool: str  # the vendor's program that shows the devices
    ranks: int  # ranks a node where the inventory names no number

    def device(self, local_rank: int) -> str:
        """Name the torch device of a rank on its node."""
        return self.devices.format(n=local_rank)


_TABLE = (
    # CUDA_VISIBLE_DEVICES: CUDA C++ programming guide, "CUDA environment variables".
    Accelerator("cuda", "cuda", "cuda:{n}", "nccl", "CUDA_VISIBLE_DEVICES", "nvidia-smi", 8),
    # T20, T21, i20 with TopsRider_t2x: torch 1.10, torch_gcu/core/device.py knows `xla:` only and documents
    # TOPS_VISIBLE_DEVICES; torch_gcu/distributed has no backend but eccl. Read in the code, never run on a card.
    Accelerator("gcu-t2x", "gcu", "xla:{n}", "eccl", "TOPS_VISIBLE_DEVICES", "efsmi", 8),
    # S60, L300 with TopsRider_i3x: EnflameTechnology/torch-gcu 2.x renames PrivateUse1 to gcu and registers eccl with
    # the stock torch.distributed (torch_gcu/__init__.py). Read in the code, never run on a card.
    Accelerator("gcu-i3x", "gcu", "gcu:{n}", "eccl", "TOPS_VISIBLE_DEVICES", "efsmi", 8),
    Accelerator("cpu", "cpu", "cpu", "gloo", "", "", 1),
)

ACCELERATORS: Mapping[str, Accelerator] = MappingProxyType({row.name: row for row in _TABLE})


def default_ranks(kind: str) -> int:
    """Give the ranks a node has when the inventory names no number; 1 for "auto", where nothing is known yet."""
    return next((row.ranks for row in _TABLE if row.kind == kind), 1)
