"""The nodes of a Slurm allocation that can be used: all but those that failed a check."""

from __future__ import annotations

import itertools
import os
import re

from orchestrator.node.files import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LEFT_OUT = "left-out.json"  # beside the facts: the nodes that failed a check


def facts_folder(run_dir: str, environ: Mapping[str, str]) -> str:
    """The folder with the facts of the nodes of this allocation; each requeue results in another one."""
    return os.path.join(run_dir, "facts", environ.get("SLURM_RESTART_COUNT", "0"))


def usable_nodes(run_dir: str, environ: Mapping[str, str]) -> list[str]:
    """The nodes of this allocation, without those that failed a check."""
    left_out = read_json(os.path.join(facts_folder(run_dir, environ), LEFT_OUT)) or {"nodes": []}
    return [name for name in node_names(environ["SLURM_JOB_NODELIST"]) if name not in left_out["nodes"]]


def node_names(nodelist: str) -> list[str]:
    """
    The names in SLURM_JOB_NODELIST, such as `n[00-02,7],r[0-1]n[1-2]`, in its order.

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
