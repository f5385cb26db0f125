"""
The test of one device: a matrix product and a memory pattern, in a process that can be killed.

A wedged driver blocks any call for ever, some even against SIGKILL. So a child makes the first use of the device, and its
parent waits no longer than the deadline.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

from trainer.values import Foreign

if TYPE_CHECKING:
    from trainer.runtime.accelerators import Accelerator

MATRIX = 2048
MATRIX_CPU = 512
MEMORY_BYTES = 256 << 20
MEMORY_CPU_BYTES = 16 << 20
MEASURE_S = 0.2
KILLED_S = 2.0
PATTERN_PERIOD = 251


def check_device(requested_device: str, local_rank: int, limit_s: float) -> Dict[str, Any]:
    """
    Test the device in a child process; returns its figures, or {"error": cause}.

    The child is killed at the deadline, and abandoned if it does not die.
    """
    argv = [sys.executable, "-m", "trainer.comm.smoke", requested_device, str(local_rank)]
    folder = Path(__file__).resolve().parents[2]  # -m searches it first
    child = subprocess.Popen(
        argv, cwd=str(folder), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILLED_S)
        for pipe in (child.stdout, child.stderr):
            pipe.close()  # type: ignore[union-attr]  # both are PIPE
        left = "" if child.returncode is not None else ", and SIGKILL did not end it"
        return {"error": f"the test of the device did not end within {limit_s:g} s{left}"}
    try:
        result: Dict[str, Any] = json.loads(out)
    except ValueError:
        last = (err.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        return {"error": f"the test of the device ended with status {child.returncode}: {last}"}
    return result


def compute(accelerator: Accelerator, device: Foreign) -> Dict[str, Any]:
    """Multiply and write on the device; returns the rates, or {"error": what was wrong}."""
    is_cpu = accelerator.name == "cpu"
    tflops, problem = _multiply(accelerator, device, MATRIX_CPU if is_cpu else MATRIX)
    if problem:
        return {"error": problem}
    gb_s, problem = _write_and_read(accelerator, device, MEMORY_CPU_BYTES if is_cpu else MEMORY_BYTES)
    if problem:
        return {"error": problem}
    return {"error": "", "name": accelerator.device_name(), "gemm_tflops": tflops, "memory_gb_s": gb_s}


def _multiply(accelerator: Accelerator, device: Foreign, size: int) -> Tuple[float, str]:
    """A matrix of 0, 1 and 2 by one of ones: every element is the sum of one row, exact in every precision of the hardware."""
    torch = accelerator.torch
    rows = (torch.arange(size * size) % 3).reshape(size, size).to(torch.float32)
    expected = rows.sum(dim=1, keepdim=True).expand(size, size).contiguous().to(device)
    left, ones = rows.to(device), torch.ones(size, size, dtype=torch.float32).to(device)
    product = torch.matmul(left, ones)
    if not bool(torch.isfinite(product).all().item()):
        return 0.0, f"a product of {size} x {size} matrices is not finite"
    if not torch.equal(product, expected):
        wrong = int((product != expected).sum().item())
        return 0.0, f"a product of {size} x {size} matrices has {wrong} wrong elements"
    return 2 * size**3 / _fastest_s(accelerator, lambda: torch.matmul(left, ones)) / 1e12, ""


def _write_and_read(accelerator: Accelerator, device: Foreign, size_bytes: int) -> Tuple[float, str]:
    """Write a pattern and its complement to a block of memory, and read both back."""
    torch = accelerator.torch
    tile = (torch.arange(PATTERN_PERIOD) % 256).to(torch.uint8).repeat(4096)
    block = torch.empty(size_bytes // tile.numel() * tile.numel(), dtype=torch.uint8).to(device)
    rows = block.reshape(-1, tile.numel())
    patterns = [pattern.to(device).expand_as(rows) for pattern in (tile, 255 - tile)]

    def write_and_compare(pattern: Foreign) -> bool:
        rows.copy_(pattern)
        return bool(torch.equal(rows, pattern))

    for pattern in patterns:
        if not write_and_compare(pattern):
            wrong = int((rows != pattern).sum().item())
            return 0.0, f"{wrong} of {block.numel()} bytes of the device's memory were read back wrong"
    return 2 * block.numel() / _fastest_s(accelerator, lambda: write_and_compare(patterns[0])) / 1e9, ""


def _fastest_s(accelerator: Accelerator, work: Callable[[], object]) -> float:
    """Return the duration of the fastest of the calls that begin within MEASURE_S, which suffices for the device to raise its clock."""
    durations_s: List[float] = []
    end_s = time.perf_counter() + MEASURE_S
    accelerator.synchronize()
    while not durations_s or time.perf_counter() < end_s:
        begun_s = time.perf_counter()
        work()
        accelerator.synchronize()
        durations_s.append(time.perf_counter() - begun_s)
    return min(durations_s)


def main(requested_device: str, local_rank: int) -> int:
    """The child: test the device and print the result as JSON."""
    import torch  # the parent may not have it loaded

    from trainer.errors import UserError
    from trainer.runtime.accelerators import choose
    from trainer.runtime.init import prepare
    from trainer.runtime.rank import Rank

    rank = Rank(
        global_rank=local_rank,
        local_rank=local_rank,
        world_size=local_rank + 1,
        launched=True,
        node="",
        run_dir=None,
        progress_dir=None,
        is_retry=False,
    )
    accelerator, device, problem = prepare(lambda: choose(requested_device, torch), rank)
    try:
        result = {"error": problem} if problem or accelerator is None else compute(accelerator, device)
    except (RuntimeError, UserError) as exc:
        result = {"error": str(exc).splitlines()[0]}
    sys.stdout.write(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
