"""Versions that all nodes must share: drivers, libraries, packages, and the user's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.node.facts import Library
from orchestrator.portable.checks.cluster import Cluster
from orchestrator.portable.checks.majority import Difference, difference
from orchestrator.portable.findings import Finding, Severity

NOT_INSTALLED = "not installed"
VERSIONS = ("driver", "cuda", "torch", "torch_cuda", "torch_gcu", "deepspeed")
MOST_PACKAGES_NAMED = 8


def versions(cluster: Cluster) -> Iterator[Finding]:
    """
    Driver, CUDA, torch and DeepSpeed must have the same version everywhere; nodes where it cannot be read are left out.

    The driver and its CUDA are compared on nodes whose ranks may use cards: with `accelerator: auto`, a missing driver hides the cards.
    """
    for name in VERSIONS:
        is_driver = name in ("driver", "cuda")
        unread = {"software", f"software.{name}", *(("cards.nvidia", "cards.enflame") if name == "driver" else ())}
        values = {
            node: str(facts["software"].get(name) or NOT_INSTALLED)
            for node, facts in cluster.facts.items()
            if not unread & facts["missing"].keys() and not (is_driver and cluster.expected[node].accelerator == "cpu")
        }
        if differs := difference(values):
            text = f"the version of {name} differs: {differs.text()}"
            remedy = "install the version of the majority there"
            yield Finding(Severity.FAIL, "versions", text, differs.nodes, remedy=remedy)


def python(cluster: Cluster) -> Iterator[Finding]:
    """The training Python must have the same minor version everywhere; a patch version may differ."""
    found = cluster.values(lambda facts: facts["software"]["python"] or None)
    if differs := difference({node: ".".join(version.split(".")[:2]) for node, version in found.items()}):
        text = f"the version of Python differs: {differs.text()}"
        remedy = "set python: in the inventory to the same version on all nodes"
        yield Finding(Severity.FAIL, "python", text, differs.nodes, remedy=remedy)


def nccl(cluster: Cluster) -> Iterator[Finding]:
    """The NCCL library that is loaded, by the version that it reports and the hash of the file: packages overwrite each other's file."""
    libraries = cluster.values(lambda facts: facts["software"]["nccl"])
    by_version = {node: library["version"] for node, library in libraries.items() if library["version"]}
    by_hash = {node: library["sha256"] for node, library in libraries.items() if library["sha256"]}
    remedy = "install the same build of the nvidia-nccl package, and remove others (cu12 and cu13 share a path)"
    if differs := difference(by_version):
        text = f"the loaded NCCL differs: {differs.text()}"
        yield Finding(Severity.FAIL, "nccl", text, differs.nodes, _paths(libraries, differs), remedy)
    elif differs := difference(by_hash):
        shown = {digest: f"sha256 {digest[:12]}" for digest in differs.groups}
        text = f"the file of the loaded NCCL differs: {differs.text(shown)}"
        yield Finding(Severity.FAIL, "nccl", text, differs.nodes, _paths(libraries, differs), remedy)


def packages(cluster: Cluster) -> Iterator[Finding]:
    """Installed packages: another version, or none where most nodes have one, is a failure; an additional package is none."""
    if difference(cluster.values(lambda facts: facts["software"]["packages_hash"])) is None:
        return
    tables = {
        node: facts["software"]["packages"]
        for node, facts in cluster.facts.items()
        if facts["software"]["packages_hash"]
    }
    faults: dict[tuple[Severity, tuple[str, ...]], list[str]] = {}
    for name in sorted({name for table in tables.values() for name in table}):
        differs = difference({node: table.get(name, NOT_INSTALLED) for node, table in tables.items()})
        if differs is None or differs.majority == NOT_INSTALLED:
            continue
        is_additional = differs.majority is None and len(differs.groups) == 2 and NOT_INSTALLED in differs.groups  # noqa: PLR2004
        severity = Severity.WARN if is_additional else Severity.FAIL
        faults.setdefault((severity, differs.nodes), []).append(f"{name} {differs.text()}")
    remedy = "install the versions of the majority there: pip freeze on a good node, pip install -r on the others"
    for (severity, nodes), texts in faults.items():
        more = f", and {len(texts) - MOST_PACKAGES_NAMED} more" if len(texts) > MOST_PACKAGES_NAMED else ""
        text = f"packages differ: {'; '.join(texts[:MOST_PACKAGES_NAMED])}{more}"
        evidence = "; ".join(texts) if more else ""
        yield Finding(severity, "packages", text, nodes, evidence=evidence, remedy=remedy)


def trainer(cluster: Cluster) -> Iterator[Finding]:
    """The shared trainer needs torch; other programs may not. PYTHONPATH and setup lines may add a torch that the probe cannot find."""
    for node, facts in cluster.facts.items():
        expected, found = cluster.expected[node], facts["software"]
        if expected.needs_torch is False or found["torch"] or not found["executable"] or "software" in facts["missing"]:
            continue
        may_have_it = expected.has_setup or "PYTHONPATH" in expected.env
        severity = Severity.INFO if expected.needs_torch is None else Severity.WARN if may_have_it else Severity.FAIL
        text = f"torch is not installed for {found['executable']}, so the shared trainer cannot start"
        remedy = f"{found['executable']} -m pip install torch; or set python: in the inventory to one that has it, or start a program of yours with -- train.py"
        yield Finding(severity, "trainer", text, (node,), remedy=remedy)


def code(cluster: Cluster) -> Iterator[Finding]:
    """The user's code on the nodes: the same commit, changes and files. Of nodes that share the folder, the first counts."""
    answers = cluster.values(lambda facts: facts["code"])
    first = {entry["identity"]: entry for entry in reversed(answers.values()) if entry["identity"]}
    found = {node: first.get(entry["identity"], entry) for node, entry in answers.items()}
    remedy = "copy the code to all nodes, or put it on a shared folder; orch sends the code of the folder it runs in by itself"
    commits = difference({node: entry["commit"] for node, entry in found.items() if entry["commit"]})
    if commits:
        shown = {commit: f"commit {commit[:12]}" for commit in commits.groups}
        text = f"the code differs: {commits.text(shown)}"
        yield Finding(Severity.FAIL, "code", text, commits.nodes, _code_paths(cluster, commits), remedy)
    elif digests := difference({node: entry["digest"] for node, entry in found.items() if entry["digest"]}):
        states = {
            digest: f"{'changed files' if found[nodes[0]]['dirty'] else 'files'} {digest[:12]}"
            for digest, nodes in digests.groups.items()
        }
        text = f"the files of the code differ: {digests.text(states)}"
        # If all changes are committed, only files that git does not track differ.
        are_committed = all(entry["dirty"] is False for entry in found.values())
        severity = Severity.WARN if are_committed else Severity.FAIL
        yield Finding(severity, "code", text, digests.nodes, _code_paths(cluster, digests), remedy)


def _paths(libraries: Mapping[str, Library], differs: Difference[str]) -> str:
    return ", ".join(dict.fromkeys(libraries[node]["path"] for node in differs.nodes))


def _code_paths(cluster: Cluster, differs: Difference[str]) -> str:
    entries = (cluster.facts[node]["code"] for node in differs.nodes)
    return ", ".join(dict.fromkeys(entry["path"] for entry in entries if entry))
