"""
Checkpoints on disk: one folder per step, complete or absent, verified by size and hash. No torch, one process.

    <out>/step_20/{r00000.safetensors, …, rng.json, manifest.json}   <out>/latest   <out>/quarantine/   <out>/step_40.tmp-<token>/

The folder of an unfinished save has a name that no other save ever has: a rank on a node that was cut off may still write there
while the next attempt saves the same step.

The state is in shards (shards.py), a whole one in a single shard. Earlier versions wrote state.pt instead, which is still read.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Mapping, Sequence, Tuple

from trainer.io import replace_text

MANIFEST = "manifest.json"
STATE_PT_VERSION = 1  # no longer written
VERSION = 2  # lists tensors and the intervals of them in the shards
STEP_FOLDER = re.compile(r"step_(\d+)\Z")
STALE = re.compile(r"(step_\d+|latest|\.shared|metrics\.jsonl|summary\.json|deepspeed\.json)\.tmp-")
TOKEN_BYTES = 8
STILL_WRITTEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ESTALE)  # of a folder to which another rank adds files meanwhile
QUARANTINED_PREFIX = "quarantined-"
FILE_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\Z")
READ_BYTES = 256 << 10  # stays in the cache, and in memory that malloc reuses: 4 MB takes twice the CPU time
MANIFEST_BYTES = 1 << 30  # about 30 per rank, parameter and kind of tensor: 8,192 ranks with 1,400 parameters
LOCK, HOLDER_BYTES = ".lock", 1024
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class DamagedError(Exception):
    """The folder is no complete checkpoint; the message names the reason, and the file unless it is the folder itself."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; the manifest has step, world size and configuration."""

    path: Path
    manifest: Mapping[str, Any]


def temporary_path(out: Path, step: int, token: str) -> Path:
    """The folder of a save; every attempt draws its token, while pids repeat."""
    return out / f"step_{step}.tmp-{token}"


def write_hashed(path: Path, content: bytes) -> Dict[str, Any]:
    """Write a new file and flush it to disk; returns its size and hash."""
    with create(path) as file:
        file.write(content)
        flush_to_disk(file)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def write_manifest(temporary: Path, manifest: Mapping[str, Any]) -> None:
    """Write the sealed manifest, and flush the folder with all its files."""
    content = seal(manifest).encode()
    if len(content) > MANIFEST_BYTES:
        raise OSError(f"{MANIFEST} would have {len(content)} bytes, over {MANIFEST_BYTES}: use checkpoint=whole")
    with create(temporary / MANIFEST) as file:
        file.write(content)
        flush_to_disk(file)
    _flush_folder(temporary)


def publish(out: Path, temporary: Path, step: int) -> Path:
    """Give a verified checkpoint its name; returns its path."""
    final = out / f"step_{step}"
    temporary.rename(final)
    replace_text(out / "latest", f"{final.name}\n")
    _flush_folder(out)
    return final


def verify(path: Path, step: int | None) -> dict[str, Any]:
    """The manifest of a complete checkpoint; raises DamagedError otherwise. Reads every byte, keeps none."""
    manifest = read_manifest(path, step)
    verify_files(path, manifest["files"])
    return manifest


