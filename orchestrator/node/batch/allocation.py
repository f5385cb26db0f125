"""The nodes of a Slurm allocation that can be used: all but those that failed a check."""

from __future__ import annotations

import os

from orchestrator.node.number_text import node_names
from orchestrator.node.system.files import read_json

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
