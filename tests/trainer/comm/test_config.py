"""Settings of a benchmark: sizes, defaults, and the message for each mistake."""

from __future__ import annotations

import pytest

from trainer.comm.config import load_config, parse_sizes
from trainer.errors import UserError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4096", [4096]),
        ("4K,1M", [4 * KIB, MIB]),
        ("1K:8K", [KIB, 2 * KIB, 4 * KIB, 8 * KIB]),
        ("1K:1M:4", [KIB << 2 * step for step in range(6)]),
        ("1M:3M", [MIB, 2 * MIB]),
        ("1G:1G", [GIB]),
    ],
)
def test_sizes(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text", ["", "1T", "0", "1K:", "4K:1K", "1K:1M:1", "1K:1M:x", "1K:1M:2:3", "-1", "1.5K", "1k", "100000G", "1,,2"]
)
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(UserError, match="allowed: bytes as 4096"):
        parse_sizes(text)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("op=allreduce", "any of all-reduce, all-gather"),
        ("op=all-reduce,all-reduce", "each once"),
        ("op=", "any of all-reduce"),
        ("dtype=int8", "fp32, bf16, fp16"),
        ("groups=everyone", "all, node, pairs, node-pairs"),
        ("repetitions=0", "a whole number >= 1"),
        ("timeout=0", "a number > 0"),
        ("size=1K", "did you mean 'sizes'"),
        ("pairs", "expected key=value"),
    ],
)
def test_wrong_settings_are_refused(word: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        load_config([word])
    assert message in str(refusal.value)


def test_pairs_send_and_receive_unless_the_operation_is_set() -> None:
    config = load_config(["groups=node,pairs"])
    assert [config.operations(kind) for kind in config.groups] == [("all-reduce",), ("send-recv",)]
    assert load_config(["op=broadcast", "groups=pairs"]).operations("pairs") == ("broadcast",)
