"""Runs on this machine's disk: every file name of a run's record is spelled here, and nowhere else."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

from orchestrator.errors import RunNotFound, UsageError
from orchestrator.node.files import make_own, working_folder
from orchestrator.node.run_folder import RUN_ID
from orchestrator.plan import plan as plans
from orchestrator.plan.files import node_files
from orchestrator.plan.plan import LaunchPlan, redacted
from orchestrator.run import RunRecord

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
LOCK_WAIT_S = 1.0
LOCK_POLL_S = 0.002
RECORD_WAIT_S = 5.0  # a process that was stopped (SIGSTOP) during a change delays others no longer than this


def home(environ: Mapping[str, str]) -> Path:
    """$ORCH_HOME, by default ~/.orch."""
    return Path(environ.get("ORCH_HOME") or Path.home() / ".orch").expanduser().absolute()


class KeptRun(Protocol):
    """The record of a run, on disk or in memory."""

    @property
    def is_recorded(self) -> bool:
        """The run was launched on this machine, so its record, and its supervisor if any, are here."""
        ...

    def read(self) -> RunRecord: ...

    def read_plan(self) -> LaunchPlan: ...

    def change(self, change: Callable[[RunRecord], RunRecord]) -> RunRecord: ...

    def supervisor(self) -> str | None: ...

    def is_stop_requested(self) -> bool: ...


@dataclass(slots=True)
class UnrecordedRun:
    """A run that another machine launched, found on its nodes; its record is kept in memory."""

    record: RunRecord
    plan: LaunchPlan
    is_recorded: bool = False

    def read(self) -> RunRecord:
        """The record so far."""
        return self.record

    def read_plan(self) -> LaunchPlan:
        """The plan, as far as the nodes report it."""
        return self.plan

    def change(self, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
        """Replace the record."""
        self.record = change(self.record)
        return self.record

    def supervisor(self) -> str | None:
        """None: a supervisor on another machine cannot be seen from here."""
        return None

    def is_stop_requested(self) -> bool:
        """Unknown here; if signals ended its agents, assume that orch sent them."""
        return True


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run's record here: run.json and plan/."""

    path: Path

    @property
    def is_recorded(self) -> bool:
        """Always: this is the record."""
        return True

    @property
    def record_file(self) -> Path:
        """The run's record."""
        return self.path / "run.json"

    @property
    def change_lock(self) -> Path:
        """Locked while the record is changed."""
        return self.path / "run.lock"

    @property
    def plan_folder(self) -> Path:
        """Every rendered file of the run."""
        return self.path / "plan"

    @property
    def diff_file(self) -> Path:
        """What the user's code differed in from its commit."""
        return self.plan_folder / "code.diff"

    def read(self) -> RunRecord:
        """
        The record.

        Raises:
            RunNotFound: it is missing or cannot be read.
        """
        try:
            return RunRecord.from_json(json.loads(self.record_file.read_text("utf-8")))
        except (OSError, KeyError, TypeError, ValueError) as exc:
            raise RunNotFound(
                f"{self.record_file} cannot be read: {exc}", hint="orch list shows the readable runs"
            ) from exc

    def write(self, record: RunRecord) -> None:
        """Replace the record in one step."""
        write_file(self.record_file, json.dumps(record.to_json(), indent=1) + "\n")

    def update(self, **changes: Any) -> RunRecord:  # noqa: ANN401  fields of RunRecord, checked by replace()
        """Change some fields of the record."""
        return self.change(lambda record: replace(record, **changes))

    def change(self, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
        """Make a new record of the one that is there, while no other process does so; what changes nothing writes nothing."""
        if change(record := self.read()) == record:
            return record
        with _private(self.change_lock, "a") as lock:
            _lock(lock, RECORD_WAIT_S)
            changed = change(self.read())
            self.write(changed)
        return changed

    @contextmanager
    def supervision(self) -> Iterator[bool]:
        """
        Be the run's one supervisor, or be told that there is one already.

        The lock is the kernel's: it ends with the process, however that ends, and no pid has to be compared.
        """
        with _private(self._lock_file, "a+") as lock:
            is_ours = _lock(lock, LOCK_WAIT_S)
            if is_ours:
                lock.truncate(0)
                lock.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
                lock.flush()
            yield is_ours

    def supervisor(self) -> str | None:
        """Who supervises the run, in words; None when nobody does."""
        try:
            with self._lock_file.open("r", encoding="utf-8") as lock:
                return None if _lock(lock, 0.0, fcntl.LOCK_SH) else lock.read().strip() or "one that is just starting"
        except FileNotFoundError:
            return None

    def supervisor_log(self) -> IO[str]:
        """Where the supervisor's own output goes: empty as long as all is well."""
        return _private(self.path / "supervisor.log", "a")

    def add_event(self, event: str, text: str) -> None:
        """Add to what the supervisor saw and did, events.jsonl."""
        with _private(self.path / "events.jsonl", "a") as file:
            file.write(json.dumps({"time": time.time(), "event": event, "text": text}) + "\n")

    def request_stop(self) -> None:
        """Leave word that the user stops the run: in a file of its own, which nobody who writes the record can lose."""
        with _private(self._stop_file, "a"):
            pass

    def is_stop_requested(self) -> bool:
        """Whether `orch stop` was here: agents that end then were stopped by the user."""
        return self._stop_file.exists()

    @property
    def _stop_file(self) -> Path:
        return self.path / "stop-asked"

    @property
    def _lock_file(self) -> Path:
        return self.path / "supervisor.lock"

    def write_diff(self, diff: str) -> None:
        """Keep what the user's code differs in from its commit."""
        write_file(self.diff_file, diff)

    def read_plan(self) -> LaunchPlan:
        """
        The plan that was carried out, without environment values.

        Raises:
            RunNotFound: it is missing or cannot be read.
        """
        file = self.plan_folder / "plan.json"
        try:
            return plans.from_json(json.loads(file.read_text("utf-8")))
        except (OSError, KeyError, TypeError, ValueError) as exc:
            raise RunNotFound(f"{file} cannot be read: {exc}", hint="its nodes are not known without it") from exc

    def write_plan(self, plan: LaunchPlan) -> None:
        """Keep the plan and every file that it renders, without the values of secrets."""
        write_file(self.plan_folder / "plan.json", json.dumps(plans.to_json(plan), indent=1) + "\n")
        for node, files in node_files(redacted(plan)).items():
            for file in files:
                write_file(self.plan_folder / node / Path(file.path).name, file.text)


def _private(path: Path, mode: str) -> IO[str]:
    """Open a file that only its owner can read."""
    return open(path, mode, encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))


