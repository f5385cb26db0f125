"""The settings of a benchmark, from `key=value` words. No torch here."""

from __future__ import annotations

import dataclasses
import difflib
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Sequence

from trainer.config.schema import KeySchema
from trainer.errors import UserError
from trainer.values import FieldDefault

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "all-gather", "reduce-scatter"
BROADCAST, SEND_RECV = "broadcast", "send-recv"
OPERATIONS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, SEND_RECV)
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
ALL, NODE, PAIRS, NODE_PAIRS = "all", "node", "pairs", "node-pairs"
GROUPS = (ALL, NODE, PAIRS, NODE_PAIRS)
LARGEST_BYTES = 64 << 30
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_SIZE = re.compile(r"(\d+)([KMG]?)")


def _choices(*default: str, of: Sequence[str]) -> FieldDefault:
    return field(default=default, metadata={"schema": KeySchema("texts", choices=tuple(of))})


def _text(default: str, *, of: Sequence[str] = ()) -> FieldDefault:
    return field(default=default, metadata={"schema": KeySchema("text", choices=tuple(of))})


def _above_zero(default: float) -> FieldDefault:
    return field(default=default, metadata={"schema": KeySchema("float", above=True)})


@dataclass(frozen=True)
class CommConfig:
    """
    Every setting of a benchmark.

    groups: the ranks that communicate with each other: all; those of each node; each pair of ranks; each pair of nodes, where
        ranks with equal local rank are paired.
    op: the operations; by default send-recv for pairs, all-reduce for other groups.
    sizes: bytes as 4K or 4K,1M, or FIRST:LAST[:FACTOR].
    passes: how often all rounds of a kind of groups are repeated.
    seconds: time to measure one size; at least one repetition is made.
    timeout: limit of one operation, and of joining a group.
    devices: test the device of every rank first, and leave out ranks whose device fails.
    """

    groups: tuple[str, ...] = _choices(ALL, of=GROUPS)
    op: tuple[str, ...] = _choices(of=OPERATIONS)
    sizes: str = _text("1K:256M:4")
    dtype: str = _text("fp32", of=tuple(DTYPE_BYTES))
    device: str = _text("auto", of=("auto", "cuda", "gcu", "cpu"))
    repetitions: int = field(default=20, metadata={"schema": KeySchema("int", low=1)})
    seconds: float = _above_zero(1.0)
    passes: int = field(default=1, metadata={"schema": KeySchema("int", low=1)})
    timeout: float = _above_zero(60.0)
    devices: bool = field(default=False, metadata={"schema": KeySchema("flag")})

    @property
    def sizes_bytes(self) -> list[int]:
        """The sizes in bytes, in the order of measuring."""
        return parse_sizes(self.sizes)

    def operations(self, kind: str) -> tuple[str, ...]:
        """The operations to measure in groups of this kind."""
        return self.op or ((SEND_RECV,) if kind in (PAIRS, NODE_PAIRS) else (ALL_REDUCE,))

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "groups": list(self.groups), "op": list(self.op)}


def load_config(words: Sequence[str]) -> CommConfig:
    """
    Defaults, then the words, the last one winning.
    Raises UserError: an unknown key or a wrong value; the message names the key and what is allowed.
    """
    schemas = {known.name: known.metadata["schema"] for known in dataclasses.fields(CommConfig)}
    values: Dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"expected key=value, got {word!r}; for example op=all-reduce or sizes=1K:64M")
        if key not in schemas:
            near = difflib.get_close_matches(key, schemas, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"unknown key {key!r}{guess}\nkeys: {', '.join(schemas)}")
        values[key] = schemas[key].parse(key, text)
    for key in ("groups", "op"):
        if len(set(values.get(key, ()))) < len(values.get(key, ())) or values.get(key) == ():
            raise UserError(f"{key}={','.join(values[key])}: allowed: {schemas[key].allowed}, each once")
    config = CommConfig(**values)
    parse_sizes(config.sizes)
    return config


def parse_sizes(text: str) -> list[int]:
    """`4K`, `4K,1M` or `1K:1G[:FACTOR]` in bytes; the factor is 2 if it is not given. Raises UserError: it is none of these."""
    first, colon, rest = text.partition(":")
    if not colon:
        return [_size(part, text) for part in text.split(",")]
    last, _, factor_text = rest.partition(":")
    factor = int(factor_text) if factor_text.isdigit() else 0 if factor_text else 2
    low, high = _size(first, text), _size(last, text)
    if factor <= 1 or low > high:  # with 1 the sizes would not grow
        _refuse(text)
    sizes: List[int] = []
    while low <= high:
        sizes.append(low)
        low *= factor
    return sizes


def _size(text: str, whole: str) -> int:
    match = _SIZE.fullmatch(text)
    size = int(match.group(1)) << _UNITS[match.group(2)] if match else 0
    if not 0 < size <= LARGEST_BYTES:
        _refuse(whole)
    return size


def _refuse(text: str) -> None:
    raise UserError(
        f"sizes={text}: allowed: bytes as 4096, 4K, 16M or 1G (at most {LARGEST_BYTES >> 30}G), several as 4K,1M, or a range "
        "FIRST:LAST[:FACTOR] as 1K:1G:4"
    )
