"""Read the events, the progress and the metrics of a run from its nodes, by this machine's clock."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodesError
from orchestrator.fanout import failed_nodes, map_parallel, successes
from orchestrator.launchers.base import AttemptFolder, Launcher
from orchestrator.node.run.events import EVENTS, REQUEUE, Kind, State, cause_s
from orchestrator.plan.plan import LaunchPlan
from orchestrator.usecases.reports.metrics_file import metrics_path, read_part
from orchestrator.usecases.reports.timeline import Attempt, Step, mean_utilization

EVENTS_BYTES = 1 << 18  # of a node: a hundred times what an attempt has
READ_BYTES = 1 << 26
METRICS_PART_BYTES = 1 << 22
METRICS_BYTES = 1 << 26  # the end of metrics.jsonl, some 200,000 steps
HANG = "hang"

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The records of one node about an attempt; add `correction_s` to the times of events and of the trainer."""

    observation: NodeObservation
    events: Sequence[Event]
    correction_s: float = 0.0

    def times(self, kind: str) -> list[float]:
        """The times of the events of a kind, by this machine's clock."""
        return [event["time"] + self.correction_s for event in self.events if event.get("event") == kind]


def read_attempts(launcher: Launcher, plan: LaunchPlan) -> tuple[list[Attempt], list[Step], NodesError | None]:
    """
    Read all attempts and the steps of the training.

    Returns:
        The attempts in order, the steps, and the error of the nodes that could not be read, if there are any.

    Raises:
        NodesError: no node can be read.
    """
    limit = int(plan.ssh["fanout"])
    attempts: list[Attempt] = []
    steps: list[Step] = []
    missing: NodesError | None = None
    newest = launcher.attempt()
    for number in range(1, newest + 1):
        folders = launcher.attempt_folders(number)
        outcomes = map_parallel(folders, _read_nodes, limit=limit)
        missing = failed_nodes(outcomes) or missing
        records = [record for outcome in outcomes if isinstance(outcome, list) for record in outcome]
        if not records:
            successes(outcomes)
        saved = next((attempt.saved for attempt in attempts[::-1] if attempt.saved is not None), 0)
        attempts.append(attempt_of(records, saved, is_last=number == newest))
        if number == newest:
            steps = _read_steps(folders, records, plan)
    return attempts, steps, missing


def _read_nodes(folder: AttemptFolder) -> list[NodeRecord]:
    observations = folder.endpoint.observe(folder.attempt_dir, folder.nodes)
    names = [f"{observation.node}/{EVENTS}" for observation in observations]
    ranges = dict.fromkeys(names, (0, EVENTS_BYTES))
    size = min(READ_BYTES, EVENTS_BYTES * len(names))
    chunks = {chunk.file: chunk for chunk in folder.endpoint.read(folder.attempt_dir, ranges, max_bytes=size)}
    records = []
    for observation, name in zip(observations, names, strict=True):
        chunk = chunks.get(name)
        events = [] if chunk is None else list(_objects(chunk.data))
        records.append(NodeRecord(observation, events, chunk.correction_s if chunk else 0.0))
    return records


def _objects(data: bytes) -> Iterator[Event]:
    """The JSON objects among the lines; the first and the last line may be cut."""
    for line in data.splitlines():
        with suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict) and isinstance(value.get("time"), int | float):
                yield value


def attempt_of(records: Sequence[NodeRecord], saved: int, *, is_last: bool) -> Attempt:
    """
    An attempt as its nodes have recorded it. One that is not the last and in which no agent ended was lost.

    Args:
        saved: the newest step that earlier attempts have saved; a program that does not report where it began resumed there.
    """
    finished: list[tuple[NodeRecord, Any]] = [  # the last event of each agent that has ended
        (record, event)
        for record in records
        for event in [event for event in record.events if event.get("event") == Kind.AGENT_FINISHED][-1:]
    ]
    failures = sorted(
        (cause_s(event) + record.correction_s, str((event.get("exit") or {}).get("kind")))
        for record, event in finished
        if event.get("state") == State.FAILED and (event.get("exit") or {}).get("code") != REQUEUE
    )
    progress = [value for record in records for value in record.observation.progress.values()]
    alive = [event["time"] + record.correction_s for record in records for event in record.events]
    failed = failures[0][0] if failures else None
    if failed is None and not finished and not is_last:
        failed = max(alive, default=None)
    main, correction_s = _main_progress(records)
    milestones = {name: time + correction_s for name, time in _numbers(main.get("times")).items()}
    numbers = _numbers(main)
    cards = [_numbers(record.observation.cards) for record in records]
    utilization = mean_utilization([(card.get("mean_percent"), int(card.get("samples", 0))) for card in cards])
    return Attempt(
        agent_started=min(_all(records, Kind.AGENT_STARTED), default=None),
        ranks_started=max(_all(records, Kind.RANK_STARTED), default=None),
        failed=failed,
        is_hang=bool(failures) and failures[0][1] == HANG,
        stopping=max((min(times) for record in records if (times := record.times(Kind.STOPPING))), default=None),
        ended=max((event["time"] + record.correction_s for record, event in finished), default=None),
        progress=max((_numbers(value).get("time", 0.0) for value in progress), default=None),
        milestones=milestones,
        resumed=int(numbers.get("resumed", saved)),
        step=max((int(_numbers(value).get("step", 0)) for value in progress), default=0),
        saved=max((int(value["saved"]) for value in map(_numbers, progress) if "saved" in value), default=None),
        saves=int(numbers.get("saves", 0)),
        save_s=numbers.get("save_s", 0.0),
        utilization_percent=utilization[0],
        utilization_samples=utilization[1],
    )


def _all(records: Sequence[NodeRecord], kind: str) -> list[float]:
    return [time for record in records for time in record.times(kind)]


def _main_progress(records: Sequence[NodeRecord]) -> tuple[Mapping[str, Any], float]:
    """The progress of rank 0, and the clock correction of that node."""
    found = ((record.observation.progress.get(0), record.correction_s) for record in records)
    return next(((progress, correction_s) for progress, correction_s in found if progress is not None), ({}, 0.0))


def _numbers(value: object) -> dict[str, float]:
    """The numbers in a mapping: any program may have written it."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: number for name, number in items if isinstance(number, int | float) and not isinstance(number, bool)}


def _read_steps(folders: Sequence[AttemptFolder], records: Sequence[NodeRecord], plan: LaunchPlan) -> list[Step]:
    """The end of metrics.jsonl of the shared trainer; none for another program, or if `out` is not in the run's folder."""
    path = metrics_path(plan)
    if path is None:
        return []
    correction_s = _main_progress(records)[1]
    for folder in folders:
        found = folder.endpoint.list_files(folder.attempt_dir, folder.nodes, path, cwd=plan.program.cwd or "")
        for files in found:
            parts, offset = [], max(0, files.size_bytes - METRICS_BYTES)
            while offset < files.size_bytes and (part := read_part(folder, files, offset, METRICS_PART_BYTES)):
                parts.append(part)
                offset += len(part)
            return [step for value in _objects(b"".join(parts)) for step in _step(value, correction_s)]
    return []


def _step(value: Event, correction_s: float) -> list[Step]:
    numbers = _numbers(value)
    if not {"step", "time", "step_time_s"} <= numbers.keys():
        return []
    return [Step(int(numbers["step"]), numbers["time"] + correction_s, numbers["step_time_s"])]
