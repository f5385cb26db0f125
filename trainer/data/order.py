"""
The order of samples: a shuffle that is computed, not stored, so that neither its size nor a start in the middle costs anything.

Samples have positions, 0, 1, 2 … over all epochs. Position p is in epoch p // count, and every epoch visits each
sample once, in its own order. So training resumes by its position alone, with any number of ranks.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Tuple

ROUNDS = 4
_WORD = (1 << 64) - 1


class Order:
    """The samples 0 … count - 1 in an order that follows from seed and epoch; the same on every machine."""

    def __init__(self, count: int, seed: int, name: str = "train") -> None:
        """`name` distinguishes orders of the same seed; `count` is at least 1."""
        self.count, self.seed, self.name = count, seed, name
        bits = (count - 1).bit_length()
        self._low_bits = bits // 2
        self._high_bits = bits - self._low_bits

    def sample(self, position: int) -> int:
        """The sample at a position."""
        epoch, index = divmod(position, self.count)
        keys = _keys(self.seed, self.name, epoch)
        # Scrambled numbers may be up to twice the count; numbers that are no sample are skipped (cycle walking).
        index = self._scramble(index, keys)
        while index >= self.count:
            index = self._scramble(index, keys)
        return index

    def _scramble(self, number: int, keys: Tuple[int, ...]) -> int:
        """A bijection on numbers of this many bits: a Feistel network whose halves may differ in size."""
        high, low = number >> self._low_bits, number & ((1 << self._low_bits) - 1)
        high_bits, low_bits = self._high_bits, self._low_bits
        for key in keys:
            high, low = low, high ^ (_mixed(low, key) & ((1 << high_bits) - 1))
            high_bits, low_bits = low_bits, high_bits
        return high << low_bits | low


@functools.lru_cache(maxsize=16)
def _keys(seed: int, name: str, epoch: int) -> Tuple[int, ...]:
    words = hashlib.sha256(f"{seed}/{name}/{epoch}".encode()).digest()
    return tuple(int.from_bytes(words[8 * index : 8 * index + 8], "little") for index in range(ROUNDS))


def _mixed(number: int, key: int) -> int:
    """The finalizer of SplitMix64, over number and key."""
    number = (number * 0x9E3779B97F4A7C15 + key) & _WORD
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _WORD
    return number ^ (number >> 31)
