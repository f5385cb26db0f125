"""Sharded checkpoints as collectives: every rank writes and reads its own part of the state, in a folder that all ranks share."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

import torch

from trainer.checkpoint.format import files, shards
from trainer.checkpoint.format.files import Checkpoint
from trainer.checkpoint.format.intervals import Interval, Overlap, overlaps, split_evenly
from trainer.checkpoint.format.shards import intervals_of, shard_name
from trainer.checkpoint.save.shared_memory import SharedMemory
from trainer.errors import StorageError
from trainer.parallel.base import Strategy
from trainer.parallel.parts import LocalState, Part
from trainer.runtime.group import Group
from trainer.safetensors import DTYPES, KINDS, FormatError, SafetensorsFile
from trainer.state_keys import EMA, MODEL, MOMENTS

OPEN_FILES = 64  # of 1,024 that many systems allow
SHARDED_FROM_BYTES = 1_000_000_000  # checkpoint=auto; the time of a smaller whole file does not matter


def unshared_problem(group: Group, out: Path) -> str:
    """Return why `out`, which exists on rank 0, is not one folder for all ranks, or ""; the same on all ranks."""
    token, problem = out, ""
    if group.rank.is_main:
        token = out / f".shared.tmp-{secrets.token_hex(8)}"
        try:
            files.create(token).close()
        except OSError as exc:
            problem = f"out={out}: cannot be written: {exc.strerror}"
    token = Path(group.broadcast_bytes(str(token).encode()).decode())
    if not group.rank.is_main and not os.path.exists(token):
        problem = f"rank {group.rank.global_rank} does not see the files that rank 0 makes in {out}"
    problems = [answer.decode() for answer in group.gather_bytes(problem.encode()) if answer]
    if group.rank.is_main:
        with contextlib.suppress(OSError):
            token.unlink()
    return problems[0] if problems else ""


def unsupported(state: LocalState) -> str:
    """Return why the tensors of this rank cannot be in a shard, or ""."""
    found = next((part for part in state.parts if part.tensor.dtype not in DTYPES), None)
    return f"{found.key}: shards do not hold {found.tensor.dtype}" if found else ""


def save(
    group: Group,
    out: Path,
    *,
    step: int,
    state: LocalState,
    random_state: bytes,
    metadata: Mapping[str, Any],
    retain: Callable[[], object],
) -> None:
    """
    Write step_<step> by all ranks.

    Args:
        group: of all ranks.
        out: the folder of checkpoints.
        step: names the folder.
        state: of this rank.
        random_state: of this rank, as JSON.
        metadata: JSON values kept in the manifest; rank 0's count.
        retain: called on rank 0 after the rename, to remove older checkpoints.

    Raises:
        StorageError: on all ranks alike; earlier checkpoints are still there.
    """
    temporary, problem = _create_temporary(group, out, step)
    record: Dict[str, Any] = {}
    if temporary is not None:
        try:
            record = write_own_shard(temporary, group, state)
        except OSError as exc:
            problem = f"cannot save {out / f'step_{step}'}: {files.reason(exc)}"
    records, rng = gather_records(group, record, random_state)
    if temporary is not None and records and all(records):
        everything = {**metadata, **state_metadata(state)}
        try:
            shards.commit(out, temporary, step=step, records=records, rng=rng, metadata=everything)
            retain()
        except OSError as exc:
            problem = f"cannot save {out / f'step_{step}'}: {files.reason(exc)}"
    group.raise_if_any(problem, kind=StorageError)


def state_metadata(state: LocalState) -> Dict[str, Any]:
    """Return the values of the state that the manifest has beside the tensors."""
    further = {shards.FURTHER: state.further} if state.further else {}
    return {"optimizer_steps": state.steps, "scaler": state.scaler, "aliases": state.aliases, **further}


def gather_records(group: Group, record: Mapping[str, Any], random_state: bytes) -> Tuple[List[Dict[str, Any]], bytes]:
    """
    On rank 0, the records and the random states of all ranks, the latter as JSON; on other ranks, nothing. A collective.

    Args:
        group: of all ranks.
        record: of this rank's shard, empty if it is not written.
        random_state: of this rank, as JSON.
    """
    answers = group.gather_bytes(json.dumps([record, random_state.decode()]).encode())
    if not group.rank.is_main:
        return [], b""
    found = [json.loads(answer) for answer in answers]
    return [each for each, _ in found], b"[" + b",\n".join(state.encode() for _, state in found) + b"]"


def _create_temporary(group: Group, out: Path, step: int) -> Tuple[Path | None, str]:
    """The folder that rank 0 creates for all; None if it cannot, with the problem on rank 0."""
    temporary, problem = out, ""
    if group.rank.is_main:
        try:
            temporary = files.create_temporary(out, step)
        except OSError as exc:
            problem = f"cannot save {out / f'step_{step}'}: {files.reason(exc)}"
    text = group.broadcast_bytes(b"" if problem else str(temporary).encode()).decode()
    return (Path(text) if text else None), problem


def write_own_shard(temporary: Path, group: Group, state: LocalState) -> Dict[str, Any]:
    """Write this rank's parts, and its share of those that all ranks have; returns its record (shards.py)."""
    tensors, intervals = own_tensors(group, state)
    memory = SharedMemory.anonymous(group.accelerator)
    try:
        size = memory.fill(tensors)
        group.accelerator.synchronize()
        written = shards.write_shard(temporary, group.rank.global_rank, memory.view(size))
    finally:
        memory.close()
    return {**written, "tensors": intervals}


