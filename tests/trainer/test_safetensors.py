"""Files in the safetensors format, against the package's own reader and writer."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from trainer.safetensors import DTYPES, FormatError, SafetensorsFile, read_header, write

TENSORS = {
    **{str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES},
    "turned": torch.arange(6.0).reshape(2, 3).t(),
    "number": torch.tensor(3.5),
    "none": torch.zeros(0, 4),
}


def contents(path: Path) -> dict[str, torch.Tensor]:
    file = SafetensorsFile(path)
    return {name: file.tensor(name) for name in file.header.entries}


def assert_same(found: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


def test_every_dtype_shape_and_layout_is_written_and_read_as_by_the_package(tmp_path: Path) -> None:
    file = io.BytesIO()
    write(file, TENSORS, {"a": "b"})
    assert_same(load(file.getvalue()))
    (tmp_path / "ours").write_bytes(file.getvalue())
    assert_same(contents(tmp_path / "ours"))
    assert read_header(tmp_path / "ours").metadata == {"a": "b"}
    (tmp_path / "theirs").write_bytes(save({name: tensor.contiguous() for name, tensor in TENSORS.items()}))
    assert_same(contents(tmp_path / "theirs"))


def test_a_change_of_a_tensor_does_not_reach_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(save({"weight": torch.ones(3)}))
    contents(tmp_path / "file")["weight"].zero_()
    assert contents(tmp_path / "file")["weight"].tolist() == [1, 1, 1]


def test_a_file_cut_short_or_longer_is_refused_at_every_byte(tmp_path: Path) -> None:
    whole = save({"a": torch.ones(3), "b": torch.zeros(2, dtype=torch.bfloat16)})
    path = tmp_path / "file"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            read_header(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(FormatError, match=r"bytes, its header says \d+: cut short, or still being written\?"):
        read_header(path)


def test_a_flipped_bit_in_the_header_is_refused_or_names_other_tensors(tmp_path: Path) -> None:
    whole = save({"a": torch.ones(3), "b": torch.zeros(2, dtype=torch.bfloat16)})
    path, header_bytes = tmp_path / "file", 8 + int.from_bytes(whole[:8], "little")
    for bit in range(8 * header_bytes):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = contents(path)
        except FormatError:
            continue
        assert sum(tensor.numel() * tensor.element_size() for tensor in found.values()) == 16


@pytest.mark.parametrize(
    "value",
    [
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [3], "data_offsets": [4, 16]},
        {"dtype": "F32", "shape": [-3], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [3.0], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [3], "data_offsets": [0]},
        {"dtype": "F32", "shape": 3, "data_offsets": [0, 12]},
        {"shape": [3], "data_offsets": [0, 12]},
        [],
        None,
    ],
)
def test_a_tensor_of_wrong_size_or_form_is_refused(tmp_path: Path, value: object) -> None:
    text = json.dumps({"a": value}).encode()
    (tmp_path / "file").write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    with pytest.raises(FormatError):
        read_header(tmp_path / "file")


def test_only_the_use_of_an_unknown_dtype_is_an_error(tmp_path: Path) -> None:
    entries = {
        "scale": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [0, 3]},
        "a": {"dtype": "F32", "shape": [3], "data_offsets": [3, 15]},
    }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    (tmp_path / "file").write_bytes(len(text).to_bytes(8, "little") + text + bytes(15))
    file = SafetensorsFile(tmp_path / "file")
    assert file.tensor("a").tolist() == [0, 0, 0]  # at an odd address
    with pytest.raises(FormatError, match=r"scale is of type F8_E4M3; F64, F32, .* can be read"):
        file.tensor("scale")
