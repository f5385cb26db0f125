"""
Lint inventories, environment files, shell scripts, documents, DeepSpeed configurations, nccl.conf and nodes. No file is written.

A launch imports this module for its warning: the readers of scripts are imported when there is one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.inventory import document as documents
from orchestrator.inventory.document import Document, FieldPath, Tree
from orchestrator.inventory.model import Inventory
from orchestrator.inventory.redaction import is_secret
from orchestrator.lint.assignment import Assignment
from orchestrator.lint.deepspeed import NotJson, lint_deepspeed
from orchestrator.lint.fix import fixed_text
from orchestrator.lint.judge import LintFinding, lint_assignments
from orchestrator.lint.live import LOGIN, common_context, lint_nodes
from orchestrator.portable.findings import Severity
from orchestrator.portable.names.hostlist import expand
from orchestrator.usecases.checks.nodes import query
from orchestrator.usecases.inventory import load_inventory
from orchestrator.variables import VARIABLES
from orchestrator.variables.conditions import ETHERNET, INFINIBAND, ROCE, Context, version

if TYPE_CHECKING:
    from orchestrator.lint.assignment import Script
    from orchestrator.lint.shell import SourcedText

MAX_FILE_BYTES = 1024 * 1024
MOST_NAMED = 5  # variables in the warning of a launch
NETWORKS = {"infiniband": INFINIBAND, "roce": ROCE, "ethernet": ETHERNET}
_EFA = ("FI_EFA_", "FI_PROVIDER")
"""The beginnings of names that scripts for AWS's network adapter set, for which NCCL has a plugin."""


@dataclass(frozen=True, slots=True)
class LintOptions:
    """The facts that the user states, as typed: versions of NCCL and torch, and the network (infiniband, roce or ethernet)."""

    nccl: str | None = None
    torch: str | None = None
    network: str | None = None


@dataclass(frozen=True, slots=True)
class LintResult:
    """The findings by file and line, and the corrected texts by file."""

    files: tuple[str, ...]
    findings: tuple[LintFinding, ...]
    fixed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Linted:
    """The result for one file."""

    file: str
    findings: Sequence[LintFinding]
    fixed: str


def lint(inventory: str | None, files: Sequence[Path], options: LintOptions, *, nodes: str | None = None) -> LintResult:
    """
    Lint the files, and the inventory that is given, or the default one if there are no files.

    The inventory also decides the accelerator and network of the files.

    Args:
        nodes: a host list: the variables of a login on these nodes, and their nccl.conf files, are linted too.

    Raises:
        UsageError: a file cannot be read, or an option is wrong.
        NodesError: nodes could not be queried.
    """
    context = _context(options)
    linted: list[_Linted] = []
    if nodes is not None:
        facts, failure = query(inventory, nodes, with_workdir=False)
        if failure:
            raise failure
        common = common_context(facts)
        versions = {**common.versions, **context.versions}
        context = Context(versions, context.network or common.network, common.accelerator)
        live = lint_nodes(facts)
        names = sorted({LOGIN, *(found.file for found in live)})
        linted += [_Linted(file, [found for found in live if found.file == file], "") for file in names]
    if inventory is not None or not (files or nodes):
        loaded = load_inventory(inventory, None)
        linted.append(_lint_inventory(loaded, documents.read(Path(loaded.file)), context))
        context = _with_inventory(context, {(node.accelerator, node.network) for node in loaded.nodes})
    linted += [_lint_file(file, context) for file in files]
    in_order = (found for result in linted for found in sorted(result.findings, key=lambda found: found.line))
    findings = tuple(dict.fromkeys(in_order))
    all_files = dict.fromkeys([*(result.file for result in linted), *(found.file for found in findings)])
    return LintResult(tuple(all_files), findings, {result.file: result.fixed for result in linted if result.fixed})


def environment_warning(inventory: Inventory) -> tuple[str, ...]:
    """One sentence on the variables of an inventory that are wrong or useless; empty if there are none."""
    by_variable: dict[str, Severity] = {}
    for node in inventory.nodes:
        env = tuple({**inventory.env, **node.env}.items())
        for name, severity in _faults(env, node.accelerator, node.network):
            by_variable[name] = min(severity, by_variable.get(name, severity), key=list(Severity).index)
    if not by_variable:
        return ()
    names = ", ".join(f"{name} ({severity.value})" for name, severity in list(by_variable.items())[:MOST_NAMED])
    more = f" and {len(by_variable) - MOST_NAMED} more" if len(by_variable) > MOST_NAMED else ""
    file = f" -i {inventory.file}" if inventory.file else ""
    return (f"variables of the inventory that are wrong or useless: {names}{more}; orch lint{file} has the reasons",)


