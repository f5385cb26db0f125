"""Sources mixed by data.weights: exact shares, epochs of each source, and a resume at the sample."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.grounds.chats import sums, write_records, write_tokenizer
from tests.grounds.trainings import TINY, train_alone
from trainer.config.load import load_config
from trainer.data.conversations import load_conversations
from trainer.data.mixture import BLOCK, MixedOrder, Mixture, quotas_of
from trainer.data.packing import PackedConversations
from trainer.data.tokenizer import Tokenizer
from trainer.errors import UserError
from trainer.tasks.gpt import Gpt
from trainer.tasks.load import load_task


@pytest.mark.parametrize(
    ("weights", "quotas"),
    [
        ((7.0, 3.0), [700, 300]),
        ((1.0, 1.0, 1.0), [334, 333, 333]),
        ((0.5, 0.2505, 0.2495), [500, 251, 249]),
        ((5.0,), [1000]),
    ],
)
def test_shares_are_rounded_to_a_sample_in_a_thousand(weights: tuple[float, ...], quotas: list[int]) -> None:
    assert quotas_of(weights) == quotas


def test_weight_without_a_sample_is_refused() -> None:
    with pytest.raises(UserError, match=r"data.weights: 1 of 10001 is less than a sample in 1000"):
        quotas_of((10_000.0, 1.0))


def test_every_block_has_the_shares_and_each_source_its_own_epochs() -> None:
    counts, quotas = [50, 7000], [300, 700]
    order = MixedOrder(counts, quotas, seed=1, name="train")
    drawn = [order.sample(position) for position in range(21 * BLOCK)]
    for begin in range(0, len(drawn), BLOCK):
        assert sum(index < counts[0] for index in drawn[begin : begin + BLOCK]) == quotas[0]
    # 126 epochs of the first source and two of the second, of which the first ends with a block
    visits = Counter(drawn)
    assert {visits[index] for index in range(50)} == {126}
    first = Counter(drawn[: 10 * BLOCK])
    assert {first[index] for index in range(50, 7050)} == {1}
    assert drawn != [
        MixedOrder(counts, quotas, seed=2, name="train").sample(position) for position in range(len(drawn))
    ]
    assert (
        len({tuple(index < 50 for index in drawn[begin : begin + BLOCK]) for begin in range(0, 5 * BLOCK, BLOCK)}) == 5
    )


def _words(folder: Path, *more: str) -> list[str]:
    (folder / "a.txt").write_bytes(bytes(range(100)) * 3)
    (folder / "b.txt").write_bytes(bytes(range(100, 200)) * 9)
    return [*TINY, "data.format=bytes", f"data.paths={folder / 'a.txt'},{folder / 'b.txt'}", *more]


def test_samples_are_of_both_files_and_described(tmp_path: Path) -> None:
    task = load_task(load_config(words=_words(tmp_path, "data.weights=1,3")))
    samples = task.build_data("train")
    assert isinstance(samples, Mixture)
    assert samples.description == "25 % of 300 bytes of text; 75 % of 900 bytes of text"
    assert len(samples) == 299 // 8 + 899 // 8
    assert (int(samples[0][0]), int(samples[36][0]), int(samples[37][0])) == (0, 288 % 100, 100)


def test_other_weights_are_other_data(tmp_path: Path) -> None:
    digests = []
    for weights in ("1,3", "2,6", "3,1"):
        samples = load_task(load_config(words=_words(tmp_path, f"data.weights={weights}"))).build_data("train")
        assert isinstance(samples, Mixture)
        digests.append(samples.digest())
    assert digests[0] == digests[1] != digests[2]


def test_resume_continues_the_mixture_bit_for_bit(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    words = _words(tmp_path, "data.weights=1,3", "steps=4", "save_steps=2")
    train_alone(load_config(words=[*words, "micro_batch=2", f"out={whole}"]))
    shutil.copytree(whole / "step_2", resumed / "step_2")
    train_alone(load_config(words=[*words, "micro_batch=2", f"out={resumed}"]))
    assert (resumed / "step_4" / "r00000.safetensors").read_bytes() == (
        whole / "step_4" / "r00000.safetensors"
    ).read_bytes()
    changed = [word for word in words if not word.startswith("data.weights")]
    with pytest.raises(UserError, match="was trained on other data"):
        train_alone(load_config(words=[*changed, "data.weights=1,1", "micro_batch=2", f"out={resumed}", "steps=6"]))


def test_chats_are_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer = Tokenizer(write_tokenizer(tmp_path / "tokenizer"))
    sources = [
        PackedConversations(
            load_conversations([write_records(tmp_path / f"{count}.jsonl", sums(count))], tokenizer, "data.paths"),
            96,
            "k",
        )
        for count in (5, 9)
    ]
    mixture = Mixture(sources, [500, 500])
    assert all(mixture[mixture.order(0, "train").sample(position)].shape == (3, 96) for position in range(20))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            "data.paths=a,b data.weights=1",
            "data.weights has 1 numbers and data.paths 2 entries: give each entry its share",
        ),
        ("data.weights=1", "data.weights has 1 numbers and data.paths 0 entries"),
        ("data.paths=a data.weights=0", "data.weights=0: allowed: numbers > 0 separated by commas, such as 7,3"),
        ("data.paths=a data.weights=much", "data.weights=much: allowed: numbers > 0"),
    ],
)
def test_wrong_weights_are_refused(words: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        load_config(words=words.split())


def test_task_that_does_not_mix_refuses_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpt, "build_data", lambda *_: [[1]])
    with pytest.raises(UserError, match=r"data.weights: task=trainer.tasks.gpt:Gpt does not mix its data by them"):
        train_alone(load_config(words=_words(tmp_path, "data.weights=1,3", f"out={tmp_path / 'out'}")))
