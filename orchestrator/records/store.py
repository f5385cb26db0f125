"""The records of all runs on this machine's disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from orchestrator.errors import RunNotFound, UsageError, os_error_text
from orchestrator.node.run.run_id import RUN_ID
from orchestrator.node.system.files import make_private_folder, working_folder
from orchestrator.records.files import (
    open_private,
    take_lock,
)
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord


@dataclass(frozen=True, slots=True)
class Store:
    """All runs of this user on this machine."""

    path: Path

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    def create(self, record: RunRecord) -> RunFolder:
        """Make the run's folder and write its first record; UsageError if the folder cannot be made."""
        folder = RunFolder(self.runs / record.id)
        try:
            working_folder(str(self.path))
            make_private_folder(str(self.runs))
            folder.path.mkdir(mode=0o700)
            with open_private(folder.change_lock, "a") as lock:
                take_lock(lock, 0.0)  # fails now if the file system has no locks
            folder.write(record)
        except OSError as exc:
            raise UsageError(f"cannot write the run's record: {os_error_text(exc)}", hint="set ORCH_HOME") from exc
        return folder

    def ids(self) -> list[str]:
        """The ids of all runs, oldest first by the second in the id; some may have no record."""
        try:
            names = [path.name for path in self.runs.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(filter(RUN_ID.fullmatch, names), key=second)

    def all(self) -> list[RunFolder]:
        """Every run, oldest first."""
        return [folder for group in self._by_second(self.ids()) for folder in group]

    def find(self, name: str) -> RunFolder:
        """A run by its id, a unique prefix of it, its name (the newest of that name) or `latest`; RunNotFound if not exactly one is."""
        if not name:  # such as an unset variable of a shell: every id begins with it
            raise RunNotFound("RUN is empty", hint="name a run, or `latest`; orch list shows all runs")
        if RUN_ID.fullmatch(name) and (known := RunFolder(self.runs / name)).record_file.is_file():
            return known
        ids = self.ids()
        newest = self._newest(ids)
        if newest is None:
            raise RunNotFound(f"no run in {self.path}", hint="start one with orch ssh-launch or orch submit")
        if name == "latest":
            return newest
        same_name = self._newest([run_id for run_id in ids if run_id.rsplit("-", 3)[0] == name])
        if same_name is not None:
            return same_name
        matches = [run_id for run_id in ids if run_id.startswith(name)]
        first_matches = list(islice(filter(_has_record, map(self.folder, matches)), 2))
        if len(first_matches) == 1:
            return first_matches[0]
        if first_matches:
            hint = "type more of the id"
            raise RunNotFound(f"{name!r} matches {len(matches)} runs, {matches[0]} among them", hint=hint)
        raise RunNotFound(f"no run {name!r} in {self.path}", hint="orch list shows all runs")

    def folder(self, run_id: str) -> RunFolder:
        """The folder of a run, which may not exist."""
        return RunFolder(self.runs / run_id)

    def _newest(self, ids: Sequence[str]) -> RunFolder | None:
        """The newest run of these, which are in the order of `ids`; None if none has a record."""
        return next((group[-1] for group in self._by_second(ids, newest_first=True)), None)

    def _by_second(self, ids: Sequence[str], *, newest_first: bool = False) -> Iterator[list[RunFolder]]:
        """The runs of each second that have a record, oldest first within a second."""
        for _, names in groupby(reversed(ids) if newest_first else ids, key=second):
            group = list(filter(_has_record, map(self.folder, names)))
            if group:  # reading the records of all runs would cost seconds on a network file system
                yield sorted(group, key=_created) if len(group) > 1 else group


def _has_record(folder: RunFolder) -> bool:
    """True if the folder has a record, or its content cannot be listed: reading the record then fails with the cause."""
    try:
        return folder.record_file.is_file()
    except OSError:
        return True


def second(run_id: str) -> str:
    _, day, second, _ = run_id.rsplit("-", 3)
    return day + second


def _created(folder: RunFolder) -> str:
    try:
        return folder.read().created
    except RunNotFound:
        return ""  # a run whose record is unreadable is listed too
