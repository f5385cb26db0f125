"""The nodes of a Slurm allocation that an attempt runs on: those that failed are left out while there are others."""

from __future__ import annotations

import itertools
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from orchestrator.node.batch.history import Attempt


def node_names(nodelist: str) -> list[str]:
    """The names in SLURM_JOB_NODELIST, such as `n[00-02,7],r[0-1]n[1-2]`, in its order: compute nodes may lack scontrol."""
    names: list[str] = []
    for piece in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", nodelist):
        texts = re.split(r"\[([^\]]*)\]", piece)  # text, bracket, text, bracket, ..., text
        choices = [[number for span in spans.split(",") for number in numbers(span)] for spans in texts[1::2]]
        for chosen in itertools.product(*choices):
            names += [texts[0] + "".join(number + text for number, text in zip(chosen, texts[2::2]))]
    return names


def numbers(span: str) -> list[str]:
    """`7` or `08-11`, zero padding kept."""
    first, _, last = span.partition("-")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]


def choose(names: Sequence[str], count: int, attempts: Sequence[Attempt], spares: Container[str]) -> list[str]:
    """
    The nodes of the next attempt, in the order of the allocation; fewer than count if too few are left.

    Args:
        names: the allocation.
        attempts: all so far. A node that was lost in this allocation is not used again; one that failed, only for lack of others.
        spares: the nodes that stand by until another one fails.
    """
    in_allocation = [attempt for attempt in attempts if attempt.requeues == attempts[-1].requeues]
    lost = {name for attempt in in_allocation for name in attempt.lost}
    culprits = [attempt.culprit for attempt in attempts]
    usable = [name for name in names if name not in lost]
    best = sorted(usable, key=lambda name: (culprits.count(name), name in spares))[:count]
    return [name for name in names if name in best]
