"""The table of accelerators: device strings, backends and default ranks."""

from __future__ import annotations

import pytest

from orchestrator.inventory.accelerators import ACCELERATORS, default_ranks


@pytest.mark.parametrize(
    ("name", "device", "backend", "visibility", "tool"),
    [
        ("cuda", "cuda:3", "nccl", "CUDA_VISIBLE_DEVICES", "nvidia-smi"),
        ("gcu-t2x", "xla:3", "eccl", "TOPS_VISIBLE_DEVICES", "efsmi"),
        ("gcu-i3x", "gcu:3", "eccl", "TOPS_VISIBLE_DEVICES", "efsmi"),
        ("cpu", "cpu", "gloo", "", ""),
    ],
)
def test_device_and_backend_of_each_accelerator(
    name: str, device: str, backend: str, *, visibility: str, tool: str
) -> None:
    row = ACCELERATORS[name]
    assert (row.device(3), row.backend, row.visibility, row.tool) == (device, backend, visibility, tool)


@pytest.mark.parametrize(("kind", "ranks"), [("cuda", 8), ("gcu", 8), ("cpu", 1), ("auto", 1)])
def test_default_ranks_of_a_node(kind: str, ranks: int) -> None:
    assert default_ranks(kind) == ranks
