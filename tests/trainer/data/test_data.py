"""The trainer's data: files read on demand, a computed shuffle, batches by their position."""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trainer.config.load import load_config
from trainer.data.batches import Batches
from trainer.data.files import DIGEST_PART_TOKENS, OPEN_AT_ONCE, find_tokens
from trainer.data.order import Order
from trainer.data.split import open_split
from trainer.data.windows import Windows
from trainer.errors import UserError
from trainer.runtime.accelerators import CopyStream
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.tasks.gpt import Gpt


def _text(*paths: Path | str) -> bytes:
    tokens = find_tokens([str(path) for path in paths], "auto")
    return bytes(tokens.read(0, len(tokens)).tolist())


def _ids(path: Path, form: str = "auto") -> list[int]:
    tokens = find_tokens([str(path)], form)
    found: list[int] = tokens.read(0, len(tokens)).tolist()
    return found


def _windows(*paths: Path, context: int = 4, vocabulary: int = 256, form: str = "auto") -> Windows:
    return Windows([str(path) for path in paths], form, key="data.paths", context=context, vocabulary=vocabulary)


@pytest.mark.parametrize("count", [1, 2, 3, 100, 128, 1000])
def test_each_epoch_has_every_sample_once_in_a_different_order(count: int) -> None:
    order = Order(count, seed=7)
    epochs = [[order.sample(epoch * count + index) for index in range(count)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    if count > 3:
        assert epochs[0] != epochs[1] != epochs[2]
        assert epochs[0] != list(range(count))
        assert epochs[0] != [Order(count, seed=8).sample(index) for index in range(count)]
        assert epochs[0] != [Order(count, seed=7, name="validation").sample(index) for index in range(count)]


def test_order_is_the_same_on_every_machine_and_python() -> None:
    """A different order would change the loss of every resumed or compared run."""
    assert [Order(1000, seed=0).sample(position) for position in (0, 1, 999, 1000)] == [954, 157, 261, 420]
    assert [Order(10**15, seed=0).sample(position) for position in (0, 10**15 + 1)] == [
        986065535276968,
        702101137105608,
    ]


def test_order_is_shuffled_evenly() -> None:
    """Neighbours are as far apart as in a list that torch shuffled."""
    count = 10_000
    order = Order(count, seed=3)
    samples = [order.sample(index) for index in range(count)]
    reference = torch.randperm(count, generator=torch.Generator().manual_seed(3)).tolist()
    gaps = [sum(abs(a - b) for a, b in pairwise(values)) / count for values in (samples, reference)]
    assert gaps[0] == pytest.approx(gaps[1], rel=0.05)
    assert sum(samples[: count // 2]) == pytest.approx(sum(reference[: count // 2]), rel=0.05)


def test_folder_is_read_in_name_order_at_any_path(tmp_path: Path) -> None:
    texts, digests = [], set()
    for name in ("z", "a/deeper"):
        folder = tmp_path / name
        (folder / "sub").mkdir(parents=True)
        (folder / "b.txt").write_text("second")
        (folder / "a.txt").write_text("first ")
        (folder / "empty.txt").write_text("")
        (folder / "sub" / "c.txt").write_text(" third")
        (folder / ".hidden").write_text("never")
        texts.append(_text(folder))
        digests.add(find_tokens([str(folder)], "auto").digest())
    assert texts == [b"first second third"] * 2
    assert len(digests) == 1
    (tmp_path / "z" / "a.txt").write_text("First ")
    assert find_tokens([str(tmp_path / "z")], "auto").digest() not in digests


def test_files_and_globs_come_in_the_order_given(tmp_path: Path) -> None:
    for name in ("1.log", "2.log", "x.txt"):
        (tmp_path / name).write_text(name)
    assert _text(tmp_path / "x.txt", tmp_path / "*.log") == b"x.txt1.log2.log"


def test_without_paths_the_standard_library_is_the_text() -> None:
    assert len(find_tokens([], "auto")) > 1_000_000
    assert find_tokens([], "auto").digest() == find_tokens([], "auto").digest()


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "int32", "int64"])
def test_numbers_of_an_npy_file_are_those_that_numpy_wrote(tmp_path: Path, kind: str) -> None:
    highest = min(int(np.iinfo(kind).max), 2**40)
    np.save(tmp_path / "ids.npy", np.array([0, 1, highest], dtype=kind))
    assert _ids(tmp_path / "ids.npy") == [0, 1, highest]


@pytest.mark.parametrize(
    ("name", "form", "kind"),
    [("a.bin", "auto", "H"), ("a.bin", "uint32", "I"), ("a.tok", "uint16", "H"), ("a.bin", "bytes", "B")],
)
def test_numbers_without_a_header_are_read_by_data_format(tmp_path: Path, name: str, form: str, kind: str) -> None:
    highest = 256 ** struct.calcsize(kind) - 1
    (tmp_path / name).write_bytes(struct.pack(f"<3{kind}", 5, 0, highest))
    assert _ids(tmp_path / name, form) == [5, 0, highest]


def test_samples_cross_files_and_an_incomplete_last_one_is_dropped(tmp_path: Path) -> None:
    for number in range(2 * OPEN_AT_ONCE):  # more than are kept open
        (tmp_path / f"{number:03}").write_text(f"{number:03}")
    windows = _windows(tmp_path, context=5)
    text = b"".join(b"%03d" % number for number in range(2 * OPEN_AT_ONCE))
    assert len(windows) == (len(text) - 1) // 5
    for index in (0, 1, len(windows) - 1):
        assert bytes(windows[index].tolist()) == text[5 * index : 5 * index + 6]


def test_file_larger_than_memory_is_read_without_loading_it(tmp_path: Path) -> None:
    """A sparse file of 1 TiB whose last sample is read."""
    path, size = tmp_path / "huge.bin", 1 << 40
    with path.open("wb") as file:
        file.truncate(size - 10)
        file.seek(0, os.SEEK_END)
        file.write(struct.pack("<5H", 1, 2, 3, 4, 5))
    windows = _windows(path, context=4, vocabulary=6)
    assert len(windows) == (size // 2 - 1) // 4
    tokens = find_tokens([str(path)], "auto")
    assert tokens.read(len(tokens) - 5, 5).tolist() == [1, 2, 3, 4, 5]
    assert len(tokens.digest()) == 64
    order = Order(len(windows), seed=0)
    assert int(windows[order.sample(10**12)].sum()) == 0


def test_digest_covers_every_token_of_a_small_text_and_both_ends_of_a_large_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for size, changed in ((5000, 2500), (50 * DIGEST_PART_TOKENS * 256, 0), (50 * DIGEST_PART_TOKENS * 256, -1)):
        data = bytearray(b"t" * size)
        path.write_bytes(data)
        before = find_tokens([str(path)], "auto").digest()
        data[changed] = 1
        path.write_bytes(data)
        assert find_tokens([str(path)], "auto").digest() != before


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.txt", "data.paths: {}: no such file or folder"),
        ("*.nothing", "data.paths: {}: no such file or folder"),
        ("folder", "data.paths: {}: the folder holds no file"),
        ("short.txt", "data.paths: {}: 3 bytes of text, model.context=32 needs at least 33"),
        ("empty.txt", "data.paths: {}: 0 bytes of text, model.context=32 needs at least 33"),
        ("short.bin", "data.paths: {}: 2 tokens, model.context=32 needs at least 33"),
        ("odd.bin", "data.paths: {}: 3 bytes of tokens, no multiple of the 2 of one: see data.format"),
        ("text.npy", "data.paths: {}: no .npy file"),
        ("cut.npy", "data.paths: {}: no .npy file: its header cannot be read"),
        ("magic.npy", "data.paths: {}: no .npy file"),
        ("half.npy", "data.paths: {}: 800 bytes of tokens, its header says 1600: cut short, or still being written?"),
        ("code.npy", "data.paths: {}: no .npy file: its header cannot be read"),
        ("table.npy", "data.paths: {}: an array of shape (40, 2): tokens are one row of numbers"),
        ("float.npy", "data.paths: {}: numbers of kind '<f8': uint8, uint16, uint32, int32 and int64 can be read"),
        ("big-endian.npy", "data.paths: {}: numbers of kind '>u2'"),
    ],
)
def test_unusable_data_is_named(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "short.txt").write_text("abc")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.bin").write_bytes(bytes(4))
    (tmp_path / "odd.bin").write_bytes(bytes(3))
    (tmp_path / "text.npy").write_text("abc" * 99)
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr':")
    (tmp_path / "magic.npy").write_bytes(b"\x93NUMPY")
    np.save(tmp_path / "half.npy", np.zeros(200, dtype="i8"))
    os.truncate(tmp_path / "half.npy", (tmp_path / "half.npy").stat().st_size - 800)
    (tmp_path / "code.npy").write_bytes(b"\x93NUMPY\x01\x00\x20\x00__import__('os').abort()         ")
    np.save(tmp_path / "table.npy", np.zeros((40, 2), dtype="u2"))
    np.save(tmp_path / "float.npy", np.zeros(40))
    np.save(tmp_path / "big-endian.npy", np.zeros(40, dtype=">u2"))
    with pytest.raises(UserError) as caught:
        _windows(tmp_path / name, context=32)
    assert str(caught.value).startswith(problem.format(tmp_path / name))


def test_text_and_tokens_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 99)
    (tmp_path / "b.bin").write_bytes(bytes(99 * 2))
    with pytest.raises(UserError, match=r"a\.txt is read as bytes and .*b\.bin as tokens"):
        _windows(tmp_path)
    assert len(_windows(tmp_path, form="bytes").tokens) == 3 * 99


