"""Shards and their manifest: every damage is found, and one rank's checkpoint is restored whole. One process, real files."""

from __future__ import annotations

import errno
import gc
import hashlib
import mmap
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.grounds.checkpoints import SHARD_DAMAGES, Session
from tests.grounds.killed_writers import save_shards
from trainer import safetensors
from trainer.checkpoint import manager
from trainer.checkpoint.format import files, shards
from trainer.checkpoint.format.files import Checkpoint, DamagedError
from trainer.checkpoint.interop.export import export
from trainer.checkpoint.load import sharded as reading
from trainer.checkpoint.load.sharded import read_weights
from trainer.checkpoint.manager import TrainState
from trainer.checkpoint.save import sharded
from trainer.errors import StorageError, UserError
from trainer.parallel.ddp import Ddp
from trainer.parallel.parts import Part
from trainer.safetensors import SafetensorsFile
from trainer.tasks.gpt import Gpt


def test_resume_restores_everything_that_was_saved_in_shards(tmp_path: Path) -> None:
    first = Session.start(tmp_path, checkpoint="sharded")
    first.train_and_save(1, 2)
    assert sorted(path.name for path in (tmp_path / "step_2").iterdir()) == [
        "manifest.json", "r00000.safetensors", "rng.json",
    ]  # fmt: skip
    second = Session.start(tmp_path, checkpoint="whole")  # the form of the next save
    assert second.resume() == TrainState(2, 4, 5.5, 0.5)
    assert second.weights() == first.weights()
    for saved, resumed in zip(
        first.strategy.optimizer.state.values(), second.strategy.optimizer.state.values(), strict=True
    ):
        assert all(torch.equal(saved[name], resumed[name]) for name in ("exp_avg", "exp_avg_sq", "step"))
    second.train_and_save(3)
    third = Session.start(tmp_path, checkpoint="sharded")
    assert third.resume().step == 3
    assert third.weights() == second.weights()


def test_export_of_shards_has_the_weights_of_a_whole_file(tmp_path: Path) -> None:
    exported = {}
    for form in ("whole", "sharded"):
        Session.start(tmp_path / form, checkpoint=form).train_and_save(1)
        count = export(tmp_path / form / "step_1", tmp_path / f"{form}.safetensors")
        file = SafetensorsFile(tmp_path / f"{form}.safetensors")
        exported[form] = {name: file.tensor(name).tolist() for name in sorted(file.header.entries)}
        assert count == len(exported[form])
    assert exported["whole"] == exported["sharded"]


def test_tied_weight_is_in_shards_once_and_read_under_both_names(tmp_path: Path) -> None:
    session = Session.start(tmp_path, checkpoint="sharded")
    model = session.strategy.unwrapped_model
    name, weight = next(iter(model.named_parameters()))
    second = torch.nn.Module()
    second.register_parameter("tied", weight)
    model.add_module("second", second)
    session.train_and_save(1)
    found = files.verified(tmp_path / "step_1")
    assert found.manifest["aliases"] == {"second.tied": name}
    weights = read_weights(found)
    assert torch.equal(weights["second.tied"], weights[name])


def test_model_with_state_that_is_no_tensor_is_refused_before_the_first_step(tmp_path: Path) -> None:
    class Extra(torch.nn.Module):
        def get_extra_state(self) -> dict[str, int]:
            return {"seen": 1}

        def set_extra_state(self, state: object) -> None:
            pass

    session = Session.start(tmp_path, checkpoint="sharded")
    session.strategy.unwrapped_model.add_module("extra", Extra())
    with pytest.raises(UserError, match=r"extra\._extra_state: shards hold tensors only: use checkpoint=whole"):
        session.checkpoints.for_model(session.strategy)


def test_state_that_is_no_tensor_is_in_a_whole_checkpoint(tmp_path: Path) -> None:
    class Extra(torch.nn.Module):
        count = 0

        def get_extra_state(self) -> dict[str, int]:
            return {"count": self.count}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    for count in (3, 0):
        session, extra = Session.start(tmp_path), Extra()
        session.strategy.unwrapped_model.add_module("extra", extra)
        extra.count = count
        if count:
            session.train_and_save(1)
        else:
            assert (session.resume().step, extra.count) == (1, 3)


def test_model_with_numbers_that_safetensors_has_not_is_refused_before_the_first_step(tmp_path: Path) -> None:
    session = Session.start(tmp_path, checkpoint="sharded")
    session.strategy.unwrapped_model.register_buffer("angle", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UserError, match=r"model/angle: shards do not hold torch\.complex64: use checkpoint=whole"):
        session.checkpoints.for_model(session.strategy)


