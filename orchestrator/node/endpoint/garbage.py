"""
Garbage: run folders and bundles that are not needed any more, found by age and content, and removed.

Only folders of this user with the name of a run or a bundle, never through a symbolic link. In doubt a folder is kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time

from orchestrator.node.endpoint.results import Results
from orchestrator.node.protocol.operations import ACTIVE_RUNS, CLEAR, answers
from orchestrator.node.run.code_folder import KEPT
from orchestrator.node.run.events import read_history
from orchestrator.node.run.memory_folder import is_own_folder, remove_memory, unused_folders
from orchestrator.node.run.ownership import runs_with_processes
from orchestrator.node.run.run_folder import ATTEMPT, read_agent
from orchestrator.node.run.run_id import RUN_ID
from orchestrator.node.system.files import absolute_path, raise_unless_missing, read_json
from orchestrator.node.system.machine import boot_id, is_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from typing import Callable, Dict, Iterator, List, Optional, Set, Tuple

    from orchestrator.node.protocol.runs import (
        ActiveRunsReply,
        ActiveRunsRequest,
        ClearReply,
        ClearRequest,
        GarbageBody,
    )
    from orchestrator.node.run.agent_files import AgentBody

BUNDLE = re.compile(r"[0-9a-f]{32}\Z|\.new-")  # `.new-…` is left by an unfinished push
REMOVING = ".removing-"  # a folder is renamed before its removal: an incomplete bundle must not be used
HOLDS_RESULTS = "holds results"
FINAL = ("DONE", "FAILED", "STOPPED")  # not LOST: the run may be alive
NEVER_STARTED_S = 3600.0  # a launch pushes its bundle in less


class Size:
    """The content of a folder: bytes, the time of the newest write, and the results in it if it is that of a run."""

    def __init__(self, path: str, bundles: Optional[Sequence[str]] = None) -> None:
        """`bundles` are those of a run; None: the folder is no run's."""
        self.bytes = 0
        self.newest = os.lstat(path).st_mtime
        self.results = Results(path, bundles or ())
        for root, folders, files in os.walk(path, onerror=raise_unless_missing):  # unreadable: not removed
            parts = [] if root == path else os.path.relpath(root, path).split(os.sep)
            self.results.enter(parts, root, files)
            for name in folders + files:
                with contextlib.suppress(FileNotFoundError):  # a living run removes files
                    state = os.lstat(os.path.join(root, name))
                    if stat.S_ISREG(state.st_mode):
                        self.bytes += state.st_size // max(1, state.st_nlink)  # bundles share files
                    self.newest = max(self.newest, state.st_mtime)
                    if bundles is not None:
                        self.results.add([*parts, name], state)


def is_user_folder(path: str) -> bool:
    """False if it is a link, or if there is none."""
    with contextlib.suppress(FileNotFoundError):
        return is_own_folder(path)
    return False


@answers(CLEAR)
def clear(request: ClearRequest, _payload: bytes) -> Tuple[ClearReply, bytes]:
    """Remove ended runs and unused bundles older than older_than_s from a working folder, or only list them (dry_run)."""
    workdir = absolute_path(request["workdir"])
    clearing = Clearing(request["older_than_s"], results=request["results"], dry_run=request["dry_run"])
    runs = clearing.runs(os.path.join(workdir, "runs"))
    removed = {entry["name"] for entry in runs if entry["action"] == "remove"}
    return {"entries": runs + clearing.bundles(workdir, removed) + clearing.memory() + kept_entries(workdir)}, b""