def test_token_beyond_the_vocabulary_is_named_with_its_position(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(7, dtype="u2"))
    np.save(tmp_path / "b.npy", np.array([1, 2, 50_256, 3, 4, 5], dtype="u2"))
    windows = _windows(tmp_path, vocabulary=50_000)
    assert windows[0].tolist() == [0] * 5
    with pytest.raises(UserError) as caught:
        windows[2]
    message = f"data.paths: {tmp_path / 'b.npy'}, token 2: 50256 is no token of model.vocabulary=50000: it has to be"
    assert str(caught.value).startswith(message)
    assert len(_windows(tmp_path, vocabulary=50_257)[2]) == 5


def test_file_that_shrinks_during_training_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"t" * 100)
    windows = _windows(path)
    os.truncate(path, 50)
    with pytest.raises(UserError, match=r"a\.txt: 50 bytes, \d+ expected: was it cut short during training"):
        windows[20]


def _group(rank: int = 0, world_size: int = 1) -> Group:
    group = initialise("cpu", 60.0, {})
    return replace(group, rank=replace(group.rank, global_rank=rank, world_size=world_size))


class _Numbers(Sequence[int]):
    """Samples of an index, random numbers drawn for it, and the pid of the process that made it."""

    def __init__(self, count: int) -> None:
        self.length = count

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:  # a slice, too
        drawn = (random.random(), float(torch.rand(())), float(np.random.random()))  # users' tasks call these
        return index, drawn, os.getpid()


