"""
Checkpoints on disk: one folder a step, complete or not there at all, checked by size and hash. No torch, one process.

    <out>/step_20/{state.pt, rng.json, manifest.json}   <out>/latest   <out>/quarantine/   <out>/step_40.tmp-<pid>/
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator, Mapping

from trainer.place import replace_text

MANIFEST = "manifest.json"
STEP_FOLDER = re.compile(r"step_(\d+)\Z")
STALE_FOLDER = re.compile(r"step_\d+\.tmp-")
READ_BYTES = 4 << 20


class DamagedError(Exception):
    """The folder is no complete checkpoint; the message says which file and why."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory; `about` is what the writer noted: step, world size, configuration."""

    path: Path
    about: Mapping[str, Any]
    files: Mapping[str, bytes]


class _HashedFile:
    """Writes through to a file, hashing on the way; torch.save only appends."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        written = self.file.write(data)
        self.size += written
        return written

    def flush(self) -> None:
        self.file.flush()


def write(out: Path, step: int, about: Mapping[str, Any], writers: Mapping[str, Callable[[Any], object]]) -> Path:
    """
    Write aside, flush to disk, read back, and only then give it its name.

    Args:
        out: exists.
        step: names the folder; no checkpoint of that step may be there.
        about: JSON values kept in the manifest.
        writers: file name -> called with an object that has write(bytes).

    Returns:
        <out>/step_<step>, verified.

    Raises:
        OSError: no space, no permission, or what was read back is not what was written.
    """
    aside = out / f"step_{step}.tmp-{os.getpid()}"
    aside.mkdir(mode=0o700)
    files: Dict[str, Dict[str, Any]] = {}
    for name, write_to in writers.items():
        with _create(aside / name) as file:
            hashed = _HashedFile(file)
            write_to(hashed)
            _flush_to_disk(file)
        files[name] = {"bytes": hashed.size, "sha256": hashed.sha256.hexdigest()}
    with _create(aside / MANIFEST) as file:
        file.write(_seal({"version": 1, "step": step, "files": files, **about}).encode())
        _flush_to_disk(file)
    _flush_folder(aside)
    try:
        verify(aside, step)
    except DamagedError as exc:
        raise OSError(f"{aside} reads back differently: {exc}") from exc
    final = out / f"step_{step}"
    aside.rename(final)
    replace_text(out / "latest", f"{final.name}\n")
    _flush_folder(out)
    return final


def verify(path: Path, step: int) -> dict[str, Any]:
    """The manifest of a whole checkpoint; raises DamagedError otherwise. Reads every byte, keeps none."""
    manifest = _read_manifest(path, step)
    for name, expected in manifest["files"].items():
        sha256, size = hashlib.sha256(), 0
        for part in _parts(path / name):
            sha256.update(part)
            size += len(part)
        _compare(name, expected, size, sha256.hexdigest())
    return manifest


def read(path: Path) -> Checkpoint:
    """The checkpoint, checked on the very bytes that are returned; raises DamagedError."""
    manifest = _read_manifest(path, step_of(path))
    files: Dict[str, bytes] = {}
    for name, expected in manifest["files"].items():
        files[name] = b"".join(_parts(path / name))
        _compare(name, expected, len(files[name]), hashlib.sha256(files[name]).hexdigest())
    return Checkpoint(path, manifest, files)


def step_of(path: Path) -> int | None:
    """20 for step_20, None for any other name."""
    match = STEP_FOLDER.match(path.name)
    return int(match.group(1)) if match else None


def newest_first(out: Path) -> list[Path]:
    """Every step folder by its number; `latest` is for people, and not asked."""
    return sorted((path for path in _entries(out) if step_of(path) is not None), key=lambda path: -(step_of(path) or 0))


def quarantine(out: Path, path: Path) -> Path:
    """Move a checkpoint out of the way without destroying it; returns where it is now."""
    folder = out / "quarantine"
    folder.mkdir(mode=0o700, exist_ok=True)
    taken = {entry.name for entry in folder.iterdir()}
    number = next(n for n in range(len(taken) + 1) if f"{path.name}-{n}" not in taken)
    return path.rename(folder / f"{path.name}-{number}")


def quarantined(out: Path) -> int:
    """How many checkpoints were ever moved out of the way here."""
    return len(_entries(out / "quarantine"))


def retain(out: Path, limit: int) -> None:
    """Remove the oldest beyond `limit`; call it only after the newest was verified."""
    for path in newest_first(out)[limit:]:
        # Renamed first: a half removed folder must never look like a checkpoint.
        shutil.rmtree(str(path.rename(out / f"{path.name}.tmp-removed-{os.getpid()}")))


def remove_stale(out: Path) -> list[str]:
    """Remove what writers that died left aside; returns the names."""
    stale = [path for path in _entries(out) if STALE_FOLDER.match(path.name)]
    for path in stale:
        shutil.rmtree(str(path))
    return [path.name for path in stale]


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _seal(manifest: Mapping[str, Any]) -> str:
    """The manifest hashes itself, so that a damaged step or world size does not pass."""
    body = json.dumps(manifest, sort_keys=True)
    return json.dumps({**manifest, "seal": hashlib.sha256(body.encode()).hexdigest()}, sort_keys=True, indent=1)


def _read_manifest(path: Path, step: int | None) -> dict[str, Any]:
    try:
        text = (path / MANIFEST).read_text(encoding="utf-8")
        manifest = json.loads(text)
    except OSError as exc:
        raise DamagedError(f"{MANIFEST}: {exc.strerror}") from exc
    except ValueError as exc:
        raise DamagedError(f"{MANIFEST}: not readable: {exc}") from exc
    if not isinstance(manifest, dict) or _seal({k: v for k, v in manifest.items() if k != "seal"}) != text:
        raise DamagedError(f"{MANIFEST}: its own hash does not match")
    if step is not None and manifest["step"] != step:
        raise DamagedError(f"{MANIFEST}: is of step {manifest['step']}")
    return manifest


def _compare(name: str, expected: Mapping[str, Any], size: int, sha256: str) -> None:
    if size != expected["bytes"]:
        raise DamagedError(f"{name}: {size} bytes, {expected['bytes']} were written")
    if sha256 != expected["sha256"]:
        raise DamagedError(f"{name}: its hash does not match")


def _parts(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while True:
                part = file.read(READ_BYTES)
                if not part:
                    return
                yield part
    except OSError as exc:
        raise DamagedError(f"{path.name}: {exc.strerror}") from exc


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _flush_to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    """Makes the names in it survive a power cut, as fsync of a file does its bytes."""
    folder = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