class Clearing:
    """
    Removes folders, or only lists them (dry_run), and returns an entry for each. Without `results`, a run that has some stays.

    The action of an entry is "remove", "keep" (`why` is the reason), "young" (not old enough) or "fail" (`why` is the error).
    """

    def __init__(self, older_than_s: float, *, results: bool, dry_run: bool) -> None:
        self.older_than_s, self.results, self.dry_run = older_than_s, results, dry_run

    def runs(
        self, folder: str, only: Optional[Dict[str, str]] = None, forgotten: Container[str] = ()
    ) -> List[GarbageBody]:
        """
        Remove run folders.

        With `only` (name -> the reason to keep it, or empty), only those that it names. Of `forgotten` runs, no node exists any
        more: they are removed whatever their records say, but not results, where records and runs are in one folder.
        """
        active = runs_with_processes()

        def reason(path: str, size: Size) -> str:
            name = os.path.basename(path)
            if name in forgotten:
                why = "its processes are alive" if name in active else ""
            else:
                why = (only or {}).get(name) or reason_to_keep(path, active, time.time() - size.newest)
            return why or (HOLDS_RESULTS if size.results and not self.results else "")

        paths = [path for path in self._folders(folder, RUN_ID) if only is None or os.path.basename(path) in only]
        return [self._entry("run", path, reason) for path in paths]

    def bundles(self, workdir: str, removed: Set[str]) -> List[GarbageBody]:
        """Remove the bundles that no run folder refers to, except the `removed` ones."""
        needed, unknown = needed_bundles(os.path.join(workdir, "runs"), removed)

        def reason(path: str, _size: Size) -> str:
            return unknown or ("a run that is kept needs it" if os.path.basename(path) in needed else "")

        paths = list(self._folders(os.path.join(workdir, "bundles"), BUNDLE))
        return [self._entry("bundle", path, reason) for path in paths]

    def memory(self) -> List[GarbageBody]:
        """Remove what ended runs have left in the memory of this machine."""
        entries: List[GarbageBody] = []
        for path, age_s, size in list(unused_folders(self.older_than_s)):
            problem = "" if self.dry_run else remove_memory(path)
            entry = new_entry("memory", os.path.basename(path), path)
            entry.update({"bytes": size, "age_s": age_s, "action": "fail" if problem else "remove", "why": problem})
            entries.append(entry)
        return entries

    def _folders(self, folder: str, pattern: re.Pattern[str]) -> Iterator[str]:
        """The folders of this user in `folder` whose names match; removes those whose removal was interrupted."""
        for name in sorted(os.listdir(folder)) if is_user_folder(folder) else ():
            path = os.path.join(folder, name)
            if is_user_folder(path) and name.startswith(REMOVING) and not self.dry_run:
                remove_tree(path)
            elif is_user_folder(path) and pattern.match(name):
                yield path

    def _entry(self, kind: str, path: str, reason: Callable[[str, Size], str]) -> GarbageBody:
        """Remove one folder, unless it is young or there is a reason to keep it; return its entry."""
        entry = new_entry(kind, os.path.basename(path), path)
        try:
            bundles = [bundle for _, bundle in bundle_references(path) if bundle is not None]
            size = Size(path, bundles if kind == "run" else None)
            entry["bytes"] = size.bytes
            entry["result_bytes"], entry["results"] = size.results.bytes, size.results.names
            entry["age_s"] = max(0.0, time.time() - size.newest)
            if entry["age_s"] < self.older_than_s:
                entry["action"] = "young"
                return entry
            entry["why"] = reason(path, size)
            if entry["why"]:
                entry["action"] = "keep"
                return entry
            if not self.dry_run:
                renamed = os.path.join(os.path.dirname(path), REMOVING + os.path.basename(path))
                os.rename(path, renamed)
                remove_tree(renamed)
        except OSError as error:
            entry["action"] = "fail"
            entry["why"] = f"{error.filename}: {error.strerror}"
        return entry


def new_entry(kind: str, name: str, path: str) -> GarbageBody:
    """The entry of an empty folder that is removed."""
    return {
        "kind": kind,
        "name": name,
        "path": path,
        "bytes": 0,
        "result_bytes": 0,
        "results": [],
        "age_s": 0.0,
        "action": "remove",
        "why": "",
    }


def kept_entries(workdir: str) -> List[GarbageBody]:
    """An entry for each folder with kept folders (`keep:` in the inventory): none is ever removed, but each is named."""
    root = os.path.join(workdir, KEPT)
    entries: List[GarbageBody] = []
    for name in sorted(os.listdir(root)) if is_user_folder(root) else ():
        folder = os.path.join(root, name)
        for project in sorted(os.listdir(folder)) if is_user_folder(folder) else ():
            path = os.path.join(folder, project)
            size, entry = Size(path), new_entry("kept", f"{name}/{project}", path)
            entry.update({"bytes": size.bytes, "age_s": max(0.0, time.time() - size.newest)})
            entry.update({"action": "keep", "why": "by keep: of the inventory; remove it by hand"})
            entries.append(entry)
    return entries