def test_large_model_with_numbers_that_safetensors_has_not_is_saved_whole_unless_shards_are_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sharded, "SHARDED_FROM_BYTES", 1)
    session = Session.start(tmp_path, checkpoint="auto", may_shard=True)
    assert session.checkpoints.for_model(session.strategy) == session.checkpoints
    angle = torch.zeros(2, dtype=torch.complex64)
    session.strategy.unwrapped_model.register_buffer("angle", angle)
    session.checkpoints = session.checkpoints.for_model(session.strategy)
    assert "checkpoints: whole files: model/angle: shards do not hold torch.complex64\n" in capsys.readouterr().out
    angle.fill_(2j)
    session.train_and_save(1)
    angle.zero_()
    assert session.resume().step == 1
    assert angle.tolist() == [2j, 2j]


def test_shards_on_cuda_are_saved_in_the_background_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session.start(tmp_path, checkpoint="sharded")
    checkpoints = session.checkpoints
    cuda = replace(checkpoints.group, accelerator=checkpoints.group.accelerator.changed(name="cuda"))
    for free, is_async in ((1 << 40, True), (1, False)):
        monkeypatch.setattr(manager, "available_memory", lambda free=free: free)
        found = replace(checkpoints, group=cuda).for_model(session.strategy).config
        assert (found.async_save, found.save_share) == (is_async, 0.02)
    assert "one shard per rank, in " in capsys.readouterr().out
    assert not checkpoints.for_model(session.strategy).config.async_save


def test_small_models_are_saved_whole_unless_shards_are_requested(tmp_path: Path) -> None:
    session = Session.start(tmp_path, checkpoint="auto")
    sizes = session.strategy.sizes
    assert not session.checkpoints.writes_shards(sizes)
    assert not session.checkpoints.find_may_shard()  # one rank
    assert Session.start(tmp_path, checkpoint="sharded").checkpoints.writes_shards(sizes)
    large = Session.start(tmp_path, checkpoint="auto", may_shard=True).checkpoints
    assert not large.writes_shards(sizes)
    assert large.writes_shards({"a": 10**9})


