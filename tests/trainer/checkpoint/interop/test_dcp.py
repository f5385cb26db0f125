"""Folders of torch.distributed.checkpoint: read as init=PATH without running what is in them, and written by export --dcp."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from tests.grounds.trainings import TINY, train_alone
from trainer.checkpoint.__main__ import main
from trainer.checkpoint.interop.dcp import METADATA_FILE, weights_in
from trainer.config.load import load_config
from trainer.errors import UserError

WEIGHTS = {
    "head.weight": torch.arange(12.0).view(3, 4),
    "head.bias": torch.ones(4, dtype=torch.bfloat16),
    "scale": torch.tensor(2.5),
}
DATA = "__0_0.distcp"
Metadata = Any  # of torch, read by pickle in these tests


def save(folder: Path, state: dict[str, Any]) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a process alone
        state_dict_saver.save(state, checkpoint_id=str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "dcp", WEIGHTS)


def read(folder: Path) -> dict[str, torch.Tensor]:
    return {name: weight.read() for name, weight in weights_in(folder, WEIGHTS).items()}


def edit(folder: Path, change: Callable[[Metadata], object]) -> None:
    path = folder / METADATA_FILE
    found = pickle.loads(path.read_bytes())
    change(found)
    path.write_bytes(pickle.dumps(found))


def assert_equal(found: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(WEIGHTS)
    for name, tensor in WEIGHTS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("protocol", [4, 5])
def test_weights_are_those_that_torch_has_saved(folder: Path, protocol: int) -> None:
    found = pickle.loads((folder / METADATA_FILE).read_bytes())
    (folder / METADATA_FILE).write_bytes(pickle.dumps(found, protocol=protocol))
    assert_equal(read(folder))


def test_a_model_within_a_state_of_training_is_found(tmp_path: Path) -> None:
    optimizer = {"state": {"head.weight": {"exp_avg": torch.ones(3, 4)}}, "step": 7}
    assert_equal(read(save(tmp_path / "nested", {"model": WEIGHTS, "optimizer": optimizer, "epoch": 3})))
    assert_equal(read(save(tmp_path / "flat", {**WEIGHTS, "optimizer": optimizer, "epoch": 3})))


def test_parts_of_several_files_make_up_a_tensor(folder: Path) -> None:
    """As two ranks write it: each its rows, at offsets of the tensor."""
    rows = WEIGHTS["head.weight"]
    second = save(folder.parent / "second", {"head.weight": rows[2:].clone()})
    (second / DATA).rename(folder / "__1_0.distcp")
    first = save(folder.parent / "first", {"head.weight": rows[:2].clone()})
    (first / DATA).rename(folder / "__2_0.distcp")

    def split(found: Metadata) -> None:
        tensor = found.state_dict_metadata["head.weight"]
        index = next(index for index in found.storage_data if index.fqn == "head.weight")
        del found.storage_data[index]
        tensor.chunks = []
        for name, (start, count), source in (("__2_0.distcp", (0, 2), first), ("__1_0.distcp", (2, 1), second)):
            sizes = torch.Size([count, 4])
            tensor.chunks.append(dcp_metadata.ChunkStorageMetadata(torch.Size([start, 0]), sizes))
            written = pickle.loads((source / METADATA_FILE).read_bytes())
            info = next(iter(written.storage_data.values()))
            info.relative_path = name
            found.storage_data[dcp_metadata.MetadataIndex("head.weight", torch.Size([start, 0]))] = info

    edit(folder, split)
    assert_equal(read(folder))
    edit(folder, lambda found: found.state_dict_metadata["head.weight"].chunks.pop())
    with pytest.raises(UserError, match=r"head.weight: not every one of 12 elements is in one part"):
        read(folder)


class _Hostile:
    """Runs a program where it is read by pickle."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def test_a_hostile_pickle_runs_nothing(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    def poison(found: Metadata) -> None:
        found.planner_data = _Hostile(marker)

    (folder / "copy").write_bytes((folder / METADATA_FILE).read_bytes())
    edit(folder, poison)
    with pytest.raises(UserError, match=r"\.metadata: names posix\.mkdir, which is not part of torch's format"):
        read(folder)
    assert not marker.exists()
    pickle.loads((folder / METADATA_FILE).read_bytes())  # it runs where pickle is trusted
    assert marker.exists()


