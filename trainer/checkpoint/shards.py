"""
Shards: the files that the ranks write for one checkpoint, and the manifest. No torch, one process; sharded.py has the collectives.

    step_20/{r00000.safetensors, r00001.safetensors, …, rng.json, manifest.json}

A shard holds contiguous parts of flattened tensors, by names such as model/NAME and exp_avg/NAME. The manifest has the type and the
shape of every tensor, and the interval of elements that each shard has: another number of ranks can read it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterable, List, Mapping, Sequence

from trainer.checkpoint import files
from trainer.checkpoint.files import DamagedError
from trainer.checkpoint.intervals import Interval, cover_problem
from trainer.state_keys import MODEL, MOMENTS

RNG = "rng.json"

# A record is what one rank wrote: {"bytes", "sha256", "tensors": {key: [dtype, shape, start, stop]}}, as JSON.


def shard_name(rank: int) -> str:
    return f"r{rank:05d}.safetensors"


def write_shard(folder: Path, rank: int, write_to: Callable[[Any], object]) -> Dict[str, Any]:
    """
    Write the shard of one rank, flush it to disk and compare it with the memory it was written from.

    Args:
        folder: of the unfinished checkpoint.
        rank: names the file.
        write_to: called twice with an object that has write() and writelines(); it must write the same both times.

    Returns:
        The size and hash of the file.

    Raises:
        OSError: no space, no permission, or the data read back differ from the data written.
    """
    path = folder / shard_name(rank)
    written = files.write_hashed(path, write_to)
    with path.open("rb", buffering=0) as file:
        write_to(_Comparison(file, path))
        if file.read(1):
            raise OSError(f"{path} reads back differently: it is longer")
    return written


class _Comparison:
    """Compares what is written to it with the content of a file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path

    def write(self, data: bytes) -> int:
        start = 0
        while start < len(data):
            part = self.file.read(min(files.READ_BYTES, len(data) - start))
            if not part or part != data[start : start + len(part)]:
                raise OSError(f"{self.path} reads back differently")
            start += len(part)
        return len(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            self.write(part)


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
        OSError: as write_shard(); or the shards of other ranks are not here, or do not make up whole tensors.
    """
    written = {
        shard_name(rank): {key: record[key] for key in ("bytes", "sha256")} for rank, record in enumerate(records)
    }
    manifest = {
        "version": files.SHARDED_VERSION,
        "step": step,
        "files": {**written, RNG: files.write_hashed(temporary / RNG, lambda file: file.write(rng))},
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
    steps = manifest.get("optimizer_steps", {})
    for name, size in manifest.get("sizes", {}).items():
        for kind in (MODEL, *MOMENTS) if name in steps else (MODEL,):
            found = manifest["tensors"].get(f"{kind}/{name}", {"shape": [0]})
            if math.prod(found["shape"]) != size:
                raise DamagedError(f"{kind}/{name}: {math.prod(found['shape'])} of {size} elements are in the shards")
    for key, tensor in manifest["tensors"].items():
        problem = cover_problem(intervals_of(tensor), math.prod(tensor["shape"]))
        if problem:
            raise DamagedError(f"{key}: {problem}")


def intervals_of(tensor: Mapping[str, Any]) -> List[Interval]:
    return [Interval(*part) for part in tensor["parts"]]
