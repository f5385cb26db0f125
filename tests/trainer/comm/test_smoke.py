"""The test of a device: it passes on a CPU, wrong arithmetic and memory are found, and a child that hangs is killed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from trainer.comm.smoke import check_device, compute
from trainer.runtime.accelerators import Cpu

CPU = torch.device("cpu")


def test_sound_device_passes() -> None:
    result = compute(Cpu(torch), CPU)
    assert result["error"] == ""
    assert result["gemm_tflops"] > 0
    assert result["memory_gb_s"] > 0


@pytest.mark.parametrize(("value", "problem"), [(float("nan"), "is not finite"), (7.0, "has 1 wrong elements")])
def test_wrong_product_is_found(monkeypatch: pytest.MonkeyPatch, value: float, problem: str) -> None:
    multiply = torch.matmul

    def faulty(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        product = multiply(left, right)
        product[3, 4] = value
        return product

    monkeypatch.setattr(torch, "matmul", faulty)
    assert problem in compute(Cpu(torch), CPU)["error"]


def _interpreter(tmp_path: Path, line: str) -> str:
    """A program in the place of Python."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{line}\n", "utf-8")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("exec sleep 1000", "did not end within 0.2 s"),
        ("echo 'CUDA error: wedged' >&2; exit 3", "ended with status 3: CUDA error: wedged"),
        ("kill -KILL $$", "ended with status -9: no output"),
    ],
)
@pytest.mark.processes
def test_child_that_hangs_or_dies_is_an_error_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, problem: str
) -> None:
    monkeypatch.setattr(sys, "executable", _interpreter(tmp_path, line))
    assert problem in check_device("cpu", 0, 0.2)["error"]