@pytest.mark.parametrize("call", ["builtins\neval\n(V{code}\ntR.", "os\nsystem\n(Vmkdir {marker}\ntR."])
def test_calls_in_a_pickle_are_refused(folder: Path, tmp_path: Path, call: str) -> None:
    marker = tmp_path / "ran"
    text = call.format(code=f"__import__('os').mkdir({str(marker)!r})", marker=marker)
    (folder / METADATA_FILE).write_bytes(f"c{text}".encode())
    with pytest.raises(UserError, match=r"^\.metadata: names (builtins\.eval|os\.system), which"):
        read(folder)
    assert not marker.exists()


def test_getattr_in_a_pickle_does_nothing(folder: Path) -> None:
    (folder / METADATA_FILE).write_bytes(b"cbuiltins\ngetattr\n(ccollections\nOrderedDict\nV__subclasses__\ntR)R.")
    with pytest.raises(UserError, match=r"^\.metadata: cannot be read, or is cut short: .*not callable"):
        read(folder)


def _set(name: str, **values: object) -> Callable[[Path], None]:
    """Change where a tensor is stored."""

    def change(found: Metadata) -> None:
        for index, info in found.storage_data.items():
            if index.fqn == name:
                vars(info).update(values)

    return lambda folder: edit(folder, change)


def _reshape(folder: Path) -> None:
    edit(folder, lambda found: setattr(found.state_dict_metadata["head.weight"], "size", torch.Size([2, 2])))


def _swap(folder: Path) -> None:
    def change(found: Metadata) -> None:
        indexes = {index.fqn: index for index in found.storage_data}
        stored, a, b = found.storage_data, indexes["head.weight"], indexes["head.bias"]
        stored[a], stored[b] = stored[b], stored[a]

    edit(folder, change)


def _damage(folder: Path) -> None:
    data = bytearray((folder / DATA).read_bytes())
    data[4:400] = bytes(396)
    (folder / DATA).write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / DATA).unlink(), rf"{DATA}: cannot be read: No such file or directory; .* is in it"),
        (lambda path: os.truncate(path / DATA, 2000), rf"{DATA}: cut short: .* ends at byte \d+"),
        (_damage, rf"{DATA}: .* cannot be read: its bytes are damaged"),
        (_swap, rf"{DATA}: bytes \d+ to \d+ are not head\.\w+ as \.metadata says: torch\.\w+ of shape"),
        (_reshape, r"a part of head\.weight is not within its shape \[2, 2\]"),
        (_set("head.bias", relative_path="../other"), r"head\.bias is in '\.\./other', which is no file of this folder"),
        (_set("head.bias", offset=-1), r"\.metadata: is not the metadata of .*: \(-1, \d+\) are no sizes"),
        (_set("head.bias", transform_descriptors=["zstd"]), r"head\.bias is stored in another form: \['zstd'\]"),
        (lambda path: edit(path, lambda found: found.storage_data.clear()), r"has a part at \[.*\] that is in no file"),
        (lambda path: os.truncate(path / METADATA_FILE, 300), r"\.metadata: cannot be read, or is cut short"),
        (lambda path: (path / METADATA_FILE).write_bytes(pickle.dumps({"a": 1})), r"\.metadata: is not the metadata of"),
    ],
)  # fmt: skip
def test_damaged_folders_are_one_error(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises(UserError, match=message):
        read(folder)


@pytest.mark.processes
def test_a_training_starts_from_an_export_that_torch_reads_too(tmp_path: Path) -> None:
    out, exported = tmp_path / "out", tmp_path / "exported"
    train_alone(load_config(words=[*TINY, f"out={out}", "steps=1"]))
    assert main(["export", str(out), str(exported), "--dcp"]) == 0
    assert main(["export", str(out), str(exported), "--dcp"]) == 2
    assert main(["export", str(out), str(tmp_path / "both"), "--dcp", "--hf"]) == 2
    assert main(["export", str(out), str(tmp_path / "weights.safetensors")]) == 0
    expected = load_file(tmp_path / "weights.safetensors")
    state = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a process alone
        state_dict_loader.load(state, checkpoint_id=str(exported))
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    words = [*TINY, f"out={tmp_path / 'second'}", f"init={exported}", "lr=1e-12", "seed=5", "steps=1"]
    train_alone(load_config(words=words))
    assert main(["export", str(tmp_path / "second"), str(tmp_path / "again.safetensors")]) == 0
    after = load_file(tmp_path / "again.safetensors")
    assert all(torch.allclose(after[name], tensor, rtol=0, atol=1e-9) for name, tensor in expected.items())
    assert not list(tmp_path.glob("*.tmp-*"))