@pytest.mark.parametrize("damage", SHARD_DAMAGES)
def test_damaged_shards_are_quarantined_and_the_older_checkpoint_resumed(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Session.start(tmp_path, checkpoint="sharded").train_and_save(1, 2)
    SHARD_DAMAGES[damage](tmp_path / "step_2")
    assert Session.start(tmp_path, checkpoint="sharded").resume().step == 1
    assert [path.name for path in (tmp_path / "quarantine").iterdir()] == ["step_2-0"]
    assert "damaged checkpoint step_2 (" in capsys.readouterr().out


def test_every_flipped_bit_every_length_and_every_file_of_another_save_are_found(tmp_path: Path) -> None:
    for step in (1, 2):
        save_shards(tmp_path, step, size=300)
    path, draw = tmp_path / "step_2", random.Random(15)
    files.verify(path, 2)

    def is_damaged(file: Path, content: bytes, change: Callable[[bytes], bytes]) -> bool:
        file.write_bytes(change(content))
        try:
            files.verify(path, 2)
        except DamagedError:
            return True
        finally:
            file.write_bytes(content)
        return False

    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        for position in range(len(content)):
            flipped = bytes([content[position] ^ 1 << draw.randrange(8)])
            assert is_damaged(file, content, lambda data: data[:position] + flipped + data[position + 1 :]), position
        for length in (*range(0, len(content), 50), len(content) - 1):
            assert is_damaged(file, content, lambda data: data[:length]), length
        assert is_damaged(file, content, lambda data: data + b"\0")
        earlier = (tmp_path / "step_1" / file.name).read_bytes()
        if file.name != "rng.json":  # which is the same in both
            assert is_damaged(file, content, lambda _: earlier)
    shutil.copyfile(path / "r00000.safetensors", tmp_path / "first")
    (path / "r00001.safetensors").replace(path / "r00000.safetensors")
    (tmp_path / "first").replace(path / "r00001.safetensors")
    with pytest.raises(DamagedError, match=r"r00000\.safetensors: its hash does not match"):
        files.verify(path, 2)


def test_shard_of_more_ranks_beside_those_of_a_checkpoint_is_not_read(tmp_path: Path) -> None:
    Session.start(tmp_path, checkpoint="sharded").train_and_save(1, 2)
    step_1, step_2 = tmp_path / "step_1", tmp_path / "step_2"
    shutil.copyfile(step_1 / "r00000.safetensors", step_2 / "r00001.safetensors")
    session = Session.start(tmp_path, checkpoint="sharded")
    assert session.resume().step == 2
    clean = Session.start(tmp_path, checkpoint="sharded")
    (step_2 / "r00001.safetensors").unlink()
    clean.resume()
    assert session.weights() == clean.weights()


def test_manifest_that_lacks_elements_is_damaged() -> None:
    manifest = {"tensors": shards.merged([{"model/a": ["F32", [4, 3], 0, 6]}, {"model/a": ["F32", [4, 3], 6, 12]}])}
    shards.check_tensors(manifest)
    manifest["tensors"]["model/a"]["parts"].pop()
    with pytest.raises(DamagedError, match="model/a: 6 of 12 elements are in the shards"):
        shards.check_tensors(manifest)


def test_manifest_that_lacks_a_weight_or_its_moments_is_damaged() -> None:
    keys = ("model/a", "exp_avg/a", "exp_avg_sq/a", "ema/a", "model/frozen")
    manifest: dict[str, Any] = {
        "sizes": {"a": 6, "frozen": 2, "empty": 0},
        "optimizer_steps": {"a": 1.0},
        "further_moments": {"ema": ["a"]},
        "tensors": shards.merged([{key: ["F32", [2 if key == "model/frozen" else 6], 0, 6] for key in keys}]),
    }
    manifest["tensors"]["model/frozen"]["parts"] = [[0, 0, 2]]
    shards.check_tensors(manifest)
    for key in keys:
        tensors = {name: tensor for name, tensor in manifest["tensors"].items() if name != key}
        with pytest.raises(DamagedError, match=f"{key}: 0 of [26] elements are in the shards"):
            shards.check_tensors({**manifest, "tensors": tensors})


def test_save_that_lacks_a_weight_costs_no_older_checkpoint(tmp_path: Path) -> None:
    session = Session.start(tmp_path, checkpoint="sharded", save_total_limit=1)
    session.train_and_save(1)
    session.strategy.sizes = {**session.strategy.sizes, "frozen": 3}
    with pytest.raises(StorageError, match="model/frozen: 0 of 3 elements are in the shards"):
        session.train_and_save(2)
    assert [path.name for path in files.newest_first(tmp_path)] == ["step_1"]


def test_resumed_shards_do_not_stay_mapped(tmp_path: Path) -> None:
    """Over NFS the removal of a mapped file leaves another one, and its folder cannot be removed."""
    Session.start(tmp_path, checkpoint="sharded").train_and_save(1)
    session = Session.start(tmp_path, checkpoint="sharded")
    gc.collect()
    gc.disable()
    try:
        assert session.resume().step == 1
        mapped = Path("/proc/self/maps").read_text()
    finally:
        gc.enable()
    assert str(tmp_path) not in mapped


def test_shards_beyond_the_limit_of_open_files_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "OPEN_FILES", 1)
    values = torch.arange(6.0)
    for rank in (0, 1):
        with (tmp_path / shards.shard_name(rank)).open("wb") as file:
            safetensors.write(file, {"model/a": values[3 * rank :][:3]}, {})
    tensors = shards.merged([{"model/a": ["F32", [6], 3 * rank, 3 * rank + 3]} for rank in (0, 1)])
    source = reading.Shards(Checkpoint(tmp_path, {"tensors": tensors}))
    assert torch.equal(source.whole("model/a"), values)
    assert torch.equal(source.whole("model/a"), values)


def test_missing_moments_of_a_parameter_without_gradients_are_loaded_as_zeros(tmp_path: Path) -> None:
    """ZeRO has moments of all parameters, DDP only of those that had a gradient."""

    class MomentsOfAll(Ddp):
        def parts_to_load(self, steps: Mapping[str, float], further: Mapping[str, Sequence[str]]) -> Sequence[Part]:
            return super().parts_to_load(dict.fromkeys(self.sizes, next(iter(steps.values()))), further)

    first = Session.start(tmp_path, checkpoint="sharded")
    first.train()
    name, unused = next(iter(first.strategy.unwrapped_model.named_parameters()))
    del first.strategy.optimizer.state[unused]
    first.checkpoints.save(TrainState(1, 2), first.strategy)
    assert name not in files.verified(tmp_path / "step_1").manifest["optimizer_steps"]
    second = Session.start(tmp_path, checkpoint="sharded")
    strategy = MomentsOfAll(second.checkpoints.group, second.checkpoints.config, Gpt(second.checkpoints.config))
    assert second.checkpoints.resume(strategy).step == 1
    assert not strategy.optimizer.state[next(strategy.unwrapped_model.parameters())]["exp_avg"].any()