class _NumbersTask(Gpt):
    def collate(self, samples: Sequence[Any]) -> list[Any]:
        return list(samples)


def _first(count: int, position: int, *, rank: int, world_size: int, words: str = "") -> list[list[Any]]:
    config = load_config(words=["micro_batch=2", *words.split()])
    batches = Batches(_Numbers(10), _NumbersTask(config), config, _group(rank, world_size), split="train")
    batches.begin(position)
    found = [batches.next() for _ in range(count)]
    batches.close()
    return found


def _indices(batches: Sequence[Sequence[Any]]) -> list[list[int]]:
    return [[sample[0] for sample in batch] for batch in batches]


def test_ranks_share_every_epoch_and_resume_at_any_position_with_any_world_size() -> None:
    """No sample is lost or repeated: two ranks take 8 of the 10 samples in two steps, then three ranks continue."""
    two = [_indices(_first(2, 0, rank=rank, world_size=2)) for rank in (0, 1)]
    three = [_indices(_first(2, 8, rank=rank, world_size=3)) for rank in (0, 1, 2)]
    order = Order(10, seed=0)
    taken = [index for step in (0, 1) for rank in two for index in rank[step]]
    taken += [index for step in (0, 1) for rank in three for index in rank[step]]
    assert taken == [order.sample(position) for position in range(20)]
    assert sorted(taken[:10]) == sorted(taken[10:]) == list(range(10))


@pytest.mark.processes
def test_random_numbers_of_samples_depend_on_seed_and_position_only() -> None:
    torch.manual_seed(1)
    before = (random.getstate(), torch.get_rng_state())
    here = _first(3, 4, rank=0, world_size=1)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    later = _first(2, 6, rank=0, world_size=1)
    there = _first(3, 4, rank=0, world_size=1, words="data.workers=2 data.prefetch=3")
    drawn = [[[sample[:2] for sample in batch] for batch in batches] for batches in (here, there, later)]
    assert drawn[0] == drawn[1]
    assert drawn[0][1:] == drawn[2]
    assert len({str(sample) for batch in drawn[0] for sample in batch}) == 6
    assert {sample[2] for batch in here for sample in batch} == {os.getpid()}
    assert os.getpid() not in {sample[2] for batch in there for sample in batch}
    assert len({sample[2] for batch in there for sample in batch}) == 2


