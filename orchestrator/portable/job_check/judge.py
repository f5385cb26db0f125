"""Judge the facts of the nodes, refuse the job if a check failed, and write the discovered variables of an attempt."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from typing import TYPE_CHECKING

from orchestrator.node.batch.allocation import LEFT_OUT
from orchestrator.node.batch.restart import node_events, nodes_for
from orchestrator.node.run.events import Kind, State
from orchestrator.node.system.files import write_json
from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.checks.editable import SentCode, editable_warnings
from orchestrator.portable.checks.quick import check
from orchestrator.portable.environment.discovery import discover
from orchestrator.portable.findings import Severity
from orchestrator.portable.job_check.job import JobCheck
from orchestrator.portable.names.hostlist import fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from orchestrator.portable.findings import Finding

REFUSED, UNCHECKED = 3, 1
VARIABLES = "variables.sh"  # in the attempt's folder; node.sh reads it
HINT = "correct that and submit again; --skip NAME leaves out one check, --no-check all of them"


def check_job(path: str, begun_s: float) -> int:
    """
    Judge all nodes of the allocation before its first attempt; return REFUSED if the job must not start.

    UNCHECKED without the facts of any node: then the step of the probe failed, rather than the nodes. Also if Slurm ends or requeues
    the job meanwhile, which may end the probe as well.

    Args:
        begun_s: when the probe began, by this node's clock.
    """
    job = JobCheck(path, os.environ)
    facts, failures = job.read_facts(job.nodes)
    now_s = time.time()
    times_s = {name: of_node["clock"]["time"] for name, of_node in facts.items()}
    clocks = {name: (time_s - now_s, time_s - begun_s) for name, time_s in times_s.items()}
    is_without_gpus = "SLURM_JOB_GPUS" not in os.environ
    cluster = Cluster(job.requests(job.nodes, facts), facts, failures, clocks, is_job_without_gpus=is_without_gpus)
    events = node_events(job.folder)
    if not cluster.facts:
        text = f"the nodes were not checked: {'; '.join(dict.fromkeys(cluster.failures.values()))}"
        print(f"orch: {text}", file=sys.stderr)
        events.write_message(text)
        return UNCHECKED
    findings = _check(job, cluster)
    for warning in _editable_warnings(job, cluster):
        events.write_message(f"warning: {warning}")
    left_out, remaining = without_failed(job, cluster, findings)
    for finding in remaining:
        if finding.severity is not Severity.FAIL:
            events.write_message(f"{finding.severity.value}  {finding.check}: {finding}")
    failed = [finding for finding in findings if finding.severity is Severity.FAIL]
    if failed and not left_out:
        if signal.SIGTERM in signal.sigpending():
            return UNCHECKED
        lines = ["the check of the nodes failed, so nothing was started", *(finding.report() for finding in failed)]
        text = "\n  ".join([*lines, f"next: {HINT}"])
        print(f"orch: {text}", file=sys.stderr)
        events.write(Kind.AGENT_FINISHED, text, state=State.FAILED, exit=None, refused=True)
        return REFUSED
    if left_out:
        write_json(os.path.join(job.facts_folder, LEFT_OUT), {"nodes": left_out})
        reasons = "; ".join(finding.fault for finding in failed)
        events.write_message(f"the job starts without {fold(left_out)}: {reasons}")
    return write_variables(path, is_restart=False)


def _check(job: JobCheck, cluster: Cluster) -> list[Finding]:
    return check(cluster, job.request["skipped"], python_may_differ=job.request["python_may_differ"])


def _editable_warnings(job: JobCheck, cluster: Cluster) -> Iterator[str]:
    """The warnings that ranks import modules from the folder of the launch, such as in a home that the nodes share."""
    code = job.request["editable"]
    if code is None:
        return
    answered = [name for name in job.nodes if name in cluster.facts]
    folders = {name: cluster.facts[name]["software"]["import_folders"] for name in answered}
    paths = dict.fromkeys(answered, code["python_path"])
    yield from editable_warnings(SentCode(code["root"], code["cwd"], code["start"]), paths, folders)


def without_failed(job: JobCheck, cluster: Cluster, findings: Sequence[Finding]) -> tuple[list[str], Sequence[Finding]]:
    """The failed nodes and the findings of the others, if these are enough and pass; else no node, and the findings as they are."""
    failed = {node for finding in findings if finding.severity is Severity.FAIL for node in finding.nodes}
    remaining_nodes = [node for node in cluster.expected if node not in failed]
    if not failed or len(remaining_nodes) < job.node_count:
        return [], findings
    remaining = _check(job, cluster.part(remaining_nodes))
    if any(finding.severity is Severity.FAIL for finding in remaining):
        return [], findings
    return [node for node in cluster.expected if node in failed], remaining


def write_variables(path: str, *, is_restart: bool = True) -> int:
    """Discover the variables of an attempt's nodes from the facts of the allocation, and write them for node.sh."""
    job = JobCheck(path, os.environ)
    names = job.nodes if len(job.nodes) == job.node_count else nodes_for(path)
    facts, _ = job.read_facts(names)
    discovery = discover(facts, job.requests(names, facts))
    environments = {name: discovery.environment(name) for name in names}
    groups = equal_nodes(environments)
    if not groups:
        return 0
    with open(os.path.join(job.folder, VARIABLES), "w", encoding="utf-8") as file:
        file.write(shell_text(groups))
    events = node_events(job.folder)
    age_s = time.time() - min(of_node["clock"]["time"] for of_node in facts.values())
    source = f"their facts of {age_s:.0f} s ago" if is_restart else "their facts"
    for nodes, variables in groups:
        settings = " ".join(f"{name}={value}" for name, value in variables.items())
        events.write_message(f"variables of {fold(nodes)} from {source}: {settings}")
    return 0


def equal_nodes(environments: Mapping[str, Mapping[str, str]]) -> list[tuple[Sequence[str], Mapping[str, str]]]:
    """The nodes with equal variables together; without nodes that have none."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, variables in environments.items():
        groups.setdefault(tuple(variables.items()), []).append(name)
    return [(names, dict(variables)) for variables, names in groups.items() if variables]


def shell_text(groups: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> str:
    """The lines that node.sh reads: each node exports its variables, unless it has them."""
    lines = ["case $SLURMD_NODENAME in"]
    for names, variables in groups:
        lines.append(" | ".join(map(shlex.quote, names)) + ")")
        lines += [
            f'    [ -n "${{{name}+set}}" ] || export {name}={shlex.quote(value)}' for name, value in variables.items()
        ]
        lines.append("    ;;")
    return "\n".join([*lines, "esac", ""])