def verify_files(path: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare files with their sizes and hashes in the manifest; raises DamagedError."""
    for name, expected in files.items():
        sha256, size = hashlib.sha256(), 0
        for part in _parts(path / name):
            sha256.update(part)
            size += len(part)
        _compare(name, expected, size, sha256.hexdigest())


def hash_of(path: Path, size: int) -> str:
    """The hash of the first `size` bytes of a file."""
    digest, rest = hashlib.sha256(), size
    with path.open("rb", buffering=0) as file:
        while rest:
            part = file.read(min(READ_BYTES, rest))
            if not part:
                break
            digest.update(part)
            rest -= len(part)
    return digest.hexdigest()


def is_sharded(manifest: Mapping[str, Any]) -> bool:
    """Several ranks have written it, and all ranks read it; else rank 0 alone."""
    return len([name for name in manifest["files"] if name.endswith(".safetensors")]) > 1


def check_sizes(path: Path, manifest: Mapping[str, Any]) -> None:
    """Check without hashes: raises DamagedError if a file is missing or has another size."""
    for name, expected in manifest["files"].items():
        try:
            size = (path / name).stat().st_size
        except OSError as exc:
            raise DamagedError(f"{name}: {exc.strerror}") from exc
        _compare(name, expected, size, expected["sha256"])


def reason(error: Exception) -> str:
    """Return why a checkpoint could not be written, with the next step if the disk or the user's share of it is full."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{os.strerror(error.errno)}; free some space, and start again"
    return str(error)


def verified(path: Path) -> Checkpoint:
    """The checkpoint in the folder `path`, every byte of it checked; raises DamagedError."""
    return Checkpoint(path, verify(path, step_of(path)))


def step_of(path: Path) -> int | None:
    """20 for step_20, None for any other name."""
    match = STEP_FOLDER.match(path.name)
    return int(match.group(1)) if match else None


def newest_first(out: Path) -> list[Path]:
    """All step folders by their number; the file `latest` is for people and not read."""
    return sorted((path for path in _entries(out) if step_of(path) is not None), key=lambda path: -(step_of(path) or 0))


def trust_problem(found: os.stat_result) -> str:
    """
    Return why a file or folder with this owner and mode cannot be trusted, or "".

    Like sshd's StrictModes: a checkpoint decides what the trainer loads, so only its user and root may be able to write it.
    """
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to uid {found.st_uid}, not to uid {os.geteuid()} or root"
    if found.st_mode & OTHERS_MAY_WRITE:
        return f"others may write it (mode {stat.S_IMODE(found.st_mode):o}): chmod -R go-w"
    return ""


def quarantine(out: Path, path: Path) -> Path:
    """
    Move a checkpoint to the quarantine folder; returns its new path.

    The folder of another user is renamed in place: only its owner may move it into another folder.
    """
    folder = out / "quarantine"
    folder.mkdir(mode=0o700, exist_ok=True)
    taken = {entry.name for entry in folder.iterdir()}
    number = next(n for n in range(len(taken) + 1) if f"{path.name}-{n}" not in taken)
    try:
        return path.rename(folder / f"{path.name}-{number}")
    except PermissionError:
        taken = {entry.name for entry in _entries(out)}
        number = next(n for n in range(len(taken) + 1) if f"{QUARANTINED_PREFIX}{path.name}-{n}" not in taken)
        return path.rename(out / f"{QUARANTINED_PREFIX}{path.name}-{number}")


def quarantined(out: Path) -> int:
    """The number of checkpoints in quarantine."""
    return len(_entries(out / "quarantine")) + sum(path.name.startswith(QUARANTINED_PREFIX) for path in _entries(out))


def retain(out: Path, limit: int, best: int = 0, *, every: int | None = None) -> None:
    """
    Keep the newest `limit`, the `best` with the lowest loss, and the milestones; call it only after the newest was verified.

    Also removes the unfinished saves of earlier attempts, to which ranks on a node that was cut off may have written meanwhile.
    """
    present = newest_first(out)
    best_ones = sorted(present, key=_loss_order)[:best] if best else []  # reads all manifests
    kept = {*present[:limit], *best_ones, *milestones(present, every)}
    for path in present:
        if path not in kept:
            # Renamed first: a half removed folder must never look like a checkpoint.
            shutil.rmtree(str(path.rename(out / f"{path.name}.tmp-removed-{secrets.token_hex(TOKEN_BYTES)}")))
    for path in _entries(out):
        if STALE.match(path.name) and path.is_dir():
            _remove_folder(path)


def milestones(present: Sequence[Path], every: int | None) -> List[Path]:
    """Return the first checkpoint at or after each multiple of `every` steps; `present` is newest first."""
    if every is None:
        return []
    return list({(step_of(path) or 0) // every: path for path in present if (step_of(path) or 0) >= every}.values())


def remove_stale(out: Path) -> list[str]:
    """Remove the temporary files of writers that died; returns the names of those that are gone."""
    removed = []
    for path in _entries(out):
        if not STALE.match(path.name):
            continue
        if not path.is_dir():
            path.unlink()
        elif not _remove_folder(path):
            continue
        removed.append(path.name)
    return removed


def _remove_folder(path: Path) -> bool:
    """Remove the folder of an unfinished save; return False if another rank still writes there: the next save tries again."""
    try:
        shutil.rmtree(str(path))
    except OSError as exc:
        if exc.errno not in STILL_WRITTEN:
            raise
        return False
    return True


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def seal(manifest: Mapping[str, Any]) -> str:
    """Add the manifest's own hash, which detects a damaged step or world size."""
    body = json.dumps(manifest, sort_keys=True)
    sealed = {**manifest, "seal": hashlib.sha256(body.encode()).hexdigest()}
    # The intervals of a sharded checkpoint are too many for a line each.
    return json.dumps(sealed, sort_keys=True, indent=1 if manifest.get("version") == STATE_PT_VERSION else None)


def read_manifest(path: Path, step: int | None) -> dict[str, Any]:
    """The manifest, of `step` if that is given; raises DamagedError. Reads no other file."""
    try:
        found = path.lstat()
    except OSError as exc:
        raise DamagedError(exc.strerror) from exc
    if not stat.S_ISDIR(found.st_mode):
        raise DamagedError("no folder")
    if trust_problem(found):
        raise DamagedError(trust_problem(found))
    try:
        text = b"".join(_parts(path / MANIFEST, limit=MANIFEST_BYTES)).decode()
        manifest = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise DamagedError(f"{MANIFEST}: not readable: {exc}") from exc
    if not isinstance(manifest, dict) or seal({k: v for k, v in manifest.items() if k != "seal"}) != text:
        raise DamagedError(f"{MANIFEST}: its own hash does not match")
    if manifest["version"] not in (STATE_PT_VERSION, VERSION):
        raise DamagedError(
            f"{MANIFEST}: of version {manifest['version']}, this trainer reads {STATE_PT_VERSION} and {VERSION}"
        )
    if step is not None and manifest["step"] != step:
        raise DamagedError(f"{MANIFEST}: is of step {manifest['step']}")
    for name in manifest["files"]:
        if not FILE_NAME.match(name):
            raise DamagedError(f"{MANIFEST}: {name!r} is no plain file name")
    return manifest


def best_evaluated(present: Sequence[Path]) -> Path | None:
    """Return the checkpoint with the lowest eval_loss; None if no undamaged manifest has one."""
    ordered = sorted(present, key=_loss_order)
    is_without, loss = _loss_order(ordered[0]) if ordered else (True, math.inf)
    return None if is_without or math.isinf(loss) else ordered[0]


def _loss_order(path: Path) -> Tuple[bool, float]:
    """Sort key, best first: evaluated checkpoints by their eval loss, then the others by their training loss."""
    try:
        manifest = read_manifest(path, step_of(path))
    except DamagedError:
        return True, math.inf
    evaluated = manifest.get("eval_loss")
    loss = manifest.get("mean_loss") if evaluated is None else evaluated
    return evaluated is None, loss if loss is not None and math.isfinite(loss) else math.inf


def _compare(name: str, expected: Mapping[str, Any], size: int, sha256: str) -> None:
    if size != expected["bytes"]:
        raise DamagedError(f"{name}: {size} bytes, {expected['bytes']} were written")
    if sha256 != expected["sha256"]:
        raise DamagedError(f"{name}: its hash does not match")


def _parts(path: Path, limit: int | None = None) -> Iterator[bytes]:
    """The bytes of a regular file; raises DamagedError, also if other users may have written it."""
    try:
        # O_NOFOLLOW refuses a symbolic link; O_NONBLOCK keeps a pipe from blocking.
        with os.fdopen(os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            problem = trust_problem(found) if stat.S_ISREG(found.st_mode) else "no plain file"
            if problem or (limit is not None and found.st_size > limit):
                raise DamagedError(f"{path.name}: {problem or f'larger than {limit} bytes'}")
            while True:
                part = file.read(READ_BYTES)
                if not part:
                    return
                yield part
    except OSError as exc:
        raise DamagedError(f"{path.name}: {exc.strerror}") from exc


def create(path: Path) -> BinaryIO:
    """A new private file; raises FileExistsError."""
    return os.fdopen(os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def flush_to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    """Flush the folder's entries, so that the names survive a power cut."""
    folder = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def lock(out: Path, run: str | None) -> str:
    """
    Lock the folder for the life of this process; returns "", or the name of the holder.

    Two trainings would remove each other's unfinished checkpoints and mix their metrics.

    Args:
        out: exists.
        run: orch's id of the run. Its own earlier attempt may hold the lock: a file server may need minutes to notice that a
            node is dead.
    """
    file = os.open(str(out / LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock(), which child processes would inherit
    except OSError as exc:
        holder = os.pread(file, HOLDER_BYTES, 0).decode(errors="replace").strip()
        os.close(file)
        if exc.errno not in (errno.EACCES, errno.EAGAIN):
            return ""  # a file system without locks
        return "" if run and holder.startswith(f"run {run},") else holder or "another process"
    os.ftruncate(file, 0)
    os.pwrite(file, f"run {run or 'outside orch'}, pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return ""  # the file stays open: closing it would release the lock