def remove_tree(path: str) -> None:
    """Remove a folder, even if another machine removes it at the same time on a shared file system."""
    import shutil  # slow to import, and most connections remove nothing

    while os.path.lexists(path):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue


def reason_to_keep(path: str, active: Set[str], age_s: float) -> str:
    """The reason to keep a run: it may not have ended; empty if it has."""
    if os.path.basename(path) in active:
        return "its processes are alive"
    reason, has_record = reason_in_record(path)
    agents = list(agents_of(path))
    if reason or agents or has_record:
        return reason or next(filter(None, (unfinished(node, folder, agent) for node, folder, agent in agents)), "")
    if age_s < NEVER_STARTED_S:
        return "no agent has started in it yet"
    may_be_queued = any(os.path.exists(os.path.join(attempt, "submit.sbatch")) for attempt in attempts(path))
    return "no agent has started in it; it may still wait in Slurm's queue" if may_be_queued else ""


def reason_in_record(path: str) -> Tuple[str, bool]:
    """The reason to keep a run by its record, and whether there is one: a working folder may also be the folder of records."""
    file = os.path.join(path, "run.json")
    record = read_json(file)
    if record is None:
        exists = os.path.lexists(file)
        return ("its record cannot be read" if exists else ""), exists
    if record.get("state") not in FINAL:
        return f"its record is {record.get('state')}", True
    launching = record.get("launching")
    if launching is not None and is_alive(launching):
        return f"it is being launched by pid {launching['pid']}", True
    return "", True


def attempts(run: str) -> List[str]:
    return [os.path.join(run, name) for name in sorted(os.listdir(run)) if name.startswith(ATTEMPT)]


def agents_of(run: str) -> Iterator[Tuple[str, str, AgentBody]]:
    """Node, node folder and agent.json of every agent that ever started in a run folder."""
    for attempt in attempts(run):
        for node in sorted(os.listdir(attempt)):
            folder = os.path.join(attempt, node)
            agent = read_agent(folder) if is_user_folder(folder) else None
            if agent is not None:
                yield node, folder, agent


def unfinished(node: str, folder: str, agent: AgentBody) -> str:
    """The reason to assume that an agent is alive; empty if there is none."""
    if is_alive(agent):
        return f"its agent of {node} is alive"
    if agent.get("boot_id") == boot_id() or agent.get("hostname") == os.uname().nodename:
        return ""  # it has ended, or this machine has rebooted
    if read_history(folder).finished is not None:
        return ""
    return f"its agent of {node} recorded no end, and only {agent.get('hostname')} knows whether it is alive"


@answers(ACTIVE_RUNS)
def active_runs(request: ActiveRunsRequest, _payload: bytes) -> Tuple[ActiveRunsReply, bytes]:
    """The active runs with a folder in the working folder."""
    runs = os.path.join(absolute_path(request["workdir"]), "runs")
    return {"runs": sorted(run for run in runs_with_processes() if os.path.isdir(os.path.join(runs, run)))}, b""


def needed_bundles(runs: str, removed: Set[str]) -> Tuple[Set[str], str]:
    """Names of the bundles that the run folders refer to; and, if a run's bundle is unknown, the reason to keep all."""
    needed: Set[str] = set()
    names = sorted(set(os.listdir(runs)) - removed) if os.path.isdir(runs) else []
    for run in names:
        path = os.path.join(runs, run)
        for file, bundle in bundle_references(path) if os.path.isdir(path) else ():
            if bundle is None:
                return needed, f"{file} cannot be read, so the bundle that it needs is not known"
            needed.add(os.path.basename(bundle))
    return needed, ""


def bundle_references(run: str) -> Iterator[Tuple[str, Optional[str]]]:
    """The job file of each attempt and the bundle folder that it names; None if the file cannot be read."""
    for attempt in attempts(run):
        file = os.path.join(attempt, "job.json")
        if os.path.lexists(file):
            bundle = (read_json(file) or {}).get("bundle_dir")
            yield file, os.path.normpath(bundle) if isinstance(bundle, str) else None
