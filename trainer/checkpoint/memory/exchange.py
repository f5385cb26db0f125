"""The ranks that keep copies of each other's states, and how a state in memory is sent between two of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple, TypeVar

import torch

from trainer.checkpoint.memory.memory_file import MemoryFile
from trainer.runtime.group import CHUNK_BYTES, Group

HEAD_BYTES = 16
Json = Dict[str, Any]
Buffer = TypeVar("Buffer", bytearray, memoryview)


@dataclass(frozen=True)
class Neighbours:
    """`target`: the rank of another node that keeps a copy of this rank's states, None on a single node; `sources`: those it keeps copies for."""

    target: int | None
    sources: Tuple[int, ...]

    @classmethod
    def of(cls, rank: int, nodes: Sequence[str]) -> Neighbours:
        """The neighbours of a rank; `nodes` has the node of every rank."""
        names = list(dict.fromkeys(nodes))
        if len(names) == 1:
            return cls(None, ())
        ranks = {name: [number for number, node in enumerate(nodes) if node == name] for name in names}

        def target_of(number: int) -> int:
            mine = nodes[number]
            there = ranks[names[(names.index(mine) + 1) % len(names)]]
            return there[ranks[mine].index(number) % len(there)]

        return cls(target_of(rank), tuple(number for number in range(len(nodes)) if target_of(number) == rank))


class Exchange:
    """Messages between two ranks, through a separate group in the memory of the hosts: the group of the training may be one of devices."""

    def __init__(self, group: Group) -> None:
        self.distributed = group.accelerator.distributed
        self.pair = self.distributed.new_group(backend="gloo")

    def send(self, target: int, head: bytes, content: memoryview) -> List[Any]:
        """Begin to send; returns objects to wait for, with the memory that must not change until then."""
        sizes = len(head).to_bytes(8, "little") + len(content).to_bytes(8, "little")
        parts = [memoryview(bytearray(sizes)), memoryview(bytearray(head)), *_chunks(content)]
        tensors = [torch.frombuffer(part, dtype=torch.uint8) for part in parts if len(part)]
        return [(self.distributed.isend(tensor, target, group=self.pair), tensor) for tensor in tensors]

    def receive_head(self, source: int) -> Tuple[bytes, int]:
        """The first part of a message, and the size of the second."""
        sizes = self._receive(source, bytearray(HEAD_BYTES))
        head = bytearray(int.from_bytes(sizes[:8], "little"))
        return bytes(self._receive(source, head) if head else head), int.from_bytes(sizes[8:], "little")

    def receive_content(self, source: int, content: memoryview) -> None:
        for part in _chunks(content):
            self._receive(source, part)

    def discard_content(self, source: int, size: int) -> None:
        """Receive what cannot be kept: the next message comes after it, and gloo ends a process in which the sizes differ."""
        scratch = memoryview(bytearray(min(size, CHUNK_BYTES)))
        for start in range(0, size, CHUNK_BYTES):
            self._receive(source, scratch[: size - start])

    def _receive(self, source: int, target: Buffer) -> Buffer:
        self.distributed.recv(torch.frombuffer(target, dtype=torch.uint8), source, group=self.pair)
        return target


def _chunks(content: memoryview) -> List[memoryview]:
    return [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]


def send_state(exchange: Exchange, target: int, file: MemoryFile, record: Json) -> List[Any]:
    """Begin to send a state, as Exchange.send(); one without a record stands for none."""
    head = json.dumps({"slot": file.slot, "record": record}).encode()
    return exchange.send(target, head, file.memory.view(record["size"]) if record else memoryview(b""))


def receive_state(exchange: Exchange, source: int, slots: Sequence[MemoryFile]) -> str:
    """Receive what send_state() sends, whether it can be kept or not; returns the problem, or ""."""
    head, size = exchange.receive_head(source)
    message = json.loads(head)
    file, content, problem = slots[message["slot"]], memoryview(b""), ""
    try:
        file.forget()
        if size:
            content = file.memory.view(size)
    except OSError as exc:
        problem = f"{file.path}: {exc.strerror}"
    if problem:
        exchange.discard_content(source, size)
    else:
        exchange.receive_content(source, content)
        if message["record"]:
            problem = file.write_record({key: value for key, value in message["record"].items() if key != "seal"})
    return problem
