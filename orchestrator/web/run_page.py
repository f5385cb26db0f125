"""The values of the pages: the list of runs, and of one run its record, overview, curves and log."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.endpoint.access import Terminal
from orchestrator.errors import OrchError, RunNotFound
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.logs.lines import LogLines
from orchestrator.plan.plan import LaunchPlan
from orchestrator.records.files import write_file
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import all_runs
from orchestrator.run import RunEntry, RunRecord
from orchestrator.usecases.reports.curves import Curves, MetricsReader
from orchestrator.usecases.reports.log_reader import LogReader
from orchestrator.usecases.reports.logs import Filter, batch_log, selection
from orchestrator.usecases.runs.look import Looks, Overview, Training, recorded
from orchestrator.verdict.live_run import LiveRun
from orchestrator.web.feeds import Reading, Source
from orchestrator.web.files import whole_page

LOOK_S = 2.0
RECORD_S = 1.0  # a file on this machine
MOST_RUNS = 200
MOST_LINES = 1000
MOST_CHARACTERS = 4000  # of a line of a log


class Row(Protocol):
    """A row of the table of nodes: a node, a rank or a card."""

    @property
    def node(self) -> str: ...

    @property
    def cells(self) -> Mapping[str, str]: ...

    @property
    def is_bad(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Wording:
    """The texts of `orch status` and `orch top`, so that a page and a terminal show the same words."""

    values: Callable[[Overview], Iterable[tuple[str, str]]]
    rows: Callable[[Overview, frozenset[str]], Iterable[Row]]
    columns: Sequence[str]
    failure: Callable[[RunRecord], Iterable[str]]


@dataclass(frozen=True, slots=True)
class LogFilter:
    """The lines of a log to show: the last `count` with this text, of these ranks."""

    count: int = 200
    ranks: str = ""
    text: str = ""

    def as_filter(self) -> Filter:
        return Filter(ranks=self.ranks or None, pattern=re.escape(self.text) if self.text else None)


class RunList:
    """The newest runs, from their records: no node is queried."""

    def __init__(self) -> None:
        self._ended: dict[RunEntry, Mapping[str, Any]] = {}

    def source(self) -> Source:
        return Source(self.read, LOOK_S)

    def read(self) -> Reading:
        runs, damaged = all_runs()
        rows = [row for folder, entry in runs[: -MOST_RUNS - 1 : -1] if (row := self._row(folder, entry)) is not None]
        return Reading({"runs": rows, "count": len(runs), "problem_records": damaged})

    def _row(self, folder: RunFolder, entry: RunEntry) -> Mapping[str, Any] | None:
        if entry in self._ended:
            return self._ended[entry]
        try:
            found = recorded(folder, time.time())
        except RunNotFound:  # removed, or damaged, which the list reports
            return None
        record, training = found.record, found.overview.training
        row = {
            **_head(record),
            "verdict": found.verdict,
            "step": None if training is None else training.step,
            "steps": None if training is None else training.steps,
            "looked_s": found.looked_s,
            "sweep": record.sweep,
        }
        if record.state.ended:
            self._ended[entry] = row
        return row


class RunPage:
    """Reads one run. The log and the curves share connections to its nodes, which are closed when nobody views them."""

    def __init__(self, folder: RunFolder, wording: Wording, *, may_prompt: bool = False) -> None:
        """Read a run; `may_prompt`: logins may ask the user on the terminal."""
        self._folder, self._wording, self._may_prompt = folder, wording, may_prompt
        self._lock = threading.Lock()
        self._users = 0
        self._launcher: Launcher | None = None
        self._attempt = 0
        self._metrics = MetricsReader()
        self._looked = Curves()
        """The curves of the steps that the looks have shown, for programs without metrics.jsonl."""

    def record(self) -> Source:
        """The source of the state, the outcome and the diagnosis."""
        return Source(self._read_record, RECORD_S)

    def overview(self) -> Source:
        """The source of the verdict, the values, the nodes and the timeline: one look at the nodes per interval."""
        looks = Looks(self._folder)
        return Source(lambda: self._read_overview(looks), LOOK_S)

    def curves(self) -> Source:
        self._retain()
        return Source(self._read_curves, LOOK_S, self._release)

    def log(self, wanted: LogFilter) -> Source:
        """The source of the last lines that the filter lets through."""
        self._retain()
        return Source(lambda: self._read_log(wanted), LOOK_S, self._release)

    def complete(self, wanted: LogFilter) -> dict[str, Mapping[str, Any]]:
        """All values of the page, once."""
        sources = {
            "record": self.record(),
            "overview": self.overview(),
            "curves": self.curves(),
            "log": self.log(wanted),
        }
        found = {}
        for name, source in sources.items():
            try:
                while (reading := source.read()).has_more:
                    pass
                found[name] = reading.value
            except OrchError as error:  # the rest is shown all the same
                found[name] = {"problem": str(error)}
            finally:
                source.close()
        return found

    def _read_record(self) -> Reading:
        record = self._folder.read()
        value = {**_head(record), "diagnosis": list(self._wording.failure(record))}
        return Reading(value, is_final=record.state.final)

    def _read_overview(self, looks: Looks) -> Reading:
        found = looks.look(may_prompt=self._may_prompt).overview
        if found.training is not None:
            self._looked.add([_step(found.training)])
        rows = self._wording.rows(found, frozenset(node.node for node in found.nodes))
        value = {
            "at_s": time.time(),
            "health": found.health,
            "verdict": found.verdict,
            "values": [[label, text] for label, text in self._wording.values(found) if text],
            "columns": list(self._wording.columns),
            "rows": [{"node": row.node, "cells": row.cells, "bad": row.is_bad} for row in rows],
            "findings": [{"text": each.text, "age_s": each.age_s} for each in found.findings],
            "moments": [{"time_s": each.time_s, "text": each.text} for each in found.moments],
        }
        return Reading(value, is_final=found.is_over)

    def _read_curves(self) -> Reading:
        record = self._folder.read()
        if not record.started:  # its nodes have nothing to read, and may never answer
            return Reading({"curves": {}, "whole": True, "from_looks": False}, is_final=record.state.final)
        launcher, plan = self._connected()
        has_more = self._metrics.read(launcher, plan)
        curves = self._metrics.curves if self._metrics.is_found else self._looked
        value = {"curves": curves.to_json(), "whole": not has_more, "from_looks": not self._metrics.is_found}
        return Reading(value, is_final=record.state.final and not has_more, has_more=has_more)

    def _read_log(self, wanted: LogFilter) -> Reading:
        record = self._folder.read()
        if not record.started:
            return Reading({"lines": []}, is_final=record.state.final)
        launcher, plan = self._connected()
        chosen = selection(wanted.as_filter(), plan, time.time(), has_routine=False)
        lines = _Lines()
        reader = LogReader(launcher, plan, lines, chosen, only_wanted_nodes=True)
        reader.past(tail=wanted.count, unfinished=True)
        if not reader.has_every_agent and wanted.ranks == wanted.text == "":
            lines.write(batch_log(launcher, chosen, wanted.count))
        problem = "; ".join(map(str, reader.unreadable.values()))
        return Reading({"lines": lines.rows, **({"unread": problem} if problem else {})}, is_final=record.state.final)

    def _connected(self) -> tuple[Launcher, LaunchPlan]:
        """The launcher of the newest attempt, which keeps its connections from one reading to the next."""
        with self._lock:
            plan = self._folder.read_plan()
            if self._launcher is not None and plan.attempt != self._attempt:
                self._launcher.close()
                self._launcher = None
            if self._launcher is None:
                self._launcher = launcher_for(plan, Terminal(may_prompt=self._may_prompt))
                self._attempt = plan.attempt
            return self._launcher, plan

    def _retain(self) -> None:
        with self._lock:
            self._users += 1

    def _release(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._launcher is not None:
                with closing(self._launcher):
                    self._launcher = None


def write_page(file: Path, page: RunPage) -> None:
    """Write the page of a run as it is now to one file, mode 0600."""
    written = time.strftime("%Y-%m-%d %H:%M:%S")
    write_file(file, whole_page({**page.complete(LogFilter(MOST_LINES)), "written": written}))


class _Lines:
    """The lines that a LogReader shows, as rows of the page: time, node, rank, stream and text."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []

    def write(self, lines: Iterable[LogLines]) -> None:
        for group in lines:
            for text in group.text.split("\n"):
                self.rows.append([group.time, group.node, group.rank, group.stream, text[:MOST_CHARACTERS]])

    def inform(self, text: str) -> None:
        """Messages about connections have another place on the page."""

    warn = inform

    def show(self, live: LiveRun | None) -> None:
        """The page has an overview."""


def _head(record: RunRecord) -> dict[str, Any]:
    """The part of a record that both the list and the page of a run show."""
    return {
        "id": record.id,
        "state": record.state.value,
        "launcher": record.launcher,
        "created": record.created,
        "ended": record.ended,
        "note": record.note,
        "tags": list(record.tags),
        "message": record.message,
        "is_over": record.state.final,
    }


def _step(training: Training) -> dict[str, Any]:
    """The training as a line of metrics.jsonl has it."""
    rate = training.rate
    return {"step": training.step, "loss": training.loss, **({f"{rate[1]}_per_s": rate[0]} if rate else {})}
