"""Sharded checkpoints read as collectives: every rank reads its own part of the state, in a folder that all ranks share."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch

from trainer.checkpoint.format import shards
from trainer.checkpoint.format.files import Checkpoint
from trainer.checkpoint.format.intervals import Interval, Overlap, overlaps, split_evenly
from trainer.checkpoint.format.shards import intervals_of, shard_name
from trainer.checkpoint.load.state_pt import load_state
from trainer.parallel.base import Strategy
from trainer.parallel.parts import Part, replicated_sizes
from trainer.runtime.group import Group
from trainer.safetensors import KINDS, FormatError, SafetensorsFile
from trainer.state_keys import EMA, MODEL, MOMENTS, REST

OPEN_FILES = 64  # of 1,024 that many systems allow


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
            problem = problem or part.missing_in(found.path.name)
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


class Shards:
    """The tensors of a sharded checkpoint, written by any number of ranks. At most OPEN_FILES shards are open at once."""

    def __init__(self, found: Checkpoint) -> None:
        self.path, self.tensors = found.path, found.manifest["tensors"]
        self._files: Dict[int, SafetensorsFile] = {}

    def readers(self, parts: Sequence[Part], ranks: int) -> List[List[Interval]]:
        """The intervals of each part that the ranks read, to send them to all others."""
        return split_evenly(replicated_sizes(parts), ranks)

    def has(self, key: str, shape: Sequence[int]) -> bool:
        """There is such a tensor; one without elements is in no shard."""
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
        """The tensor; mapped from the file if it is in one shard."""
        parts = intervals_of(self.tensors[key])
        if len(parts) == 1:
            return self._open(parts[0].rank).tensor(key).view(self.tensors[key]["shape"])
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


def read_all(found: Checkpoint) -> Dict[str, Any]:
    """Key -> value of everything in a verified checkpoint. Raises OSError, FormatError and UserError."""
    source = Shards(found)
    values = {key: source.whole(key) for key in source.tensors if key != REST}
    if REST in source.tensors:
        content = bytes(source.whole(REST).tolist())
        values.update(load_state(io.BytesIO(content), found.path.name))
    return values


def read_state(found: Checkpoint, *, keep_scale: bool, keep_ema: bool) -> Dict[str, Any]:
    """The whole state of a verified checkpoint, in the form of Strategy.state(). Raises as read_all()."""
    manifest, model = found.manifest, {}
    moments: Dict[str, Dict[str, Any]] = {}
    for name, step in manifest["optimizer_steps"].items():
        moments[name] = {"step": torch.tensor(step)}
    for key, value in read_all(found).items():
        kind, _, name = key.partition("/")
        if kind == MODEL:
            model[name] = value
        elif kind != EMA or keep_ema:
            moments.setdefault(name, {})[kind] = value
    model.update({alias: model[name] for alias, name in manifest["aliases"].items() if name in model})
    scaler = {"scaler": manifest["scaler"]} if keep_scale and manifest["scaler"] else {}
    return {"model": model, "moments": moments, **scaler}


def read_weights(found: Checkpoint, *, averaged: bool = False) -> Dict[str, Any]:
    """
    The weights and buffers of a verified checkpoint, by all their names. Raises as read_all().

    averaged: read the averages of those that have one.
    """
    values, start = read_all(found), f"{MODEL}/"
    weights = {key[len(start) :]: value for key, value in values.items() if key.startswith(start)}
    if averaged:
        weights.update({name: values[f"{EMA}/{name}"] for name in weights if f"{EMA}/{name}" in values})
    return {**weights, **{alias: weights[name] for alias, name in found.manifest["aliases"].items()}}
