"""torch.compile of blocks, with a backend that runs graphs as they are; tests/train/test_options.py compiles with inductor."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from trainer.parallel.compiling import compile_blocks


def test_blocks_of_torchs_classes_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile skips the functions of torch, so of an nn.Sequential it compiled nothing."""
    compile_module: Any = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: compile_module(module, backend="eager"))
    settings: Any = importlib.import_module("torch._dynamo").config
    monkeypatch.setattr(settings, "optimize_ddp", settings.optimize_ddp)  # restored after the test
    torch.compiler.reset()
    counters: Any = importlib.import_module("torch._dynamo.utils").counters
    counters.clear()
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)), nn.Linear(1, 1))
    with torch.no_grad():
        expected = model(torch.ones(2, 4))
        compile_blocks(model, [model[0]], [[model[1]]])
        assert torch.equal(model(torch.ones(2, 4)), expected)
    assert counters["stats"]["unique_graphs"] == 2
