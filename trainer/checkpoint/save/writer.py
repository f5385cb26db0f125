"""
The process that writes one rank's shards while the rank trains. No torch here: it starts in a fraction of a second.

    python -m trainer.checkpoint.save.writer DESCRIPTOR

Standard input has one request per line, as JSON; each is answered by a line. The memory to write is mapped from DESCRIPTOR.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Protocol

from trainer.checkpoint.format import files, shards

NICE = 10  # training goes first
PR_SET_PDEATHSIG = 1
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class View(Protocol):
    """The memory that the rank has filled."""

    def view(self, size: int) -> memoryview:
        """The first `size` bytes."""


class Memory:
    """Maps it once per size."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._mapped: mmap.mmap | None = None

    def view(self, size: int) -> memoryview:
        if self._mapped is None or len(self._mapped) < size:
            self._mapped = mmap.mmap(self.descriptor, size)
        return memoryview(self._mapped)[:size]


def write_shard(memory: View, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Write `size` bytes as the shard of `rank` in `folder`; returns its size and hash."""
    folder = Path(request["folder"])
    folder.mkdir(mode=0o700, exist_ok=True)
    return shards.write_shard(folder, request["rank"], memory.view(request["size"]))


def commit(_memory: View, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Complete a checkpoint, and remove older ones."""
    out, kept = Path(request["out"]), request["kept"]
    rng = request["rng"].encode()
    found = {key: request[key] for key in ("step", "records", "metadata")}
    shards.commit(out, Path(request["temporary"]), rng=rng, **found)
    files.retain(out, kept["limit"], kept["best"], every=kept["every"])
    return {}


def hash_file(_memory: View, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Hash the first `size` bytes of the file at `path`."""
    return {"sha256": files.hash_of(Path(request["path"]), request["size"])}


REQUESTS: Dict[str, Callable[[View, Mapping[str, Any]], Dict[str, Any]]] = {
    "write": write_shard,
    "commit": commit,
    "hash": hash_file,
}


def answer_to(memory: View, request: Mapping[str, Any]) -> Dict[str, Any]:
    """The answer has a "problem", if there was one."""
    try:
        return REQUESTS[request["do"]](memory, request)
    except OSError as exc:
        return {"problem": files.reason(exc)}


def main() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has died before
        return
    os.nice(NICE)
    for number in IGNORED:  # of the rank's process group: a rank that is asked to end still saves
        signal.signal(number, signal.SIG_IGN)
    memory = Memory(int(sys.argv[1]))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer_to(memory, json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
