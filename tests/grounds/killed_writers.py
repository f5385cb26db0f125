"""
Writers of tiny checkpoints that are killed with SIGKILL, in a process without torch, so that forks are cheap.

    python -m tests.grounds.killed_writers moments FOLDER COUNT SEED     at random moments, one writer at a time
    python -m tests.grounds.killed_writers calls FOLDER                  before each system call of a save, in turn

Of two saves one has a single shard and one has two. The processes that write the ranks' shards in the background take turns in one
process: rank 0's completes the checkpoint after the last, so a kill of any of them leaves what a kill of that process leaves.

Exits with 0 and one line of JSON if after every kill all checkpoints were complete and none was lost.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.checkpoint.format import files, shards
from trainer.checkpoint.save import writer

LIMIT = 2
RANKS = 2
MEMORY = os.memfd_create("shard")
SHARED = Path(f"/proc/self/fd/{MEMORY}")
CALLS = ("mkdir", "open", "write", "readv", "fsync", "rename", "replace", "rmdir", "unlink")


def content(step: int) -> bytes:
    return random.Random(step).randbytes(60_000)


def save(out: Path, step: int) -> None:
    save_shards(out, step, ranks=RANKS if step % 2 else 1)


def save_shards(out: Path, step: int, *, size: int = 60_000, ranks: int = RANKS, lost: int | None = None) -> None:
    """Let the writers of the ranks write their shards, and rank 0's complete them; that of rank `lost` is removed before."""
    temporary, part = out / f"step_{step}.tmp-{os.getpid()}", size // ranks
    records = []
    for rank in range(ranks):
        with SHARED.open("wb") as file:
            file.write(content(step)[rank * part :][:part])
        request = {"folder": str(temporary), "rank": rank, "size": part}
        written = writer.write_shard(writer.Memory(MEMORY), request)
        records.append({**written, "tensors": {"model/a": ["U8", [size], rank * part, (rank + 1) * part]}})
    if lost is not None:
        (temporary / shards.shard_name(lost)).unlink()
    kept = {"limit": LIMIT, "best": 0, "every": None}
    found = {"out": str(out), "temporary": str(temporary), "step": step, "records": records}
    writer.commit(writer.Memory(MEMORY), {**found, "rng": "[]", "metadata": {}, "kept": kept})


def saved_content(path: Path) -> bytes:
    """The content that a checkpoint holds."""
    return b"".join(file.read_bytes() for file in sorted(path.glob("r*.safetensors")))


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def check(out: Path, saved: int) -> int:
    """The newest step. Every checkpoint under its final name must be complete, and every reported step must exist."""
    found = files.newest_first(out)
    for path in found:
        step = files.step_of(path)
        assert step is not None
        files.verified(path)
        assert saved_content(path) == content(step), path
    newest = files.step_of(found[0]) if found else 0
    assert newest is not None
    assert newest >= saved, f"step {saved} was saved, the newest is {newest}"
    assert len(found) >= min(LIMIT, newest), f"of {newest} saved steps only {len(found)} are remaining"
    return newest


def at_moments(out: Path, count: int, seed: int) -> dict[str, int]:
    """Kill each writer after none, one or two complete saves, at a random moment of the next save."""
    save_s, draw, saved, half_written = 0.0, random.Random(seed), 0, 0
    for _ in range(count):
        files.remove_stale(out)
        reading, writing = os.pipe()
        started = time.perf_counter()
        child = fork(lambda: _save_forever(out, saved, writing))  # runs before the next turn
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            first = [pipe.readline() for _ in range(draw.randrange(3))]
            if first:
                save_s = (time.perf_counter() - started) / len(first)
            select.select([], [], [], draw.uniform(0, save_s))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            reported = [*first, *pipe.readlines()]
        saved = check(out, int(reported[-1]) if reported else saved)
        half_written += any(files.STALE.match(path.name) for path in out.iterdir())
    return {"kills": count, "saved": saved, "half_written": half_written}


def _save_forever(out: Path, step: int, report: int) -> None:
    while True:
        step += 1
        save(out, step)
        os.write(report, f"{step}\n".encode())


def before_calls(out: Path) -> dict[str, int]:
    for step in (1, 2):
        save(out, step)
    whole, sharded = (_before_calls_of(out, is_odd=is_odd) for is_odd in (False, True))
    return {"kills": whole, "kills_of_shards": sharded}


def _before_calls_of(out: Path, *, is_odd: bool) -> int:
    """Kill the saves of the steps that are odd, or that are not, until one is complete; returns the number of kills."""
    kills = 0
    while True:
        files.remove_stale(out)
        files.retain(out, LIMIT)  # otherwise surplus checkpoints of each kill would make the next save longer
        before = check(out, 0)
        step = before + 1 if (before + 1) % 2 == is_odd else before + 2
        child = fork(lambda: _save_killed(out, step, kills))  # runs before the next turn
        _, status = os.waitpid(child, 0)
        after = check(out, before)
        if os.WIFEXITED(status):
            assert (os.WEXITSTATUS(status), after) == (0, step)
            return kills
        kills += 1


def _save_killed(out: Path, step: int, call_count: int) -> None:
    """Save, but die before the call after the first `call_count` calls."""
    remaining = iter(range(call_count))

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*args: Any, **more: Any) -> Any:  # any call's arguments and result
            if next(remaining, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **more)

        return replacement

    for name in CALLS:
        setattr(os, name, killing(getattr(os, name)))
    save(out, step)


if __name__ == "__main__":
    mode, folder, *numbers = sys.argv[1:]
    result = before_calls(Path(folder)) if mode == "calls" else at_moments(Path(folder), *map(int, numbers))
    sys.stdout.write(json.dumps(result) + "\n")
