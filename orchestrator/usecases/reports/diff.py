"""The differences of two or more runs, from their records alone: code, command, environment, nodes, versions, inventory and results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.names.hostlist import fold, fold_by_value
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import find_run
from orchestrator.run import RunRecord

UNRECORDED = "not recorded"
RESULTS = ("steps", "first_loss", "last_loss", "tokens_per_s")
"""The results in `summary` of a record that a list of runs shows."""
TOPICS = ("code", "command", "environment", "nodes", "versions", "inventory", "results")
_OPTIONS = ("debug", "no_check", "skipped", "orphan_timeout_s", "isolation_timeout_s", "wait_for_nodes_s", "after")
_UNCOMPARED = {"checkpoint"}  # of the summary: a path with the run's id

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs; None: the run does not have it."""

    topic: str
    """One of TOPICS."""
    name: str
    first: object
    second: object

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The parts of a run's record that are compared."""

    folder: RunFolder
    record: RunRecord
    plan: LaunchPlan

    @classmethod
    def find(cls, name: str) -> RecordedRun:
        """The run of this name; RunNotFound if there is none, or its record or plan cannot be read."""
        return cls.of(find_run(name))

    @classmethod
    def of(cls, folder: RunFolder) -> RecordedRun:
        """Read the record and the plan; RunNotFound if one of them cannot be read."""
        return cls(folder, folder.read(), folder.read_plan())


def diff(first: RecordedRun, second: RecordedRun) -> list[Difference]:
    """The differences in the order in which causes are looked for; results last."""
    return [
        *_code(first, second),
        *_differences("command", _command(first), _command(second)),
        *_environment(first, second),
        *_differences("nodes", _nodes(first.plan), _nodes(second.plan)),
        *_differences("versions", _versions(first), _versions(second)),
        *_differences("inventory", first.record.inventory, second.record.inventory),
        *_differences("results", _results(first.record), _results(second.record)),
    ]


def compare(runs: Sequence[RecordedRun]) -> list[dict[str, object]]:
    """
    The values by which runs differ from the first one.

    Returns:
        Mappings with `topic`, `name` and the value of each run under its id, ordered by topic.
    """
    first, *later = runs
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for run in later:
        for difference in diff(first, run):
            key = difference.topic, difference.name
            if key not in rows:
                rows[key] = {"topic": key[0], "name": key[1], **{each.record.id: difference.first for each in runs}}
            rows[key][run.record.id] = difference.second
    return sorted(rows.values(), key=lambda row: TOPICS.index(str(row["topic"])))


def changed_files(first: Mapping[str, str] | None, second: Mapping[str, str] | None) -> Values:
    """The names of the files that differ, each with its change; the entry `files` if those of a run are not recorded."""
    if first is None or second is None:
        return {"files": UNRECORDED}
    names = sorted({*first, *second})
    changes = {name: "added" if name not in first else "removed" if name not in second else "changed" for name in names}
    return {name: change for name, change in changes.items() if first.get(name) != second.get(name)}


def _code(first: RecordedRun, second: RecordedRun) -> Iterator[Difference]:
    yield from _differences("code", _revision(first), _revision(second))
    if first.plan.bundle == second.plan.bundle:
        return
    for name, change in changed_files(first.folder.read_code(), second.folder.read_code()).items():
        has_first, has_second = change != "added", change != "removed"
        yield Difference("code", name, "present" if has_first else None, change if has_second else None)


def _revision(run: RecordedRun) -> Values:
    """The digest covers the agent and the trainer, too, so it differs between versions of orch."""
    code = run.record.code
    return {"digest": run.plan.bundle, "commit": run.plan.commit or code.get("commit"), "folder": code.get("folder")}


def _command(run: RecordedRun) -> Values:
    """Settings of the trainer one by one, the command line of another program as a whole."""
    plan, request = run.plan, run.record.request
    program = {"launcher": plan.launcher, "program": plan.program.kind, "module": plan.program.module}
    switches = {name: getattr(plan.program, name) for name in ("bare", "per_node", "until_head", "cwd")}
    if plan.program.kind == "trainer":
        words = {key: value for key, _, value in (word.partition("=") for word in plan.program.args)}
        arguments: Values = {**_flat(json.loads(plan.config or "{}")), **words}
    else:
        arguments = {"arguments": " ".join(plan.program.args)}
    options = {name: request[name] for name in _OPTIONS if name in request}
    setup = {"setup": " ; ".join(plan.setup)}
    return {**program, **switches, **arguments, **options, **setup, **_flat(dict(plan.slurm), "slurm.")}


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested tables as one, with names such as `model.layers`."""
    flat: dict[str, object] = {}
    for name, value in data.items():
        flat.update(_flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return flat


def _environment(first: RecordedRun, second: RecordedRun) -> Iterator[Difference]:
    before, after = _tables(first), _tables(second)
    if before is not None and after is not None:
        yield from _differences("environment", _by_name(before), _by_name(after))
    elif before is not None or after is not None:
        states = (UNRECORDED if tables is None else "recorded" for tables in (before, after))
        yield Difference("environment", "variables", *states)


def _tables(run: RecordedRun) -> dict[str, dict[str, str]] | None:
    """The variables of the nodes of the last attempt; None if they were not saved."""
    tables, names = run.folder.read_environment(), {node.name for node in run.plan.nodes}
    return tables and {node: table for node, table in tables.items() if node in names}


def _by_name(by_node: Mapping[str, Mapping[str, str]]) -> Values:
    """The value of each name, if all nodes have the same one; else the values with their nodes."""
    names = {name for table in by_node.values() for name in table}
    return {name: _common({node: table.get(name) for node, table in by_node.items()}) for name in sorted(names)}


def _common(values: Mapping[str, str | None]) -> str | None:
    """The value of all nodes, or each value with its nodes."""
    nodes_of = fold_by_value(values.items())
    if len(nodes_of) == 1:
        return next(iter(nodes_of))
    return ", ".join(f"{nodes}: {'unset' if value is None else value}" for value, nodes in nodes_of.items())


def _nodes(plan: LaunchPlan) -> Values:
    chosen = {} if plan.by_count else {"names": fold(node.name for node in plan.nodes)}
    addresses = {} if plan.by_count else {f"{node.name} address": node.address for node in plan.nodes}
    ranks = _common({node.name: str(len(node.ranks)) for node in plan.nodes[: plan.node_count]})
    return {**chosen, "count": plan.node_count, "world_size": plan.world_size, "ranks_per_node": ranks, **addresses}


def _versions(run: RecordedRun) -> Values:
    here = {f"{name} of the launch": text for name, text in run.record.versions.items()}
    software = run.folder.read_software()
    return {**here, **({"programs of the nodes": UNRECORDED} if software is None else _by_name(software))}


def _results(record: RunRecord) -> Values:
    exit_ = str(record.exit) if record.exit else None
    outcome = {"state": record.state.value, "attempts": record.attempt, "exit": exit_}
    summary = {name: value for name, value in record.summary.items() if name not in _UNCOMPARED}
    return {**outcome, "seconds": seconds_to_end(record), **summary}


def seconds_to_end(record: RunRecord) -> float | None:
    """The time from the launch to the end, with the time in the queue; None if the end is not known."""
    try:
        return (datetime.fromisoformat(record.ended or "") - datetime.fromisoformat(record.created)).total_seconds()
    except ValueError:
        return None


def _differences(topic: str, first: Values, second: Values) -> Iterator[Difference]:
    for name in dict.fromkeys([*first, *second]):
        values = first.get(name), second.get(name)
        if values[0] != values[1]:
            yield Difference(topic, name, *values)
