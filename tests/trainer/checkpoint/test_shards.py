"""Shards and their manifest: every damage is found, and one rank's checkpoint is restored whole. One process, real files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.grounds.checkpoints import SHARD_DAMAGES, Session
from tests.grounds.killed_writers import save_shards
from trainer.checkpoint import files, shards
from trainer.checkpoint.export import export
from trainer.checkpoint.files import DamagedError
from trainer.checkpoint.manager import TrainState
from trainer.checkpoint.sharded import read_weights
from trainer.errors import UserError
from trainer.safetensors import SafetensorsFile


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
    assert (tmp_path / "step_3" / "state.pt").exists()
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
        session.checkpoints.check_form(session.strategy)


def test_model_with_numbers_that_safetensors_has_not_is_refused_before_the_first_step(tmp_path: Path) -> None:
    session = Session.start(tmp_path, checkpoint="sharded")
    session.strategy.unwrapped_model.register_buffer("angle", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UserError, match=r"model/angle: shards do not hold torch\.complex64: use checkpoint=whole"):
        session.checkpoints.check_form(session.strategy)


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
    path, draw = tmp_path / "step_2", random.Random(15)  # noqa: S311 -- not for secrets
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
            assert is_damaged(file, content, lambda data: data[:position] + flipped + data[position + 1 :]), position  # noqa: B023
        for length in (*range(0, len(content), 50), len(content) - 1):
            assert is_damaged(file, content, lambda data: data[:length]), length  # noqa: B023
        assert is_damaged(file, content, lambda data: data + b"\0")
        earlier = (tmp_path / "step_1" / file.name).read_bytes()
        if file.name != "rng.json":  # which is the same in both
            assert is_damaged(file, content, lambda _: earlier)  # noqa: B023
    shutil.copyfile(path / "r00000.safetensors", tmp_path / "first")
    (path / "r00001.safetensors").replace(path / "r00000.safetensors")
    (tmp_path / "first").replace(path / "r00001.safetensors")
    with pytest.raises(DamagedError, match=r"r00000\.safetensors: its hash does not match"):
        files.verify(path, 2)


def test_manifest_that_lacks_elements_is_damaged() -> None:
    manifest = {"tensors": shards.merged([{"model/a": ["F32", [4, 3], 0, 6]}, {"model/a": ["F32", [4, 3], 6, 12]}])}
    shards.check_tensors(manifest)
    manifest["tensors"]["model/a"]["parts"].pop()
    with pytest.raises(DamagedError, match="model/a: 6 of 12 elements are in the shards"):
        shards.check_tensors(manifest)


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


def test_shard_that_reads_back_differently_is_not_saved(tmp_path: Path) -> None:
    contents = iter((b"written", b"WRITTEN"))
    with pytest.raises(OSError, match=r"r00000\.safetensors reads back differently"):
        shards.write_shard(tmp_path, 0, lambda file: file.write(next(contents)))
    contents = iter((b"longer", b"long"))
    with pytest.raises(OSError, match=r"r00001\.safetensors reads back differently: it is longer"):
        shards.write_shard(tmp_path, 1, lambda file: file.write(next(contents)))
