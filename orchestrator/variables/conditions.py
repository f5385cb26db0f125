"""
Conditions of the table of variables, such as `NCCL>=2.21`, `InfiniBand` or `T20`, and the facts that decide them.

A condition on something unknown is neither true nor false: the linter then reports for which cases the value is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

INFINIBAND, ROCE, ETHERNET = NETWORKS = ("InfiniBand", "RoCE", "Ethernet")
T20, S60 = GENERATIONS = ("T20", "S60")
# torch 1.10 is the only one of the T20 generation; that of the S60 begins with torch 2.5.
_FIRST_TORCH_OF_S60 = (2,)
_VERSION = re.compile(r"(?P<library>[A-Za-z_]+)(?P<operator><|>=)(?P<version>\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Context:
    """The facts about the machines that will get the variables; None and absent versions are unknown."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """Version by library: NCCL, torch."""
    network: str | None = None
    """InfiniBand, RoCE or Ethernet (no RDMA)."""
    accelerator: str | None = None
    """cuda, gcu or cpu."""

    def generation(self) -> str | None:
        """Return the generation of Enflame's cards, as the version of torch decides it."""
        torch = self.versions.get("torch")
        if torch is None:
            return None
        return S60 if version(torch) >= _FIRST_TORCH_OF_S60 else T20


def version(text: str) -> tuple[int, ...]:
    """Parse the numbers at the beginning of a version: `2.21.5+cuda12` is (2, 21, 5); ValueError if it begins with no number."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a version, as in 2.21 or 2.21.5")
    return tuple(int(number[:9]) for number in match[1].split("."))


def holds(condition: str, context: Context) -> bool | None:
    """Return whether one condition holds; None if the context does not decide it."""
    if condition in NETWORKS:
        return None if context.network is None else context.network == condition
    if condition in GENERATIONS:
        generation = context.generation()
        return None if generation is None else generation == condition
    match = _VERSION.fullmatch(condition)
    assert match is not None, condition  # a test reads every row of the table
    installed = context.versions.get(match["library"])
    if installed is None:
        return None
    bound = version(match["version"])
    return version(installed) < bound if match["operator"] == "<" else version(installed) >= bound


def undecided(conditions: Iterable[str], context: Context) -> tuple[str, ...] | None:
    """Return the conditions that the context leaves open; None if one of them does not hold."""
    results = [(condition, holds(condition, context)) for condition in conditions]
    if any(result is False for _, result in results):
        return None
    return tuple(condition for condition, result in results if result is None)


def phrase(conditions: Iterable[str]) -> str:
    """Format conditions for a sentence: `on InfiniBand with NCCL < 2.22`."""
    return " ".join(map(_words, conditions))


def _words(condition: str) -> str:
    if condition in NETWORKS:
        return f"on {condition}"
    if condition in GENERATIONS:
        return f"on the {condition} generation"
    match = _VERSION.fullmatch(condition)
    assert match is not None, condition
    return f"with {match['library']} {match['operator']} {match['version']}"