@lru_cache(maxsize=64)
def _faults(env: tuple[tuple[str, str], ...], accelerator: str, network: str) -> tuple[tuple[str, Severity], ...]:
    """The variables with a finding of FAIL or WARN; a cluster has few different environments."""
    assignments = [Assignment(name, value, "", 1) for name, value in env]
    findings = lint_assignments(_public(assignments), _with_inventory(Context(), {(accelerator, network)}))
    found = ((entry.finding.check, entry.finding.severity) for entry in findings)
    return tuple((name, severity) for name, severity in found if severity is not Severity.INFO)


def _context(options: LintOptions) -> Context:
    versions = {}
    for library, text in (("NCCL", options.nccl), ("torch", options.torch)):
        if text is not None:
            try:
                version(text)
            except ValueError as exc:
                raise UsageError(f"--{library.lower()}: {exc}") from exc
            versions[library] = text
    return Context(versions, NETWORKS.get(options.network or ""))


def _with_inventory(context: Context, kinds: set[tuple[str, str]]) -> Context:
    """Add accelerator and network if all nodes have the same; a stated network has priority."""
    accelerators, networks = ({kind[index] for kind in kinds} for index in range(2))
    accelerator = accelerators.pop() if len(accelerators) == 1 else "auto"
    network = networks.pop() if len(networks) == 1 else "auto"
    chosen = context.accelerator if accelerator == "auto" else accelerator
    return replace(context, accelerator=chosen, network=context.network or NETWORKS.get(network))


def _lint_file(file: Path, context: Context) -> _Linted:
    from orchestrator.lint.script import lint_line_ends
    from orchestrator.lint.sources import is_inventory, is_shell_script, sources

    text, name = read_text(file), str(file)
    if file.suffix == ".ipynb":
        raise UsageError(
            f"{name}: notebooks are not read", hint=f"jupyter nbconvert --to script {name}, and lint that script"
        )
    if file.suffix in (".yaml", ".yml") and is_inventory(text):
        loaded = load_inventory(str(file), None)
        return _lint_inventory(loaded, documents.read(file), context)
    if file.suffix == ".json":
        try:
            findings, strict = lint_deepspeed(text, name, context)
        except NotJson as exc:
            hint = "correct the line; orch lint reads it as a DeepSpeed configuration"
            raise UsageError(f"{name}:{exc.line}: {exc}", hint=hint) from exc
        return _Linted(name, findings, strict)
    found_here = list(lint_line_ends(text, name)) if is_shell_script(file, text) else []
    is_quoted = True
    for source in sources(file, text, name, sourced_texts(file)):
        is_quoted = source.is_quoted
        found_here += _lint_script(source.script, name, context, is_part=source.is_part)
    unique = {(found.file, found.line, found.finding.text): found for found in found_here}
    fixed = fixed_text(text, (found for found in unique.values() if found.file == name), quoted=is_quoted)
    return _Linted(name, list(unique.values()), fixed)


def _lint_script(script: Script, name: str, context: Context, *, is_part: bool) -> Iterator[LintFinding]:
    """Judge a script and those within it; a `is_part` is a piece of a document, in which other pieces may export."""
    from orchestrator.lint.launch import starts_ranks
    from orchestrator.lint.script import lint_whole

    if any(found.name.startswith(_EFA) for found in script.assignments):
        context = replace(context, network=context.network or ETHERNET)  # NCCL's own RDMA is not in use
    assignments = script.assignments
    if is_part and not script.commands:
        assignments = tuple(replace(found, fault="") if not found.is_exported else found for found in assignments)
    numbers_ranks = script.exported is None or starts_ranks(script)
    for found in lint_assignments(_public(assignments), context):
        row, is_info = VARIABLES.get(found.finding.check), found.finding.severity is Severity.INFO
        # a script without torchrun and the like has to number its ranks itself
        if numbers_ranks or row is None or row.library != "launchers" or not is_info:
            yield found
    yield from lint_whole(script, name, is_part=is_part)
    for inner in script.embedded:
        yield from _lint_script(inner, name, context, is_part=is_part)
    for sourced in script.sourced:
        yield from _lint_script(sourced, sourced.file, context, is_part=True)


def _public(assignments: Sequence[Assignment]) -> Iterator[Assignment]:
    """Leave out secrets: no finding shows the value of one."""
    return (assignment for assignment in assignments if not is_secret(assignment.name))