def test_too_large_manifest_is_refused_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MANIFEST_BYTES", 100)
    with pytest.raises(OSError, match=r"^manifest\.json would have \d+ bytes, over 100: use checkpoint=whole$"):
        save_shards(tmp_path, 1)
    assert files.newest_first(tmp_path) == []


def test_ranks_that_disagree_about_a_tensor_cannot_save() -> None:
    with pytest.raises(OSError, match=r"model/a: rank 1 has F32 of \[3, 4\], others F32 of \[4, 3\]"):
        shards.merged([{"model/a": ["F32", [4, 3], 0, 6]}, {"model/a": ["F32", [3, 4], 6, 12]}])


def test_shard_that_rank_0_does_not_see_costs_no_older_checkpoint(tmp_path: Path) -> None:
    save_shards(tmp_path, 1)
    with pytest.raises(
        OSError, match=r"r00001\.safetensors: No such file .*; shards need a folder that all ranks share"
    ):
        save_shards(tmp_path, 2, lost=1)
    assert [path.name for path in files.newest_first(tmp_path)] == ["step_1"]
    files.verify(tmp_path / "step_1", 1)


def test_shard_that_reads_back_differently_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, content = tmp_path / "r00000.safetensors", bytearray(range(250)) * 40
    fsync = os.fsync

    def damaged(change: Callable[[bytes], bytes]) -> Callable[[int], None]:
        def flush(descriptor: int) -> None:
            fsync(descriptor)
            path.write_bytes(change(path.read_bytes()))

        return flush

    changes: dict[str, Callable[[bytes], bytes]] = {
        "": lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
        "differently: 9999 of 10000 bytes": lambda data: data[:-1],
        "differently$": lambda data: data + b"!",
    }
    for message, change in changes.items():
        monkeypatch.setattr(os, "fsync", damaged(change))
        with pytest.raises(OSError, match=rf"r00000\.safetensors reads back .*{message}"):
            shards.write_shard(tmp_path, 0, memoryview(content))
        path.unlink()


@pytest.mark.parametrize("size", [0, 1, 4096, 5000, (8 << 20) + 4096, (8 << 20) + 1])
@pytest.mark.parametrize("offset", [0, 1])
def test_shard_of_any_size_and_alignment_is_written(tmp_path: Path, size: int, offset: int) -> None:
    memory = mmap.mmap(-1, size + offset + 1)
    memory[:] = random.Random(size).randbytes(len(memory))
    view = memoryview(memory)[offset:][:size]
    record = shards.write_shard(tmp_path, 3, view)
    path = tmp_path / "r00003.safetensors"
    assert record == {"bytes": size, "sha256": hashlib.sha256(view).hexdigest()}
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (bytes(view), 0o600)
    with pytest.raises(FileExistsError):
        shards.write_shard(tmp_path, 3, view)


def test_shard_is_written_where_the_cache_cannot_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_file = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return open_file(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    shards.write_shard(tmp_path, 0, memoryview(bytearray(b"content")))
    assert (tmp_path / "r00000.safetensors").read_bytes() == b"content"


def test_left_rank_that_writes_its_shard_during_the_next_attempts_save_changes_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder could not be removed; the process number of rank 0 is the same in both attempts, as in containers."""
    session, write_shard = Session.start(tmp_path, checkpoint="sharded"), shards.write_shard
    unfinished = files.temporary_path(tmp_path, 1, "4711")
    unfinished.mkdir()

    def write_both(folder: Path, rank: int, data: memoryview) -> dict[str, Any]:
        content = mmap.mmap(-1, len(data))
        write_shard(unfinished, rank, memoryview(content))
        return write_shard(folder, rank, data)

    monkeypatch.setattr(shards, "write_shard", write_both)
    session.train_and_save(1)
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_1"]
    monkeypatch.undo()
    resumed = Session.start(tmp_path, checkpoint="sharded")
    assert resumed.resume().step == 1
    assert resumed.weights() == session.weights()
