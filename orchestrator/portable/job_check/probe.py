"""Write the facts of this node, where the head of the job reads them."""

from __future__ import annotations

import os
import sys
import traceback

from orchestrator.node.probe.collect import collect
from orchestrator.node.probe.source import Source
from orchestrator.node.run.run_folder import AGENT_LOG
from orchestrator.node.system.files import write_json
from orchestrator.portable.job_check.job import JobCheck


def probe(path: str) -> int:
    """Write the facts of this node. If that fails, write the reason where a setup line's failure is written; `check` reads it."""
    try:
        # In the environment of the ranks, setup lines and the inventory's variables included. Values of `env_file` too: discovery needs
        # them, and the file is as private as node.sh. No output shows them.
        check, node = JobCheck(path, os.environ), os.environ["SLURMD_NODENAME"]
        folders = {"workdir": check.request["workdir"]}
        if check.request["out"] is not None and node == check.nodes[0]:
            folders["out"] = check.request["out"]
        facts = collect(
            {"node": node, "names": check.names_to_resolve(node), "folders": folders, "code": check.request["code"]},
            Source(),
        )
        os.makedirs(check.facts_folder, exist_ok=True)
        write_json(os.path.join(check.facts_folder, f"{node}.json"), facts)
    except Exception as error:  # noqa: BLE001  also a defect of the probe
        traceback.print_exc()
        folder = os.path.join(os.path.dirname(os.path.abspath(path)), os.environ["SLURMD_NODENAME"])
        os.makedirs(folder, exist_ok=True)
        text = f"the probe failed: {error!r}"
        print(f"orch: {text}", file=sys.stderr)
        with open(os.path.join(folder, AGENT_LOG), "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
        return 1
    return 0
