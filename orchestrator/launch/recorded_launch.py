"""
The launch of a run as its record keeps it, so that a process which supervises the run again can restart it.

The record has the plan, the code, and the variables without the values of secrets, which are read from the inventory again.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from orchestrator.code.bundle import Bundle
from orchestrator.endpoint.access import Terminal
from orchestrator.errors import LaunchError, OrchError, os_error_text
from orchestrator.inventory import model as inventories
from orchestrator.inventory.model import Inventory
from orchestrator.inventory.redaction import REDACTED
from orchestrator.launch.planned import Planned
from orchestrator.launch.preflight import checked_nodes
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.portable.names.hostlist import fold
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord
from orchestrator.version import __version__


def recorded_launch(folder: RunFolder, terminal: Terminal) -> Planned:
    """
    The launch of a run that another process has launched.

    Raises:
        OrchError: a part of it is missing, or another version of orch has launched the run.
    """
    record, plan = folder.read(), folder.read_plan()
    if record.versions.get("orch") != __version__:
        raise LaunchError(f"orch {record.versions.get('orch')} launched it, and this is orch {__version__}")
    bundle = _bundle(folder, plan)
    plan, warnings = _with_environment(folder, record, plan)
    checked = () if record.request.get("no_check") else checked_nodes(plan)
    return Planned(plan, bundle, record, (), warnings, terminal, {}, checked, plan.skipped)


def _bundle(folder: RunFolder, plan: LaunchPlan) -> Bundle:
    try:
        bundle = Bundle.from_archive(folder.bundle_file.read_bytes())
    except OSError as error:
        raise LaunchError(f"its code cannot be read: {os_error_text(error)}") from error
    except (tarfile.TarError, EOFError) as error:
        raise LaunchError(f"its code cannot be read: {folder.bundle_file} is damaged: {error}") from error
    if bundle.digest != plan.bundle:
        raise LaunchError(f"its code cannot be read: {folder.bundle_file} has another content than at the launch")
    return bundle


def _with_environment(folder: RunFolder, record: RunRecord, plan: LaunchPlan) -> tuple[LaunchPlan, tuple[str, ...]]:
    """The plan with the variables of all nodes, and warnings about secrets that may be others now."""
    recorded = folder.read_environment()
    nodes = (*plan.nodes, *plan.spares, *plan.replaced)
    if recorded is None or not recorded.keys() >= {node.name for node in nodes}:
        raise LaunchError("its variables are not in the record")
    names = {name for table in recorded.values() for name, text in table.items() if text == REDACTED}
    if typed := sorted(name for name in record.request.get("variables", {}) if name in names):
        raise LaunchError(f"the value of --env {fold(typed)} is a secret, which the record does not have")
    inventory = _inventory(record, names) if names else None
    warnings = () if inventory is None else tuple(_changes(record, inventory, names))

    def with_variables(node: NodePlan) -> NodePlan:
        found = {name: text for name, text in recorded[node.name].items() if node.defaults.get(name) != text}
        secrets = frozenset(name for name, text in found.items() if text == REDACTED)
        if inventory is not None and secrets:
            found |= _secret_values(inventory, node.name, secrets)
        return replace(node, env=found, secrets=secrets)

    nodes, spares, replaced = (tuple(map(with_variables, group)) for group in (plan.nodes, plan.spares, plan.replaced))
    return replace(plan, nodes=nodes, spares=spares, replaced=replaced), warnings


def _inventory(record: RunRecord, names: set[str]) -> Inventory:
    """The inventory of the launch, as it is now."""
    path = Path(record.code.get("folder", "/")) / record.inventory["file"]
    try:
        return inventories.load(path)
    except OrchError as error:
        raise LaunchError(f"the values of {fold(sorted(names))} cannot be read: {error}") from error


def _secret_values(inventory: Inventory, name: str, secrets: frozenset[str]) -> Mapping[str, str]:
    tables = [inventory.environment(node) for node in inventory.nodes if node.name == name]
    values = tables[0] if tables else {}
    if missing := sorted(secrets - values.keys()):
        raise LaunchError(f"{inventory.file} does not set {fold(missing)} for {name} any more")
    return {secret: values[secret] for secret in secrets}


def _changes(record: RunRecord, inventory: Inventory, names: set[str]) -> Iterator[str]:
    """A warning if the file with the values of secrets has changed since the launch: they are not recorded."""
    launched = datetime.fromisoformat(record.created).timestamp()
    changed = [file for file in inventory.env_files if Path(file).stat().st_mtime > launched]
    if record.inventory["digest"] != inventory.digest:
        changed.append(inventory.file)
    if changed:
        have = "has" if len(changed) == 1 else "have"
        yield (
            f"{' and '.join(changed)} {have} changed since the launch: a restart gives the ranks "
            f"the present values of {fold(sorted(names))}"
        )
