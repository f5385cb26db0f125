"""Sources of samples in shares: the source of a position is computed, like the order within each source, so nothing is stored. No torch here."""

from __future__ import annotations

import bisect
import hashlib
from itertools import accumulate
from typing import Callable, List, Sequence, TypeVar, Union

from trainer.config.config import DataConfig
from trainer.data.order import Order
from trainer.errors import UserError
from trainer.values import Batch, Foreign

S = TypeVar("S")
BLOCK = 1000
"""Positions in which every source has exactly its share."""


class Mixture:
    """Samples of several sources, in this order; `quotas` are the samples of each in a block of positions."""

    is_random = False

    def __init__(self, sources: Sequence[Foreign], quotas: Sequence[int]) -> None:
        self.sources, self.quotas = sources, quotas
        self._ends = list(accumulate(map(len, sources)))
        self.description = "; ".join(
            f"{100 * quota / BLOCK:g} % of {source.description}" for source, quota in zip(sources, quotas)
        )

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Batch:
        number = bisect.bisect_right(self._ends, index)
        return self.sources[number][index - (self._ends[number] - len(self.sources[number]))]

    def digest(self) -> str:
        parts = [f"{quota} {source.digest()}" for source, quota in zip(self.sources, self.quotas)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def order(self, seed: int, name: str) -> MixedOrder:
        """The order of the samples, for a split with this name."""
        return MixedOrder([len(source) for source in self.sources], self.quotas, seed, name)


class MixedOrder:
    """
    Every BLOCK positions have each source as often as its quota, in an order that differs from block to block.

    Each source is visited in its own epochs: n samples after its first one comes number n in its Order.
    """

    def __init__(self, counts: Sequence[int], quotas: Sequence[int], seed: int, name: str) -> None:
        self._block = Order(BLOCK, seed, f"{name} mixture")
        self._orders = [Order(count, seed, f"{name} {number}") for number, count in enumerate(counts)]
        self._starts = [end - count for end, count in zip(accumulate(counts), counts)]
        self._quotas, self._borders = quotas, list(accumulate(quotas))

    def sample(self, position: int) -> int:
        """The sample at a position."""
        number = self._block.sample(position)
        source = bisect.bisect_right(self._borders, number)
        quota = self._quotas[source]
        earlier = position // BLOCK * quota + number - (self._borders[source] - quota)
        return self._starts[source] + self._orders[source].sample(earlier)


def open_paths(data: DataConfig, split: str, open_source: Callable[[Sequence[str]], S]) -> Union[S, Mixture]:
    """
    The samples of the files of a split, which `open_source` opens: mixed by data.weights for training.
    Raises UserError: sources of different kinds, or one that raises it.
    """
    if split != "train":
        return open_source(data.validation)
    if not data.weights:
        return open_source(data.paths)
    sources = [open_source([path]) for path in data.paths]
    kinds = {type(source).__name__ for source in sources}
    if len(kinds) > 1:
        raise UserError(
            "data.weights: chats and tokens of other texts cannot be mixed in a batch: name sources of one kind"
        )
    return Mixture(sources, quotas_of(data.weights))


def quotas_of(weights: Sequence[float]) -> List[int]:
    """
    The samples of each source in BLOCK positions; the largest remainders are rounded up.
    Raises UserError: a weight is too small to have one.
    """
    exact = [BLOCK * weight / sum(weights) for weight in weights]
    quotas = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda number: quotas[number] - exact[number])
    for number in by_remainder[: BLOCK - sum(quotas)]:
        quotas[number] += 1
    if 0 in quotas:
        raise UserError(
            f"data.weights: {weights[quotas.index(0)]:g} of {sum(weights):g} is less than a sample in {BLOCK}: give the source more, or leave it out"
        )
    return quotas
