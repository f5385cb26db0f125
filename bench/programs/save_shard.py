"""One rank's part of a save in the background: print the CPU time of the writer and the growth of both processes, as JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import torch

from trainer.checkpoint.background import ShardedSave, Writer
from trainer.parallel.parts import LocalState, whole_part
from trainer.runtime.init import initialise

TENSORS = 16
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def main(out: Path, megabytes: int) -> None:
    group = initialise("cpu", 60.0, {})
    size = megabytes * 1_000_000 // 4 // TENSORS
    parts = [whole_part(f"model/{number}", torch.rand(size)) for number in range(TENSORS)]
    before, writer, moments = resource.getrusage(resource.RUSAGE_SELF), Writer(group), []
    stopped_s = whole_s = 0.0
    for step in (1, 2):  # the first one starts the process
        moments.append(cpu_s(writer.pid) if writer.pid else 0.0)
        started = time.perf_counter()
        save = ShardedSave(
            group, writer, out, step=step, state=LocalState(parts, {}), random_state=b"{}", metadata={},
            kept={"limit": 2, "best": 0, "every": None},
        )  # fmt: skip
        stopped_s = time.perf_counter() - started
        save.complete()
        problem = save.finish_alone()
        assert not problem, problem
        whole_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert writer.pid
    figures = {
        "cpu_s": cpu_s(writer.pid) - moments[-1],
        "stopped_s": stopped_s,
        "whole_s": whole_s,
        "grown_mb": (after.ru_maxrss - before.ru_maxrss) * 1024 / 1e6,
    }
    sys.stdout.write(f"figures {json.dumps(figures)}\n")
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