def _lock(file: IO[str], wait_s: float, kind: int = fcntl.LOCK_EX) -> bool:
    """
    Take the lock within wait_s; a process that only checks whether it is taken holds it for a moment.

    Raises:
        UsageError: the file system has no locks (Lustre without `-o flock`, NFS without lockd).
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOCK_POLL_S)
        except OSError as exc:
            if exc.errno not in NO_LOCKS:
                raise
            raise UsageError(
                f"the file system of {file.name} has no file locks: {exc.strerror}",
                hint="set ORCH_HOME to a folder on a local disk",
            ) from exc
        else:
            return True


def write_file(path: Path, text: str) -> None:
    """Write a private file in one step: whoever reads it sees the old or the new one, whole."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class Store:
    """All runs of this user on this machine."""

    path: Path

    def create(self, record: RunRecord) -> RunFolder:
        """
        Make the run's folder and write its record, before anything else happens.

        Raises:
            UsageError: the folder cannot be made.
        """
        folder = RunFolder(self.path / "runs" / record.id)
        try:
            working_folder(str(self.path))
            make_own(str(self.path / "runs"))
            folder.path.mkdir(mode=0o700)
            with _private(folder.change_lock, "a") as lock:
                _lock(lock, 0.0)  # finds out now whether the disk has locks
            folder.write(record)
        except OSError as exc:
            raise UsageError(f"cannot keep the run's record in {folder.path}: {exc}", hint="set ORCH_HOME") from exc
        return folder

    def all(self) -> list[RunFolder]:
        """Every run, oldest first."""
        runs = self.path / "runs"
        if not runs.is_dir():
            return []
        folders = [RunFolder(path) for path in runs.iterdir() if RUN_ID.fullmatch(path.name)]
        return sorted((f for f in folders if f.record_file.is_file()), key=_age)

    def find(self, name: str) -> RunFolder:
        """
        The run of that id, or unique prefix of ids, or name (its newest), or `latest`.

        Raises:
            RunNotFound: there is none, or the prefix fits several.
        """
        folders = self.all()
        if not folders:
            raise RunNotFound(f"no run in {self.path}", hint="start one with orch ssh-launch or orch submit")
        if name == "latest":
            return folders[-1]
        same_name = [folder for folder in folders if folder.path.name.rsplit("-", 3)[0] == name]
        if same_name:
            return same_name[-1]
        fitting = [folder for folder in folders if folder.path.name.startswith(name)]
        exact = [folder for folder in fitting if folder.path.name == name]
        if len(exact or fitting) == 1:
            return (exact or fitting)[0]
        if fitting:
            raise RunNotFound(
                f"{name!r} fits {len(fitting)} runs, {fitting[0].path.name} among them", hint="type more of the id"
            )
        raise RunNotFound(f"no run {name!r} in {self.path}", hint="orch list shows all runs")


def _age(folder: RunFolder) -> tuple[str, str]:
    """By the second of the id; runs of one second by the time in their records."""
    _, day, second, _ = folder.path.name.rsplit("-", 3)
    try:
        return day + second, folder.read().created
    except RunNotFound:
        return day + second, ""  # an unreadable record still takes its place in the list
