"""The variables that a node has already, from a login and from nccl.conf, and the facts of the node that decide about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.lint.assignment import Assignment
from orchestrator.lint.files import read_nccl_conf
from orchestrator.lint.judge import LintFinding, lint_assignments, remedy_text
from orchestrator.node.facts import NodeFacts
from orchestrator.portable.environment.rdma import KINDS, choose_adapters
from orchestrator.variables.conditions import ETHERNET, Context, version

LOGIN = "environment of a login"
_Key = tuple[str, int, str, str, "str | None"]
"""File, line, level, text and replacement, which are equal in equal findings."""


def node_context(facts: NodeFacts) -> Context:
    """The versions, network and accelerator of a node; unknown ones are left out."""
    software = facts["software"]
    nccl = software["nccl"]
    found = {"NCCL": nccl["version"] if nccl else None, "torch": software["torch"]}
    adapters = choose_adapters(facts)
    network = KINDS.get(adapters.layer or "", ETHERNET if adapters.is_certain else None)
    kinds = {card["kind"] for card in facts["cards"]}
    return Context(
        {library: text for library, text in found.items() if text is not None and _is_version(text)},
        network,
        kinds.pop() if len(kinds) == 1 else None,
    )


def _is_version(text: str) -> bool:
    try:
        return bool(version(text))
    except ValueError:
        return False


def lint_nodes(nodes: Mapping[str, NodeFacts]) -> list[LintFinding]:
    """Judge the variables of each node with its own versions; equal findings of several nodes are one."""
    names: dict[_Key, list[str]] = {}
    findings: dict[_Key, LintFinding] = {}
    for name, facts in nodes.items():
        assignments = [Assignment(variable, value, LOGIN, 0) for variable, value in facts["environment"].items()]
        for path, text in facts["nccl_conf"].items():
            assignments += read_nccl_conf(text, path)
        for found in lint_assignments(assignments, node_context(facts)):
            completed = _with_adapters(found, facts)
            level, text = completed.finding.severity.value, completed.finding.text
            key = (completed.file, completed.line, level, text, completed.replacement)
            names.setdefault(key, []).append(name)
            findings[key] = completed
    return [
        replace(found, finding=replace(found.finding, nodes=tuple(names[key])), start=None, end=None)
        for key, found in findings.items()
    ]


def _with_adapters(found: LintFinding, facts: NodeFacts) -> LintFinding:
    """Add the exact list of adapters to a finding on NCCL_IB_HCA that has no remedy."""
    if found.finding.check != "NCCL_IB_HCA" or found.replacement is not None:
        return found
    adapters = choose_adapters(facts)
    if not adapters.ports:
        return found
    replacement = f"NCCL_IB_HCA={adapters.value}"
    return replace(found, finding=replace(found.finding, remedy=remedy_text(replacement)), replacement=replacement)


def common_context(nodes: Mapping[str, NodeFacts]) -> Context:
    contexts = [node_context(facts) for facts in nodes.values()]
    first, *more = contexts or [Context()]
    return Context(
        {
            library: text
            for library, text in first.versions.items()
            if all(context.versions.get(library) == text for context in more)
        },
        first.network if all(context.network == first.network for context in more) else None,
        first.accelerator if all(context.accelerator == first.accelerator for context in more) else None,
    )
