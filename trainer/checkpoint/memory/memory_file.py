"""
One state of one rank in the node's memory: the content of that shard, and a sealed record, which is written last. No disk has it.

    <ORCH_MEMORY_DIR>/{r00003-0.safetensors, r00003-0.json, r00003-1.safetensors, …}

orch's agent names the folder for each node and removes it when the run ends, so a state outlives the rank. A rank has two slots,
and a node may also have copies of the states of another node's ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Tuple

from trainer.checkpoint.format import files
from trainer.checkpoint.format.files import DamagedError
from trainer.checkpoint.format.shards import shard_name
from trainer.checkpoint.save.shared_memory import SharedMemory
from trainer.io import replace_text
from trainer.runtime.accelerators import Accelerator

SLOTS = 2


class MemoryFile:
    """A slot of a rank. Its record exists only while the content is the one that the record describes."""

    def __init__(self, folder: Path, rank: int, slot: int, accelerator: Accelerator) -> None:
        self.rank, self.slot, self.accelerator = rank, slot, accelerator
        stem = Path(shard_name(rank)).stem
        self.path, self.record_path = folder / f"{stem}-{slot}.safetensors", folder / f"{stem}-{slot}.json"
        self._memory: SharedMemory | None = None

    @property
    def memory(self) -> SharedMemory:
        """The content; the file is created if there is none."""
        if self._memory is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._memory = SharedMemory(os.open(str(self.path), flags, 0o600), self.accelerator)
        return self._memory

    def close(self) -> None:
        """Close the content, which stays."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def forget(self) -> None:
        """Remove the record; call it before the content changes."""
        with contextlib.suppress(FileNotFoundError):
            self.record_path.unlink()

    def write_record(self, record: Mapping[str, Any]) -> str:
        """Returns the problem, or ""."""
        try:
            replace_text(self.record_path, files.seal(record))
        except OSError as exc:
            return f"{self.record_path}: {exc.strerror}"
        return ""

    def read_record(self) -> Dict[str, Any] | None:
        """The record; None if there is none. Raises DamagedError."""
        try:
            text = self.record_path.read_text(encoding="utf-8")
            record = json.loads(text)
            is_whole = files.seal({key: value for key, value in record.items() if key != "seal"}) == text
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError) as exc:
            raise DamagedError(f"{self.record_path}: cannot be read: {exc}") from exc
        if not is_whole:
            raise DamagedError(f"{self.record_path}: its own hash does not match")
        found: Dict[str, Any] = record
        return found

    def verify(self, record: Mapping[str, Any]) -> str:
        """Return why the content is not that of the record, or ""."""
        try:
            if self.path.stat().st_size != record["size"]:
                return f"{self.path}: {self.path.stat().st_size} bytes, {record['size']} were kept"
            if files.hash_of(self.path, record["size"]) != record["sha256"]:
                return f"{self.path}: its hash does not match"
        except OSError as exc:
            return f"{self.path}: {exc.strerror}"
        return ""


def files_in(folder: Path, accelerator: Accelerator) -> Iterator[Tuple[MemoryFile, Dict[str, Any] | None, str]]:
    """Each slot in the folder that has a record: the file, its record, or the reason why that cannot be used."""
    for path in sorted(folder.glob("r*-?.json")):
        rank, _, slot = path.stem[1:].partition("-")
        if not (rank.isdigit() and slot.isdigit()):
            continue
        file = MemoryFile(folder, int(rank), int(slot), accelerator)
        try:
            yield file, file.read_record(), ""
        except DamagedError as exc:
            yield file, None, str(exc)
