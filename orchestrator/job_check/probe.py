"""Write the facts of this node, where the head of the job reads them."""

from __future__ import annotations

import os

from orchestrator.job_check.job import JobCheck
from orchestrator.node.files import write_json
from orchestrator.node.probe.collect import collect
from orchestrator.node.probe.source import Source


def write_facts(path: str) -> None:
    """Collect the facts in the environment of the ranks, setup lines and the inventory's variables included."""
    check, node = JobCheck(path, os.environ), os.environ["SLURMD_NODENAME"]
    folders = {"workdir": check.request["workdir"]}
    if check.request["out"] is not None and node == check.nodes[0]:
        folders["out"] = check.request["out"]
    facts = collect(
        {"node": node, "names": check.names_to_resolve(node), "folders": folders, "code": check.request["code"]},
        Source(),
    )
    private = check.node_request(node, {}).private
    kept = {name: value for name, value in facts["environment"].items() if name not in private}
    os.makedirs(check.facts_folder, exist_ok=True)
    write_json(os.path.join(check.facts_folder, f"{node}.json"), {**facts, "environment": kept})
