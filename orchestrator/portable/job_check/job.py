"""A job to be checked: its allocation, the request beside its scripts, and the facts that its nodes have written."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from orchestrator.node.batch.allocation import facts_folder
from orchestrator.node.cards import VISIBLE
from orchestrator.node.facts import read_facts
from orchestrator.node.number_text import node_names
from orchestrator.node.run.run_folder import AGENT_LOG, attempt_folder
from orchestrator.node.system.files import read_at, read_json, tail
from orchestrator.portable.checks.cluster import host_names, nodes_to_resolve
from orchestrator.portable.environment.request import NodeRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from orchestrator.node.facts import NodeFacts

REQUEST = "check.json"  # in the folder of the first attempt
MOST_FACTS_BYTES = 16 << 20
LATE_S, POLL_S = 2.0, 0.1  # a shared file system shows the files of other nodes late
LOG_BYTES = 500


class JobCheck:
    """The check of the job of a job.json, in the environment of the job."""

    def __init__(self, path: str, environ: Mapping[str, str]) -> None:
        self.path = os.path.abspath(path)
        self.folder = os.path.dirname(self.path)
        self.run_dir = os.path.dirname(self.folder)
        self.facts_folder = facts_folder(self.run_dir, environ)
        self.nodes = node_names(environ["SLURM_JOB_NODELIST"])
        with open(os.path.join(attempt_folder(self.run_dir, 1), REQUEST), encoding="utf-8") as file:
            self.request: dict[str, Any] = json.load(file)
        self.job: dict[str, Any] = read_json(self.path) or {}

    @property
    def node_count(self) -> int:
        """The number of nodes that the ranks need; the others are spares."""
        return len(self.job["ranks"])

    def requests(self, names: Sequence[str], facts: Mapping[str, NodeFacts]) -> dict[str, NodeRequest]:
        return {name: self.node_request(name, facts[name]["environment"] if name in facts else {}) for name in names}

    def node_request(self, node: str, environment: Mapping[str, str]) -> NodeRequest:
        """The part of the launch on a node. The values of variables are those in the environment of the probe."""
        given = {"address": node, **self.request["usual"], **self.request["nodes"].get(node, {})}
        # Slurm selects the cards of a job by these variables
        names = (*given["env"], *VISIBLE.values())
        args: list[str] = self.job.get("program", {}).get("args", [])
        runs_trainer = [arg.partition(".")[0] for arg in args[1:3]] == ["-m", "trainer"]
        return NodeRequest(
            given["address"],
            given["ranks"],
            given["accelerator"],
            given["network"],
            {name: environment[name] for name in names if name in environment},
            frozenset(given["private"]),
            runs_trainer,
        )

    def names_to_resolve(self, node: str) -> list[str]:
        """The host names that the node looks up: those that the inventory has as addresses."""
        resolved = nodes_to_resolve(self.nodes, node)
        requests = {name: self.node_request(name, {}) for name in resolved}
        addresses = {request.address for request in requests.values()}
        hosts = (host for name, request in requests.items() for host in host_names(name, request))
        return [host for host in hosts if host in addresses]

    def read_facts(self, names: Sequence[str]) -> tuple[dict[str, NodeFacts], dict[str, str]]:
        """The facts of the nodes that have written them, and the reasons of the others."""
        deadline = time.monotonic() + LATE_S
        facts: dict[str, NodeFacts] = {}
        failures: dict[str, str] = {}
        for name in names:
            path = os.path.join(self.facts_folder, f"{name}.json")
            while not os.path.exists(path) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            data = read_at(path, 0, MOST_FACTS_BYTES)
            try:
                if data:
                    facts[name] = read_facts(json.loads(data))
                else:
                    # the failure of a setup line or of the probe on the node, if one was recorded
                    log = tail(os.path.join(self.folder, name, AGENT_LOG), LOG_BYTES)
                    failures[name] = log.strip() or "no answer to the probe in the allocation"
            except ValueError as error:
                failures[name] = f"its answer cannot be read: {error}"
        return facts, failures