def sourced_texts(script: Path) -> SourcedText:
    """
    Return a function that reads a file which the script sources, by a relative path.

    It is looked for in the folder in which orch runs, then in that of the script; a path that begins with a command, as
    `$(dirname "$0")/env.sh` does, in that of the script. A virtual environment is not read.
    """

    def read(path: str) -> tuple[str, str] | None:
        from orchestrator.lint.assignment import HOLE

        relative = path.removeprefix(f"{HOLE}{HOLE}/")
        folders = [script.parent] if relative != path else [Path(), script.parent]
        if HOLE in relative or relative.startswith(("/", "~")) or relative.endswith("bin/activate"):
            return None
        file = next((found for folder in folders if (found := folder / relative).is_file()), None)
        try:
            return None if file is None else (os.path.normpath(file), read_text(file))
        except UsageError:
            return None

    return read


def read_text(file: Path) -> str:
    """Read a file of text; UsageError if it cannot be read, is too large or binary."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block orch
        with os.fdopen(descriptor, "rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1) or b""
    except OSError as exc:
        raise UsageError(f"{file}: {exc.strerror or exc}", hint="give a file that you can read") from exc
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{file}: larger than {MAX_FILE_BYTES} bytes", hint="give the lines that set variables")
    if b"\0" in data:
        raise UsageError(f"{file}: is a binary file", hint="give a script, an environment file, an inventory or JSON")
    return data.decode("utf-8-sig", "replace")


def _lint_inventory(inventory: Inventory, document: Document, stated: Context) -> _Linted:
    """Lint each `env:` for the accelerators and networks of the nodes that it applies to, and the lines of `setup:`."""
    from orchestrator.lint.script import lint_combinations
    from orchestrator.lint.shell import read_shell

    findings: dict[tuple[int, str], LintFinding] = {}
    fixed = []
    for path, env, names in _sections(inventory, document):
        assignments = [
            Assignment(name, value, document.file, document.line((*path, name)), names)
            for name, value in env.items()
            if not is_secret(name)
        ]
        kinds = {(node.accelerator, node.network) for node in inventory.nodes if not names or node.name in names}
        for kind in sorted(kinds):
            for found in lint_assignments(assignments, _with_inventory(stated, {kind})):
                findings.setdefault((found.line, found.finding.text), found)
        findings |= {(found.line, found.finding.text): found for found in lint_combinations(assignments)}
        fixed += _fixed_section(path, env, findings.values())
    context = _with_inventory(stated, {(node.accelerator, node.network) for node in inventory.nodes})
    for index, line in enumerate(inventory.setup):
        script = read_shell(line, document.file)
        number = document.line(("setup", index))
        for found in lint_assignments(_public(script.assignments), context):
            findings[number, found.finding.text] = replace(found, line=number, start=None, end=None)
    return _Linted(document.file, tuple(findings.values()), "\n".join([*fixed, ""]) if fixed else "")


def _sections(
    inventory: Inventory, document: Document
) -> Iterator[tuple[FieldPath, Mapping[str, str], tuple[str, ...]]]:
    """Every `env:` of the file, with its path and the nodes that get it; no names: all nodes."""
    tree: Tree = document.tree
    assert isinstance(tree, dict)
    if inventory.env:
        yield ("env",), inventory.env, ()
    defaults = tree.get("defaults")
    if isinstance(defaults, dict) and isinstance(defaults.get("env"), dict):
        yield ("defaults", "env"), _texts(defaults["env"]), ()
    nodes = tree.get("nodes")
    for index, entry in enumerate(nodes if isinstance(nodes, list) else []):
        if isinstance(entry, dict) and isinstance(entry.get("env"), dict):
            yield ("nodes", index, "env"), _texts(entry["env"]), tuple(expand(str(entry["name"])))


def _texts(tree: Tree) -> dict[str, str]:
    return {name: str(value) for name, value in tree.items()} if isinstance(tree, dict) else {}


def _fixed_section(path: FieldPath, env: Mapping[str, str], findings: Iterable[LintFinding]) -> list[str]:
    """The lines of a corrected `env:`; empty if nothing changes. Secrets are named without their values."""
    by_name = {found.finding.check: found for found in findings if found.replacement is not None}
    if not by_name.keys() & env.keys():
        return []
    lines = [f"# {documents.dotted_path(path)}", "env:"]
    for name, value in env.items():
        found = by_name.get(name)
        if is_secret(name):
            lines.append(f"  # {name}: unchanged")
        elif found is None or found.replacement is None:
            lines.append(f"  {name}: {json.dumps(value, ensure_ascii=False)}")
        elif found.replacement:
            written, _, better = found.replacement.partition("=")
            lines.append(f"  {written}: {json.dumps(better, ensure_ascii=False)}")
        else:
            lines.append(f"  # {' '.join(found.finding.text.split())}")
    return lines
