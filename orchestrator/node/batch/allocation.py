"""Which nodes of a Slurm allocation an attempt runs on: those that failed are left out, as long as there are others."""

from __future__ import annotations

import itertools
import re

TYPE_CHECKING = False  # what typing.TYPE_CHECKING is; importing typing costs every batch script some milliseconds
if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from orchestrator.node.batch.history import Ending


def expand(nodelist: str) -> list[str]:
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


def choose(names: Sequence[str], wanted: int, endings: Sequence[Ending], spares: Container[str]) -> list[str]:
    """
    The nodes of the next attempt, in the order of the allocation; fewer than wanted where too few are left.

    Args:
        names: the allocation.
        endings: of all attempts. A node that was lost in this allocation is not asked again; one that failed, only for want of others.
        spares: the nodes that are to stand by as long as no other one fails.
    """
    here = [ending for ending in endings if ending.requeues == endings[-1].requeues] if endings else []
    lost = {name for ending in here for name in ending.lost}
    blamed = [ending.culprit for ending in endings]
    fit = sorted((name for name in names if name not in lost), key=lambda name: (blamed.count(name), name in spares))
    return [name for name in names if name in fit[:wanted]]
