"""
Shards: the files that the ranks write for one checkpoint, and the manifest. No torch, one process; sharded.py has the collectives.

    step_20/{r00000.safetensors, r00001.safetensors, …, rng.json, manifest.json}

A shard holds contiguous parts of flattened tensors, by names such as model/NAME and exp_avg/NAME. The manifest has the type and the
shape of every tensor, and the interval of elements that each shard has: another number of ranks can read it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from trainer.checkpoint.format import files
from trainer.checkpoint.format.direct import write_verified
from trainer.checkpoint.format.files import DamagedError
from trainer.checkpoint.format.intervals import Interval, cover_problem
from trainer.state_keys import MODEL, MOMENTS

RNG = "rng.json"
FURTHER = "further_moments"  # in the manifest: LocalState.further, if there are any
SERIALISED = "serialised"  # in the manifest: the keys of what is under REST, if there are any

# A record is what one rank wrote: {"bytes", "sha256", "tensors": {key: [dtype, shape, start, stop]}}, as JSON.


def shard_name(rank: int) -> str:
    return f"r{rank:05d}.safetensors"


def write_shard(folder: Path, rank: int, data: memoryview) -> Dict[str, Any]:
    """Write the shard of a rank to the folder of an unfinished checkpoint, as direct.write_verified() does."""
    return write_verified(folder / shard_name(rank), data)


def commit(
    out: Path,
    temporary: Path,
    *,
    step: int,
    records: Sequence[Mapping[str, Any]],
    rng: bytes,
    metadata: Mapping[str, Any],
) -> Path:
    """
    Complete a checkpoint whose shards are all written: the manifest, then the rename. On rank 0.

    Args:
        out: the folder of checkpoints.
        temporary: holds the shards.
        step: names the folder.
        records: of all ranks, in their order.
        rng: the random states of all ranks, as JSON.
        metadata: JSON values kept in the manifest.

    Raises:
        OSError: no space, no permission; or the shards of other ranks are not here, or do not make up whole tensors.
    """
    written = {
        shard_name(rank): {key: record[key] for key in ("bytes", "sha256")} for rank, record in enumerate(records)
    }
    manifest = {
        "version": files.VERSION,
        "step": step,
        "files": {**written, RNG: files.write_hashed(temporary / RNG, rng)},
        "tensors": merged([record["tensors"] for record in records]),
        **metadata,
    }
    files.write_manifest(temporary, manifest)
    try:
        sealed = files.read_manifest(temporary, step)
        files.check_sizes(temporary, sealed)
        files.verify_files(temporary, {RNG: sealed["files"][RNG]})  # each rank has compared its shard
        check_tensors(sealed)
    except DamagedError as exc:
        raise OSError(f"{temporary} cannot be completed: {exc}; shards need a folder that all ranks share") from exc
    return files.publish(out, temporary, step)


def merged(tensors: Sequence[Mapping[str, Sequence[Any]]]) -> Dict[str, Dict[str, Any]]:
    """Join the tensors of all ranks' records: key -> {"dtype", "shape", "parts": [[rank, start, stop], …]}."""
    found: Dict[str, Dict[str, Any]] = {}
    for rank, mine in enumerate(tensors):
        for key, (dtype, shape, start, stop) in mine.items():
            whole = found.setdefault(key, {"dtype": dtype, "shape": shape, "parts": []})
            if (whole["dtype"], list(whole["shape"])) != (dtype, list(shape)):
                raise OSError(
                    f"{key}: rank {rank} has {dtype} of {list(shape)}, others {whole['dtype']} of {whole['shape']}"
                )
            whole["parts"].append([rank, start, stop])
    return found


def check_tensors(manifest: Mapping[str, Any]) -> None:
    """Check that every weight of the model is there, with its moments if it has any, and complete; raises DamagedError."""
    sizes, with_adams = manifest.get("sizes", {}), manifest.get("optimizer_steps", {})
    having = {MODEL: sizes, **dict.fromkeys(MOMENTS, with_adams), **manifest.get(FURTHER, {})}
    for kind, names in having.items():
        serialised = manifest.get(SERIALISED, ())
        for name, size in (
            (name, sizes[name]) for name in names if name in sizes and f"{kind}/{name}" not in serialised
        ):
            found = manifest["tensors"].get(f"{kind}/{name}", {"shape": [0]})
            if math.prod(found["shape"]) != size:
                raise DamagedError(f"{kind}/{name}: {math.prod(found['shape'])} of {size} elements are in the shards")
    for key, tensor in manifest["tensors"].items():
        problem = cover_problem(intervals_of(tensor), math.prod(tensor["shape"]))
        if problem:
            raise DamagedError(f"{key}: {problem}")


def intervals_of(tensor: Mapping[str, Any]) -> List[Interval]:
    return [Interval(*part) for part in tensor["parts"]]
