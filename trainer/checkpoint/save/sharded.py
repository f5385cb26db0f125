"""Which part of the state each rank writes of a sharded checkpoint, in a folder that all ranks share; a whole state is one shard, of rank 0."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

import torch

from trainer.checkpoint.format import files, shards
from trainer.checkpoint.format.intervals import Interval, split_evenly
from trainer.parallel.base import Strategy
from trainer.parallel.parts import LocalState, Part, described, first_names, replicated_sizes
from trainer.runtime.group import Group
from trainer.safetensors import DTYPES
from trainer.state_keys import MODEL, REST

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


def own_tensors(
    group: Group, state: LocalState, *, keep_copies: bool = False
) -> Tuple[Dict[str, torch.Tensor], Dict[str, Any]]:
    """
    Return the flat tensors of this rank's shard, on their device, and the intervals that they are, as in a record (shards.py).

    Larger elements come first, so that each is aligned in the file. With `keep_copies`, a part that some other ranks have as well is
    not divided among them.
    """
    rank, tensors, intervals_by_key = group.rank, {}, {}
    split = iter(split_evenly(replicated_sizes(state.parts), rank.world_size))
    for part in state.parts:
        share = (0, part.tensor.numel()) if keep_copies else part.share()
        intervals = next(split) if part.is_replicated else [Interval(rank.global_rank, *share)]
        for _, start, stop in (interval for interval in intervals if interval.rank == rank.global_rank):
            if start < stop:
                tensors[part.key] = part.tensor.detach().reshape(-1)[start:stop]
                dtype = DTYPES[part.tensor.dtype]
                intervals_by_key[part.key] = [dtype, list(part.shape), part.start + start, part.start + stop]
    return dict(sorted(tensors.items(), key=lambda item: -item[1].element_size())), intervals_by_key


def whole_state(saved: Mapping[str, Any], strategy: Strategy) -> Tuple[LocalState, List[str]]:
    """The result of Strategy.state() on rank 0 as the state of one rank, and the keys that are under REST."""
    moments, aliases = saved["moments"], first_names(strategy.unwrapped_model)
    values = {f"{MODEL}/{name}": value for name, value in saved["model"].items() if name not in aliases}
    for name, of_name in moments.items():
        values.update({f"{kind}/{name}": value for kind, value in of_name.items() if kind != "step"})
    rest = {key: _on_cpu(value) for key, value in values.items() if not _is_plain_tensor(value)}
    parts = [Part(key, tuple(value.shape), 0, value) for key, value in values.items() if key not in rest]
    if rest:
        written = io.BytesIO()
        torch.save(rest, written)
        content = torch.frombuffer(bytearray(written.getvalue()), dtype=torch.uint8)
        parts.append(Part(REST, tuple(content.shape), 0, content))
    steps, further = described(moments)
    return LocalState(parts, steps, saved.get("scaler", {}), aliases, further), list(rest)


def _is_plain_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in DTYPES and bool(value.numel())


def _on_cpu(value: Any) -> Any:  # noqa: ANN401 -- the extra state of any module
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
