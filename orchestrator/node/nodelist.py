"""The lists of nodes in Slurm's variables."""

from __future__ import annotations

import itertools
import re


def node_names(nodelist: str) -> list[str]:
    """
    The names in SLURM_JOB_NODELIST or SLURM_STEP_NODELIST, such as `n[00-02,7],r[0-1]n[1-2]`, in its order.

    Not by `scontrol show hostnames`: a compute node may have no scontrol.
    """
    names: list[str] = []
    for piece in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", nodelist):
        texts = re.split(r"\[([^\]]*)\]", piece)  # text, bracket, text, bracket, ..., text
        choices = [[number for span in spans.split(",") for number in numbers(span)] for spans in texts[1::2]]
        for chosen in itertools.product(*choices):
            names += [texts[0] + "".join(number + text for number, text in zip(chosen, texts[2::2]))]
    return names


def numbers(span: str) -> list[str]:
    """The numbers of `7` or `08-11`, with their zero padding."""
    first, _, last = span.partition("-")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
