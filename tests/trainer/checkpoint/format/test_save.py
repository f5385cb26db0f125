"""A save on disk: everything in it is flushed and read back before the folder gets its final name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer.checkpoint.format import files, shards

STATE = b"weights" * 50_000


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """The calls of fsync and rename, in order: name, file name, size of the file at that moment. All are executed."""
    recorded: list[tuple[str, str, int]] = []
    fsync, rename = os.fsync, os.rename

    def recording_fsync(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        recorded.append(("fsync", path.name, path.stat().st_size))

    def recording_rename(source: str, target: str) -> None:
        recorded.append(("rename", Path(target).name, 0))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "rename", recording_rename)
    return recorded


def save(out: Path) -> Path:
    """One shard, as rank 0 writes a whole state."""
    temporary = files.temporary_path(out, 1, "4711")
    temporary.mkdir()
    record = shards.write_shard(temporary, 0, memoryview(bytearray(STATE)))
    tensors = {"model/a": ["U8", [len(STATE)], 0, len(STATE)]}
    return shards.commit(out, temporary, step=1, records=[{**record, "tensors": tensors}], rng=b"[]", metadata={})


def test_checkpoint_is_flushed_before_its_rename_and_its_folder_after_it(
    tmp_path: Path, calls: list[tuple[str, str, int]]
) -> None:
    saved = save(tmp_path)
    renamed = calls.index(("rename", "step_1", 0))
    before, after = calls[:renamed], calls[renamed:]
    for file in saved.iterdir():
        assert ("fsync", file.name, file.stat().st_size) in before  # after its last byte was written
    kind, folder, _ = before[-1]
    assert kind == "fsync"
    assert folder.startswith("step_1.tmp-")  # after its last file was created
    assert ("fsync", tmp_path.name) in [call[:2] for call in after]


def test_checkpoint_that_reads_back_differently_never_gets_its_final_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk damages the file when it is flushed, as a faulty one would."""
    fsync = os.fsync

    def damage(descriptor: int) -> None:
        fsync(descriptor)
        [state] = tmp_path.glob("step_1.tmp-*/r00000.safetensors")
        with state.open("r+b") as damaged:
            damaged.write(b"X")

    monkeypatch.setattr(os, "fsync", damage)
    with pytest.raises(OSError, match=r"r00000\.safetensors reads back differently"):
        save(tmp_path)
    assert files.newest_first(tmp_path) == []
