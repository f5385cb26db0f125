"""The test of a device: it passes on a CPU, wrong arithmetic and memory are found, and a child that hangs is killed."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainer.comm import smoke
from trainer.comm.smoke import check_device, compute
from trainer.runtime.accelerators import Cpu

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("function", "slow_calls", "figure", "per_s"),
    [("matmul", 2, "gemm_tflops", 2 * 512**3 / 1e12), ("equal", 4, "memory_gb_s", 8e6 / 1e9)],
)
def test_fastest_repetition_is_reported(
    monkeypatch: pytest.MonkeyPatch, function: str, slow_calls: int, figure: str, per_s: float
) -> None:
    """The first calls take 0.04 s, as those of a device whose clock is low, the others 0.01 s; `per_s` is the figure for 1 s."""
    calls, original, now_s = itertools.count(), getattr(torch, function), [0.0]

    def slow_at_first(left: torch.Tensor, right: torch.Tensor) -> object:
        now_s[0] += 0.03 if next(calls) < slow_calls else 0.0
        return original(left, right)

    def clock() -> float:
        now_s[0] += 0.01  # between two readings
        return now_s[0]

    monkeypatch.setattr(torch, function, slow_at_first)
    monkeypatch.setattr(smoke, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(smoke, "MEASURE_S", 0.1)
    monkeypatch.setattr(smoke, "MEMORY_CPU_BYTES", 4 << 20)
    result = compute(Cpu(torch), CPU)
    assert result["error"] == ""
    assert result[figure] == pytest.approx(per_s / 0.01, rel=0.1)  # the block of memory is not exactly 4 MB


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


@pytest.mark.extended
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