def _refuse(*_: object) -> None:
    raise UserError("wrong sample")


def test_batch_that_is_copied_ahead_is_the_next_one_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a double for the streams of torch.cuda."""
    used: list[str] = []
    current = SimpleNamespace(wait_stream=used.append)

    @contextlib.contextmanager
    def block(stream: str) -> Iterator[None]:
        used.append(f"copies on {stream}")
        yield

    cuda = SimpleNamespace(Stream=lambda: "side", stream=block, current_stream=lambda: current)
    group = _group()
    group = replace(group, accelerator=group.accelerator.changed(copy_stream=lambda: CopyStream(cuda)))
    config = load_config(words=["micro_batch=2"])
    batches = Batches(_Numbers(10), _NumbersTask(config), config, group, split="train")
    batches.begin(0)
    found = []
    for prepared in (False, True, True, False):
        if prepared:
            batches.prepare()
            batches.prepare()
        found.append(batches.next())
    assert used == ["copies on side", "side"] * 2
    assert _indices(found) == _indices(_first(4, 0, rank=0, world_size=1))
    monkeypatch.setattr(_Numbers, "__getitem__", _refuse)
    batches.prepare()
    with pytest.raises(UserError, match="wrong sample"):
        batches.next()


def test_unpicklable_task_is_refused_if_workers_are_spawned() -> None:
    config = load_config(words=["micro_batch=2", "data.workers=1"])
    task = _NumbersTask(config)
    task.collate = lambda samples: [*samples]  # type: ignore[method-assign]
    forking, group = _group(), _group()
    spawning = replace(group, accelerator=group.accelerator.changed(worker_start="spawn"))
    Batches(_Numbers(3), task, config, forking, split="train")
    with pytest.raises(UserError, match=r"^data\.workers: .*lambda.*set data\.workers=0$"):
        Batches(_Numbers(3), task, config, spawning, split="train")
    Batches(_Numbers(3), task, load_config(words=["micro_batch=2"]), spawning, split="train")


@pytest.mark.processes
def test_error_in_a_data_worker_is_the_same_message_as_without_workers(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full(100, 300, dtype="u2"))
    for workers in (0, 1):
        config = load_config(words=[f"data.paths={tmp_path}", "model.context=4", f"data.workers={workers}"])
        task = Gpt(config)
        samples, _, about = open_split(task, "train", _group())
        assert about.startswith("100 tokens sha256 ")
        batches = Batches(samples, task, config, _group(), split="train")
        batches.begin(0)
        with pytest.raises(UserError, match=r"^data\.paths: .*a\.npy, token \d+: 300 is no token of .*data\.format$"):
            batches.next()
        batches.close()


def test_tokens_of_llmc_and_megatron_are_read_by_their_headers(tmp_path: Path) -> None:
    numbers = np.arange(300, dtype="<u2")
    gpt2, llama, pair, raw = (tmp_path / f"{name}.bin" for name in ("gpt2", "llama", "pair", "raw"))
    for path, magic, version, kind in ((gpt2, 20240520, 1, "<u2"), (llama, 20240801, 7, "<u4")):
        header = np.zeros(256, dtype="<i4")
        header[:3] = magic, version, 300
        path.write_bytes(header.tobytes() + numbers.astype(kind).tobytes())
    pair.write_bytes(numbers.astype("<i4").tobytes())
    lengths, offsets = np.array([100, 200], dtype="<i4"), np.array([0, 400], dtype="<i8")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 2, 3)
    pair.with_suffix(".idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + np.arange(3).tobytes())
    raw.write_bytes(numbers.tobytes())
    for path in (gpt2, llama, pair, raw):
        tokens = find_tokens([str(path.with_suffix(".*"))], "auto")
        assert tokens.read(0, len(tokens)).tolist() == numbers.tolist()
        if path == pair:  # its int32 could be read as uint32 alone before headers were read
            assert find_tokens([str(pair)], "uint32").read(0, 300).tolist() == numbers.tolist()
        path.write_bytes(path.read_bytes()[:-4])
    for path in (gpt2, llama, pair):
        with pytest.raises(
            UserError, match=r"bytes of tokens, its header says \d+: cut short, or still being written\?$"
        ):
            find_tokens([str(path)], "auto")
    pair.with_suffix(".idx").write_bytes(b"")
    with pytest.raises(UserError, match=r"pair\.idx is cut short$"):
        find_tokens([str(pair)], "auto")
    with pytest.raises(UserError, match=r"its header says uint16, data\.format=uint32: leave data\.format out$"):
        find_tokens([str(gpt2)], "uint32")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.gz", gzip.compress(b"text" * 99, mtime=0), "no text but gzip"),
        ("a.txt", b"text\0", "no text but binary data"),
        ("a.jsonl", b'{"text": "some"}', r"records \(\.jsonl\), whose braces and keys would be trained on"),
    ],
    ids=["gzip", "binary", "jsonl"],
)
def test_file_that_is_no_text_is_refused_unless_bytes_are_wanted(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(
        UserError, match=rf"^data\.paths: .*{re.escape(name)}: {message}.*\*\.txt, or set data\.format=bytes"
    ):
        find_tokens([str(tmp_path)], "auto")
    assert len(find_tokens([str(tmp_path)], "bytes")) == len(data)


@pytest.mark.parametrize(("samples", "expected"), [(1, 1), (3, 1), (9, 3), (100, 4)])
def test_evaluation_takes_each_sample_once_in_equally_many_batches_on_every_rank(samples: int, expected: int) -> None:
    config = load_config(words=["micro_batch=2"])
    found = []
    for rank in (0, 1):
        batches = Batches(_Numbers(samples), _NumbersTask(config), config, _group(rank, 2), split="validation")
        pairs = list(batches.first_batches(4))
        assert len(pairs) == expected
        assert all(len(batch) == max(1, count) for batch, count in pairs)
        found.append(_indices([batch[:count] for batch, count in pairs]))
    order = Order(samples, 0, "validation")
    taken = [index for batch in zip(*found, strict=True) for rank in batch for index in rank]
    assert taken == list(islice((order.sample(position) for position in range(samples)), 4 * expected))


@pytest.mark.parametrize(("count", "count_of_rank_1"), [(5, 3), (5, 0), (0, 5)])
def test_ranks_that_would_evaluate_other_numbers_of_batches_are_refused(
    count: int, count_of_rank_1: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """They compute together, so rank 0 would wait for ever. Training takes as many batches as there are steps."""
    task: Any = _NumbersTask(load_config())
    task.build_data = lambda _: _Numbers(count) if count else None
    group: Any = SimpleNamespace(
        rank=SimpleNamespace(is_main=True),
        raise_if_any=lambda problem: pytest.fail(problem) if problem else None,
        gather=lambda mine: [mine, [count_of_rank_1, "x"]],
    )
    with pytest.raises(
        UserError, match=rf"^the numbers of validation samples differ: {count} on rank 0; {count_of_rank_1} on rank 1: "
    ):
        open_split(task, "validation", group)
    if count:
        open_split(task, "train", group)
        assert "WARNING: the train data are not the same on all ranks (" in capsys.readouterr().out


class _Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class _Endless:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(("samples", "absent"), [(_Stream(), r" \(no __len__\)"), (_Endless(), r" \(no __len__\)")])
def test_data_set_without_an_index_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, samples: object, absent: str
) -> None:
    task = _NumbersTask(load_config())
    monkeypatch.setattr(task, "build_data", lambda _: samples)
    name = type(samples).__name__
    with pytest.raises(UserError, match=rf"build_data\('train'\) gave {name}, which is only iterated over{absent}: "):
        open_split(task, "train", _group())


def test_data_set_without_a_digest_is_not_given_one_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its class and number would be known."""
    task = _NumbersTask(load_config())
    monkeypatch.setattr(task, "build_data", lambda _: _Numbers(3))
    about = open_split(task, "train", _group())[2]
    assert about.startswith("3 samples without a digest(), so known by class and number alone: ")


def test_validation_has_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text("b" * 99)
    task = Gpt(load_config(words=[f"data.validation={tmp_path / 'valid.txt'}", "model.context=4"]))
    samples, _, about = open_split(task, "validation", _group())
    assert samples[0].tolist() == [ord("b")] * 5
    assert about.startswith("99 bytes of text sha256 ")
    assert open_split(Gpt(load_config()), "validation", _group()) == (None, "", "")
    with pytest.raises(UserError, match=r"^data\.validation: .*nowhere: no such file or folder$"):
        open_split(Gpt(load_config(words=["data.validation=nowhere"])), "validation", _group())
