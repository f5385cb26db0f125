"""`--sweep KEY=A,B`: the settings of the runs of a sweep, every combination once."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from orchestrator.errors import UsageError

MOST_RUNS = 1000  # Slurm's MaxArraySize is 1001 by default
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def points(words: Sequence[str], settings: Sequence[str] = ()) -> list[Mapping[str, str]]:
    """
    What each run sets, in order: the last word varies fastest.

    Args:
        words: as `optim.lr=1e-3,3e-4`.
        settings: what all runs set, as `steps=20`; a key cannot be both.

    Raises:
        UsageError: a word is no list of values for a setting, or there are too many combinations.
    """
    axes = dict(map(_axis, words))
    if len(axes) < len(words):
        raise UsageError("--sweep: a setting is swept twice", hint="give all of its values in one --sweep KEY=A,B,C")
    if both := sorted(axes.keys() & {word.partition("=")[0] for word in settings}):
        raise UsageError(f"{both[0]} is swept and set as well", hint=f"leave {both[0]}=… or its --sweep away")
    count = math.prod(map(len, axes.values()))
    if count > MOST_RUNS:
        raise UsageError(f"--sweep: {count} combinations; at most {MOST_RUNS} go into one sweep")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _axis(word: str) -> tuple[str, tuple[str, ...]]:
    key, _, text = word.partition("=")
    values = tuple(text.split(","))
    if not _KEY.fullmatch(key) or not all(values) or len(set(values)) < len(values):
        raise UsageError(
            f"--sweep {word}: not a setting with different values", hint="as in --sweep optim.lr=1e-3,3e-4"
        )
    return key, values
