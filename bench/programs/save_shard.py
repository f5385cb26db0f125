"""One rank's part of a save: print the CPU time of the process that writes and the growth of the training process, as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from pathlib import Path

import torch

from trainer.checkpoint.save.background import ImmediateWriter, ShardedSave, Writer
from trainer.parallel.parts import LocalState, whole_part
from trainer.runtime.group import Group
from trainer.runtime.init import initialise

TENSORS = 16
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def begun(group: Group, writer: Writer | ImmediateWriter, out: Path, state: LocalState, *, step: int) -> ShardedSave:
    kept = {"limit": 2, "best": 0, "every": None}
    return ShardedSave(group, writer, out, step=step, state=state, random_state=b"{}", metadata={}, kept=kept)


def finish(save: ShardedSave) -> None:
    save.complete()
    problem = save.finish_alone()
    assert not problem, problem


def save_in_background(group: Group, out: Path, state: LocalState) -> dict[str, float]:
    """Save twice; the first time starts the process that writes. Returns the figures of the second."""
    writer, cpu_before_s, started, stopped_s = Writer(group), 0.0, 0.0, 0.0
    for step in (1, 2):
        cpu_before_s = cpu_s(writer.pid) if writer.pid else 0.0
        started = time.perf_counter()
        save = begun(group, writer, out, state, step=step)
        stopped_s = time.perf_counter() - started
        finish(save)
    assert writer.pid
    figures = {"cpu_s": cpu_s(writer.pid) - cpu_before_s, "stopped_s": stopped_s}
    whole_s = time.perf_counter() - started
    writer.close()
    return {**figures, "whole_s": whole_s}


def save_and_wait(group: Group, out: Path, state: LocalState) -> dict[str, float]:
    """Save twice in this process. Returns the figures of the second."""
    started, cpu_before_s = 0.0, 0.0
    for step in (1, 2):
        started, cpu_before_s = time.perf_counter(), time.process_time()
        with contextlib.closing(ImmediateWriter(group)) as writer:
            finish(begun(group, writer, out, state, step=step))
    whole_s = time.perf_counter() - started
    return {"cpu_s": time.process_time() - cpu_before_s, "stopped_s": whole_s, "whole_s": whole_s}


def main(out: Path, megabytes: int, mode: str) -> None:
    group = initialise("cpu", 60.0, {})
    size = megabytes * 1_000_000 // 4 // TENSORS
    state = LocalState([whole_part(f"model/{number}", torch.rand(size)) for number in range(TENSORS)], {})
    before = resource.getrusage(resource.RUSAGE_SELF)
    figures = {"background": save_in_background, "foreground": save_and_wait}[mode](group, out, state)
    after = resource.getrusage(resource.RUSAGE_SELF)
    figures["grown_mb"] = (after.ru_maxrss - before.ru_maxrss) * 1024 / 1e6
    sys.stdout.write(f"figures {json.dumps(figures)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
