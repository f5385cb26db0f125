"""The benchmark counts what a card would have to launch: operations that compute, each once."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from bench.trainer import count_launches


def test_innermost_operations_count_and_lists_count_once(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        square = torch.ones(4, 4)  # fills
        product = square @ square  # matmul calls mm
        product.t().reshape(16)[:8].view(2, 4).detach()  # a copy for the other order, and views
        torch._foreach_add_([square, product, square], 1.0)  # as optimizers do; one by one on a CPU
    trace = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(trace))
    assert count_launches(json.loads(trace.read_text())["traceEvents"]) == 4