def own_tensors(
    group: Group, state: LocalState, *, keep_copies: bool = False
) -> Tuple[Dict[str, torch.Tensor], Dict[str, Any]]:
    """
    Return the flat tensors of this rank's shard, on their device, and the intervals that they are, as in a record (shards.py).

    Larger elements come first, so that each is aligned in the file. With `keep_copies`, a part that some other ranks have as well is
    not divided among them.
    """
    rank, tensors, intervals_by_key = group.rank, {}, {}
    split = iter(split_evenly(_replicated_sizes(state.parts), rank.world_size))
    for part in state.parts:
        share = (0, part.tensor.numel()) if keep_copies else part.share()
        intervals = next(split) if part.is_replicated else [Interval(rank.global_rank, *share)]
        for _, start, stop in (interval for interval in intervals if interval.rank == rank.global_rank):
            if start < stop:
                tensors[part.key] = part.tensor.detach().reshape(-1)[start:stop]
                dtype = DTYPES[part.tensor.dtype]
                intervals_by_key[part.key] = [dtype, list(part.shape), part.start + start, part.start + stop]
    return dict(sorted(tensors.items(), key=lambda item: -item[1].element_size())), intervals_by_key


def load(
    group: Group,
    found: Checkpoint,
    strategy: Strategy,
    *,
    keep_scale: bool,
    keep_ema: bool,
    source: Shards | None = None,
) -> None:
    """
    Load a verified checkpoint into all ranks: each reads its own parts, and its share of those that all ranks have.

    `source` has the shards, by default those in the folder.

    Raises:
        UserError: on all ranks alike; a shard cannot be read, or lacks a tensor of the model.
    """
    manifest, problem = found.manifest, ""
    further = {key: names for key, names in manifest.get(shards.FURTHER, {}).items() if key != EMA or keep_ema}
    source, parts = source or Shards(found), strategy.parts_to_load(manifest["optimizer_steps"], further)
    readers = iter(source.readers([part for part in parts if part.is_replicated], group.rank.world_size))
    for part in parts:
        intervals = next(readers) if part.is_replicated else None
        kind, _, name = part.key.partition("/")
        if kind in MOMENTS and name not in manifest["optimizer_steps"]:
            continue  # it had no moments: zeros are allocated
        if not source.has(part.key, part.shape):
            problem = problem or f"{found.path.name}: {part.key} of shape {list(part.shape)} is not in it"
            continue
        values, unread = _values(group, source, part, intervals)
        part.load(values)
        problem = problem or unread
    group.raise_if_any(problem)
    strategy.finish_load(manifest["scaler"] if keep_scale else {})


def _values(group: Group, source: Shards, part: Part, intervals: Sequence[Interval] | None) -> Tuple[torch.Tensor, str]:
    """The elements of a part, flat and on the CPU, and this rank's problem; a collective if the `intervals` of the ranks are given."""
    count = part.tensor.numel() if intervals is None else math.prod(part.shape)
    mine = (
        [(0, count)] if intervals is None else [span[1:] for span in intervals if span.rank == group.rank.global_rank]
    )
    values, problem = torch.zeros(count, dtype=source.dtype(part.key)), ""
    for start, stop in mine:
        try:
            source.read(part.key, part.start + start, values[start:stop])
        except (OSError, FormatError) as exc:
            problem = f"{source.path}: {part.key}: {exc}"
    for interval in intervals or ():
        group.broadcast(values[interval.start : interval.stop], source=interval.rank)
    return values, problem


