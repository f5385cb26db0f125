"""The folder of a run in the store: its record and its other files. The only module that spells their names."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

from orchestrator.errors import FULL_DISK, RunNotFound
from orchestrator.node.system.files import tail
from orchestrator.plan import plan as plans
from orchestrator.plan.files import node_files
from orchestrator.plan.plan import LaunchPlan, redacted
from orchestrator.records.files import (
    json_object,
    json_or_none,
    open_private,
    read_by_node,
    take_lock,
    write_by_node,
    write_file,
)
from orchestrator.run import RunRecord, RunState
from orchestrator.stored import MissingFields
from orchestrator.version import __version__

LOCK_WAIT_S = 1.0
# Files in a run's folder, the first three of them in the folder of the plan.
PLAN, ENVIRONMENT, CODE = "plan.json", "environment.json", "code.json"
STATS, SOFTWARE, STOP, LOCK = "stats.json", "software.json", "stop-asked", "supervisor.lock"
REPORTER_LOCK = "reporter.lock"
OBSERVED = "observed.json"
EVENTS_BYTES = 1 << 16
RECORD_WAIT_S = 5.0  # the longest delay by a process that is stopped (SIGSTOP) while it changes the record


@dataclass(frozen=True, slots=True)
class SupervisorProcess:
    """The process that supervises a run; without a pid as long as it is starting."""

    pid: int | None = None
    host: str = ""

    def __str__(self) -> str:
        return "one that is starting" if self.pid is None else f"pid {self.pid} on {self.host}"

    @classmethod
    def parse(cls, text: str) -> SupervisorProcess:
        """Read the form that `str` returns."""
        found = re.fullmatch(r"pid (\d+) on (.+)", text.strip())
        return cls() if found is None else cls(int(found[1]), found[2])


class KeptRun(Protocol):
    """The record of a run, on disk or in memory."""

    @property
    def is_recorded(self) -> bool:
        """True if the run was launched on this machine, so that its record and its supervisor are here."""
        ...

    def read(self) -> RunRecord: ...

    def read_plan(self) -> LaunchPlan: ...

    def change(self, change: Callable[[RunRecord], RunRecord]) -> RunRecord: ...

    def supervisor(self) -> SupervisorProcess | None: ...

    def is_stop_requested(self) -> bool: ...


@dataclass(slots=True)
class UnrecordedRun:
    """A run without a record here that can be read, found on its nodes or by its plan; its record is kept in memory."""

    record: RunRecord
    plan: LaunchPlan
    is_recorded: bool = False

    @classmethod
    def of(cls, plan: LaunchPlan) -> UnrecordedRun:
        """The run of this plan, which has started, and is taken as running."""
        unknown: dict[str, Any] = {"request": {}, "inventory": {}, "code": {}, "versions": {}}
        return cls(RunRecord(plan.run_id, plan.launcher, RunState.RUNNING, "", started=True, **unknown), plan)

    def read(self) -> RunRecord:
        return self.record

    def read_plan(self) -> LaunchPlan:
        """The plan, as far as the nodes report it."""
        return self.plan

    def change(self, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
        self.record = change(self.record)
        return self.record

    def supervisor(self) -> SupervisorProcess | None:
        """None: this machine cannot find out whether a supervisor runs on another one."""
        return None

    def is_stop_requested(self) -> bool:
        """True: unknown here, so assume that signals which ended its agents were sent by `orch stop`."""
        return True


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run's record."""

    path: Path

    @property
    def is_recorded(self) -> bool:
        return True

    @property
    def record_file(self) -> Path:
        return self.path / "run.json"

    @property
    def change_lock(self) -> Path:
        """The file that is locked while the record is changed."""
        return self.path / "run.lock"

    @property
    def plan_folder(self) -> Path:
        return self.path / "plan"

    @property
    def diff_file(self) -> Path:
        """The diff of the code against its commit."""
        return self.plan_folder / "code.diff"

    def read(self) -> RunRecord:
        """Read the record, written by any version of orch; RunNotFound if it is missing or cannot be read."""
        try:
            return RunRecord.from_json(json_object(self.record_file))
        except (OSError, KeyError, TypeError, ValueError) as exc:
            raise self._unreadable(self.record_file, exc) from exc

    def write(self, record: RunRecord) -> None:
        """Replace the record atomically."""
        write_file(self.record_file, json.dumps(record.to_json(), indent=1) + "\n")

    def update(self, **changes: Any) -> RunRecord:  # fields of RunRecord, checked by replace()
        return self.change(lambda record: replace(record, **changes))

    def change(self, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
        """Apply `change` to the record under the lock, and return the result; write nothing if nothing changes."""
        if change(record := self.read()) == record:
            return record
        with open_private(self.change_lock, "a") as lock:
            take_lock(lock, RECORD_WAIT_S)
            changed = change(self.read())
            self.write(changed)
            if changed.state.ended:  # the archive of the code is needed no more
                self.bundle_file.unlink(missing_ok=True)
        return changed

    @contextmanager
    def supervision(self) -> Iterator[bool]:
        """Take the lock of the run's only supervisor; yields False if another process has it."""
        with self._held(LOCK) as is_ours:
            yield is_ours

    @contextmanager
    def reporting(self) -> Iterator[bool]:
        """Take the lock of the only process that runs the hooks of a job of Slurm; yields False if another process has it."""
        with self._held(REPORTER_LOCK) as is_ours:
            yield is_ours

    @contextmanager
    def _held(self, name: str) -> Iterator[bool]:
        # a lock of the kernel: it ends with the process, however the process ends, and no pids are compared
        with open_private(self.path / name, "a+") as lock:
            is_ours = take_lock(lock, LOCK_WAIT_S)
            if is_ours:
                with suppress(OSError):  # a full disk must not end the supervision; the file has no pid then
                    lock.truncate(0)
                    os.write(lock.fileno(), f"{SupervisorProcess(os.getpid(), socket.gethostname())}\n".encode())
            yield is_ours

    def supervisor(self) -> SupervisorProcess | None:
        return self._holder(LOCK)

    def reporter(self) -> SupervisorProcess | None:
        """The process that runs the hooks of a job of Slurm."""
        return self._holder(REPORTER_LOCK)

    def _holder(self, name: str) -> SupervisorProcess | None:
        try:
            with (self.path / name).open("r", encoding="utf-8") as lock:
                return None if take_lock(lock, 0.0, fcntl.LOCK_SH) else SupervisorProcess.parse(lock.read())
        except FileNotFoundError:
            return None

    def supervisor_log(self) -> IO[str]:
        """Open the file of the supervisor's output for appending; it stays empty unless the supervisor fails."""
        return open_private(self.path / "supervisor.log", "a")

    @property
    def hook_log_file(self) -> Path:
        return self.path / "hooks.log"

    def add_event(self, event: str, text: str) -> None:
        """Append to events.jsonl, the supervisor's observations and actions; nothing if the disk is full."""
        line = json.dumps({"time": time.time(), "event": event, "text": text}) + "\n"
        try:
            with open_private(self.path / "events.jsonl", "a") as file:
                file.write(line)
        except OSError as exc:
            if exc.errno not in FULL_DISK:
                raise

    def events(self) -> list[dict[str, Any]]:
        """The last of the supervisor's observations and actions, oldest first: time, event and text; empty if they cannot be read."""
        lines = list[str]()
        with suppress(OSError):
            lines = tail(str(self.path / "events.jsonl"), EVENTS_BYTES).splitlines()
        return [event for event in map(_event, lines) if event is not None]

    def keep_observations(self, observations: Mapping[str, tuple[float, Mapping[str, Any]]], attempt: int) -> None:
        """
        Keep the newest observation of nodes as JSON, with its time: it is shown while a node does not answer.

        Those of other nodes of the same attempt stay. Nothing is kept if the disk is full.
        """
        text = json.dumps({"attempt": attempt, "nodes": {**self.kept_observations(attempt), **observations}})
        with suppress(OSError):
            write_file(self.path / OBSERVED, text, sync=False)

    def kept_observations(self, attempt: int) -> dict[str, tuple[float, dict[str, Any]]]:
        """The kept observations of the nodes of this attempt, with their times."""
        kept = json_or_none(self.path / OBSERVED) or {}
        if kept.get("attempt") != attempt:
            return {}
        return {name: (float(at_s), node) for name, (at_s, node) in kept["nodes"].items()}

    def request_stop(self) -> None:
        """Record that the user stops the run; in its own file, so that a process that rewrites the record cannot lose it."""
        with open_private(self.path / STOP, "a"):
            pass

    def is_stop_requested(self) -> bool:
        """True after `orch stop`: agents that end then were stopped by the user."""
        return (self.path / STOP).exists()

    @property
    def queries(self) -> Path:
        """The folder of queries to the owner of the run (supervision/queries.py)."""
        return self.path / "queries"

    def write_diff(self, diff: str) -> None:
        write_file(self.diff_file, diff)

    def write_code(self, digests: Mapping[str, str]) -> None:
        write_file(self.plan_folder / CODE, json.dumps(digests, indent=1) + "\n", sync=False)

    def read_code(self) -> dict[str, str] | None:
        """The digests of the files of the code; None if they were not saved."""
        return json_or_none(self.plan_folder / CODE)

    @property
    def bundle_file(self) -> Path:
        """The archive of the code, which is kept until the run ends if another process may have to restart it."""
        return self.plan_folder / "bundle.tar.gz"

    def write_bundle(self, archive: bytes) -> None:
        write_file(self.bundle_file, archive, sync=False)

    def write_software(self, versions: Mapping[str, Mapping[str, str]]) -> None:
        write_by_node(self.path / SOFTWARE, versions)

    def read_software(self) -> dict[str, dict[str, str]] | None:
        """The versions of programs by node; None if they were not saved, as without a check before the start."""
        return read_by_node(self.path / SOFTWARE)

    def read_environment(self) -> dict[str, dict[str, str]] | None:
        """The variables that the ranks of each node get, with the values of secrets hidden; None if they were not saved."""
        return read_by_node(self.plan_folder / ENVIRONMENT)

    def write_stats(self, times: Mapping[str, Any]) -> None:
        """Keep the measured times of a run that is over."""
        write_file(self.path / STATS, json.dumps(times, indent=1) + "\n", sync=False)

    def read_stats(self) -> dict[str, Any] | None:
        return json_or_none(self.path / STATS)

    def write_findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        write_file(self.path / "findings.json", json.dumps(findings, indent=1) + "\n", sync=False)

    def read_plan(self) -> LaunchPlan:
        """Read the plan that was carried out, written by any version, without environment values; RunNotFound if it cannot be read."""
        try:
            return plans.from_json(json_object(self.plan_folder / PLAN))
        except (OSError, KeyError, TypeError, ValueError) as exc:
            raise self._unreadable(self.plan_folder / PLAN, exc) from exc

    def write_plan(self, plan: LaunchPlan) -> None:
        """Save the plan, the environment and every file that the plan renders, without the values of secrets."""
        write_file(self.plan_folder / PLAN, json.dumps(plans.to_json(plan), indent=1) + "\n")
        plan = redacted(plan)
        nodes = (*plan.nodes, *plan.spares, *plan.replaced)
        write_by_node(self.plan_folder / ENVIRONMENT, {node.name: {**node.defaults, **node.env} for node in nodes})
        for node, files in node_files(plan).items():
            for file in files:
                write_file(self.plan_folder / node / Path(file.path).name, file.text, sync=False)  # many; for a person

    def _unreadable(self, file: Path, exc: Exception) -> RunNotFound:
        """The error for a file of this folder that is missing, damaged, or lacks what this version needs."""
        if isinstance(exc, OSError):
            reason = exc.strerror or str(exc)
        elif isinstance(exc, MissingFields):
            reason = f"{exc}; it was written by orch {self._version()}, and this is orch {__version__}"
        else:
            reason = f"it is damaged: {exc}"
        return RunNotFound(f"{file} cannot be read: {reason}", hint=f"orch stop {self.path.name} -i INVENTORY ends it")

    def _version(self) -> str:
        """The version of orch that wrote the record, as far as it is known."""
        try:
            return str(json_object(self.record_file)["versions"]["orch"])
        except (OSError, KeyError, TypeError, ValueError):
            return "of an unknown version"


def _event(line: str) -> dict[str, Any] | None:
    """An event of events.jsonl; None for a line that is cut."""
    with suppress(ValueError, KeyError, TypeError):
        event = json.loads(line)
        return {"time": float(event["time"]), "event": str(event["event"]), "text": str(event["text"])}
    return None
