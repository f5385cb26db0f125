"""Long logs of a run that has ended: the folder of a run through Slurm, as many nodes leave it on a shared file system, and that of a node."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

RUN = "bench-20260101-000000-0000"
RECORDS_PER_S = 4
_LINE = "step=%06d loss=2.1234 lr=0.0003 tokens/s=123456 memory=40.2GiB\n"
_WARNING = "warning\n"


def write_run(
    workdir: Path, *, nodes: int, ranks: int, size: int, duration_s: int, is_progress_bar: bool = False
) -> None:
    """Write the run; each rank has written `size` bytes in that time, and a line of errors at the start and at the end."""
    attempt = workdir / "runs" / RUN / "attempt-1"
    attempt.mkdir(parents=True)
    (attempt / "submit.sbatch").touch()
    job = {"version": 1, "nodes": None, "ranks": [ranks] * nodes, "slurm": {"shared": True}}
    (attempt / "job.json").write_text(json.dumps(job), encoding="utf-8")
    output = write_output(workdir, size, is_progress_bar=is_progress_bar)
    begun = time.time() - duration_s
    finished = {"time": begun + duration_s, "event": "agent-finished", "text": "", "state": "DONE", "exit": None}
    for node in range(nodes):
        folder = attempt / f"n{node}"
        folder.mkdir()
        write_node(folder, range(node * ranks, (node + 1) * ranks), output, begun=begun, duration_s=duration_s)
        (folder / "events.jsonl").write_text(f"{json.dumps(finished)}\n", encoding="utf-8")


def write_output(folder: Path, size: int, *, is_progress_bar: bool = False) -> Path:
    """Write the output of a rank, of that size; all ranks print the same."""
    output, line = folder / "output", _LINE.replace("\n", "\r") if is_progress_bar else _LINE
    output.write_text("".join(line % step for step in range(size // len(line % 0))), encoding="utf-8", newline="")
    return output


def write_node(folder: Path, ranks: range, output: Path, *, begun: float, duration_s: int) -> None:
    """Write the logs of the ranks of a node, in place of those that are there."""
    for rank in ranks:
        file = folder / f"rank-{rank}.out"
        file.unlink(missing_ok=True)
        os.link(output, file)
        (folder / f"rank-{rank}.err").write_text(2 * _WARNING, encoding="utf-8")
    index = "".join(
        f"{json.dumps({'time': begun + second, 'size': sizes})}\n"
        for second, sizes in _records(ranks, output.stat().st_size, duration_s)
    )
    (folder / "offsets.jsonl").write_text(index, encoding="utf-8")


def _records(ranks: range, size: int, duration_s: int) -> Iterator[tuple[float, dict[str, int]]]:
    """The time in seconds since the start, and the sizes of the files that have grown."""
    count = duration_s * RECORDS_PER_S
    for number in range(1, count + 1):
        sizes = {f"rank-{rank}.out": size * number // count for rank in ranks}
        if number in (1, count):
            sizes |= {f"rank-{rank}.err": len(_WARNING) * (1 if number == 1 else 2) for rank in ranks}
        yield number / RECORDS_PER_S, sizes