def _replicated_sizes(parts: Sequence[Part]) -> List[int]:
    return [math.prod(part.shape) for part in parts if part.is_replicated]


class Shards:
    """The tensors of a sharded checkpoint, written by any number of ranks. At most OPEN_FILES shards are open at once."""

    def __init__(self, found: Checkpoint) -> None:
        self.path, self.tensors = found.path, found.manifest["tensors"]
        self._files: Dict[int, SafetensorsFile] = {}

    def readers(self, parts: Sequence[Part], ranks: int) -> List[List[Interval]]:
        """The intervals of each part that the ranks read, to send them to all others."""
        return split_evenly(_replicated_sizes(parts), ranks)

    def has(self, key: str, shape: Sequence[int]) -> bool:
        """Return True if there is such a tensor; one without elements is in no shard."""
        return not math.prod(shape) or (key in self.tensors and list(shape) == self.tensors[key]["shape"])

    def dtype(self, key: str) -> torch.dtype:
        return KINDS[self.tensors[key]["dtype"]] if key in self.tensors else torch.float32

    def sources(self, key: str, start: int, stop: int) -> Iterator[Overlap]:
        """The places of elements in the shards."""
        return overlaps(intervals_of(self.tensors[key]), start, stop)

    def read(self, key: str, start: int, target: torch.Tensor) -> None:
        """Copy the elements from `start` on into the flat tensor `target`. Raises OSError and FormatError."""
        if not target.numel():
            return
        for overlap in self.sources(key, start, start + target.numel()):
            part = self._open(overlap.rank).tensor(key)[overlap.source :][: overlap.size]
            target[overlap.target :][: overlap.size] = part

    def _open(self, rank: int) -> SafetensorsFile:
        """The shard of a rank. No reference cycle keeps it mapped: over NFS the folder of a mapped file cannot be removed."""
        if rank not in self._files:
            if len(self._files) == OPEN_FILES:
                del self._files[next(iter(self._files))]
            self._files[rank] = SafetensorsFile(self.file_of(rank))
        return self._files[rank]

    def file_of(self, rank: int) -> Path:
        return self.path / shard_name(rank)

    def whole(self, key: str) -> torch.Tensor:
        values = torch.empty(math.prod(self.tensors[key]["shape"]), dtype=self.dtype(key))
        self.read(key, 0, values)
        return values.view(self.tensors[key]["shape"])


class OwnShard(Shards):
    """The shard of one rank, at the path of the checkpoint: each rank reads what it has written, and no other. Others may have the same."""

    def __init__(self, found: Checkpoint, rank: int) -> None:
        super().__init__(found)
        self.rank = rank

    def sources(self, key: str, start: int, stop: int) -> Iterator[Overlap]:
        """This rank's shard, if it has all of the elements."""
        mine = [interval for interval in intervals_of(self.tensors[key]) if interval.rank == self.rank]
        has_all = any(interval.start <= start and stop <= interval.stop for interval in mine)
        return overlaps(mine if has_all else intervals_of(self.tensors[key]), start, stop)

    def readers(self, parts: Sequence[Part], ranks: int) -> List[List[Interval]]:  # noqa: ARG002 -- as there
        """The intervals as they are in the shards."""
        return [intervals_of(self.tensors[part.key]) if part.key in self.tensors else [] for part in parts]

    def file_of(self, rank: int) -> Path:
        if rank != self.rank:
            raise FormatError(f"it is a part of rank {rank}")
        return self.path


def read_weights(found: Checkpoint, *, averaged: bool = False) -> Dict[str, torch.Tensor]:
    """
    The weights and buffers of a verified sharded checkpoint, by all their names. Raises OSError and FormatError.

    averaged: read the averages of those that have one.
    """
    source, start = Shards(found), f"{MODEL}/"
    names = [key[len(start) :] for key in source.tensors if key.startswith(start)]
    replaced = {name for name in names if averaged and f"{EMA}/{name}" in source.tensors}
    weights = {name: source.whole(f"{EMA if name in replaced else MODEL}/{name}") for name in names}
    return {**weights, **{alias: weights[name] for alias, name in found.manifest["aliases"].items()}}
