"""Diagnose a run from the logs on its nodes, where they are searched, from its batch log and its record."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.evidence import Evidence, Hit, LogSearch, Origin, patterns_of
from orchestrator.diagnosis.rank_causes import RECORD, Diagnosis, rank_causes
from orchestrator.diagnosis.signature import Signature
from orchestrator.errors import OrchError, Unreachable
from orchestrator.fanout import failed_nodes, map_parallel, map_within
from orchestrator.inventory.proposed import with_inventory
from orchestrator.launchers.base import AttemptFolder, Launcher
from orchestrator.node.search import KERNEL_LOG
from orchestrator.portable.names.hostlist import fold_by_value
from orchestrator.progress import OnProgress, no_progress
from orchestrator.records.cache.nodes import keep_cause
from orchestrator.records.run_folder import KeptRun
from orchestrator.records.runs import find_run
from orchestrator.run import RankExit, RunRecord
from orchestrator.usecases.diagnose.context import changes_since_success, findings_of, with_module_path
from orchestrator.usecases.diagnose.log_files import Diagnosed, user_signatures
from orchestrator.usecases.reports.logs import BATCH_LOG_BYTES, recorded_run
from orchestrator.verdict.classify import diagnosed
from orchestrator.verdict.positions import positions

if TYPE_CHECKING:
    from orchestrator.node.protocol.output import LogBody, SearchReply
    from orchestrator.node.run.agent_files import RankBody

MAX_FILE_BYTES = 1 << 30
SEARCH_S = 20.0
"""The nodes search for this long at most."""
LATE = "no answer in time"
MOST_LAST_LINES = 3
"""The number of last output lines of the first failing rank that a diagnosis without a cause shows."""
_RESTART_FAILURE = re.compile(r"(?:^|; )attempt \d+ could not be started: .*", re.DOTALL)
"""Follows the cause of a failure in the record (supervision/restart.py)."""

R = TypeVar("R")


def diagnose_run(name: str, signatures_file: Path | None, on_progress: OnProgress = no_progress) -> Diagnosed:
    """
    Diagnose a run of this machine; if it has failed and all nodes answer, the result replaces that in its record.

    Raises:
        RunNotFound: there is no such run, or more than one.
        UsageError: the signatures are wrong.
        NodesError: no node can be reached.
    """
    signatures = CATALOGUE | user_signatures(signatures_file)
    run, launcher = recorded_run(name, on_progress)
    with closing(launcher):
        if run.read().started:
            launcher.attempt_folders(launcher.attempt())  # connects to all nodes, with progress
        found = diagnosis_of(run, launcher, signatures, search_s=SEARCH_S)
    if found.missing is None or run.read().is_undiagnosed:
        with suppress(OSError):  # a full disk
            record_diagnosis(run, found)
    folder = find_run(name)
    success, changes = changes_since_success(folder)
    findings = findings_of(folder, found.diagnosis.nodes)
    return replace(found, findings=findings, success=success, changes=tuple(changes))


def diagnosis_of(
    run: KeptRun,
    launcher: Launcher,
    signatures: Mapping[str, Signature],
    *,
    search_s: float,
    wait_s: float | None = None,
) -> Diagnosed:
    """Diagnose a run: a node searches its logs for `search_s` at most, and all machines are waited for `wait_s`, by default unlimited."""
    record, plan = run.read(), run.read_plan()
    deadline = None if wait_s is None else time.monotonic() + wait_s
    results: Sequence[SearchReply | OrchError] = ()
    if record.started:
        is_over = record.state.ended and not plan.by_scheduler
        results = _search_nodes(launcher, signatures, search_s=search_s, deadline=deadline, is_over=is_over)
    found_log = _within(deadline, partial(launcher.batch_log, BATCH_LOG_BYTES))
    current = () if record.state.ended or not record.started else _positions(launcher)
    missing = failed_nodes(results)
    replies = [result for result in results if not isinstance(result, OrchError)]
    bodies = [body for reply in replies for body in reply["logs"]]
    remarks = [remark for reply in replies for remark in reply["remarks"]]
    is_partial = missing is not None or found_log is None or any(reply["is_partial"] for reply in replies)
    evidence = Evidence(world_size=plan.world_size, is_partial=is_partial)
    search = LogSearch(signatures)
    for body in bodies:
        evidence += _evidence_of(body, search)
    if found_log is not None and found_log[0] is not None:
        evidence += search.evidence([found_log[0].of_last_attempt.encode()], "batch log")
    evidence += _evidence_of_record(record, search)
    diagnosis = with_last_lines(with_module_path(rank_causes(evidence), run), record.exit)
    file = record.inventory.get("file")
    return Diagnosed(
        replace(diagnosis, remedy=tuple(with_inventory(step, file) for step in diagnosis.remedy)),
        tuple(dict.fromkeys(f"{body['node']}/{body['name']}" for body in bodies)),
        sum(body["bytes"] for body in bodies),
        run=record.id,
        state=record.state.value,
        remarks=folded_remarks(remarks),
        missing=missing,
        positions=current,
    )


def with_last_lines(found: Diagnosis, exit_: RankExit | None) -> Diagnosis:
    """Without a cause, with what the rank that failed first wrote last: `sys.exit(TEXT)` writes a text that no signature knows."""
    if found.cause or exit_ is None:
        return found
    lines = [line.strip() for line in exit_.lines if line.strip()][-MOST_LAST_LINES:]
    known = {hit.origin.text for hit in found.errors}
    origins = [Origin(line, exit_.node, exit_.rank) for line in lines if line not in known]
    last = (Hit(CATALOGUE["error-text"], "last lines", 0, origin) for origin in origins)
    return replace(found, errors=(*last, *found.errors))


def record_diagnosis(run: KeptRun, found: Diagnosed) -> RunRecord:
    """Add a diagnosis to the record of a run that has failed, and return the record; others are unchanged."""

    def change(record: RunRecord) -> RunRecord:
        if record.failure is None:
            return record
        return replace(record, failure=diagnosed(record.failure, found.diagnosis, record.exit))

    record = run.change(change)
    keep_cause(run, record)
    return record


def _positions(launcher: Launcher) -> tuple[str, ...]:
    """The positions of the ranks that run on a machine which can be reached."""

    def query(folder: AttemptFolder) -> dict[str, dict[int, RankBody]]:
        return folder.endpoint.ranks(folder.attempt_dir, None if folder.nodes is None else list(folder.nodes))

    folders = launcher.attempt_folders(launcher.attempt(), connect=False)
    replies = map_parallel(folders, query, limit=int(launcher.plan.ssh["fanout"]))
    nodes = [item for reply in replies if not isinstance(reply, OrchError) for item in reply.items()]
    ranks = {rank: body for _, bodies in nodes for rank, body in bodies.items()}
    return tuple(positions(ranks, {rank: node for node, bodies in nodes for rank in bodies}))


def _search_nodes(
    launcher: Launcher, signatures: Mapping[str, Signature], *, search_s: float, deadline: float | None, is_over: bool
) -> Sequence[SearchReply | OrchError]:
    """
    Search on all machines at once.

    Args:
        is_over: True if no attempt of a run over SSH follows. Then one without output was a restart that could not be started,
            and the attempt before it is searched.
    """
    patterns = patterns_of(signatures.values())
    kernel = [row.id for row in signatures.values() if "kernel" in row.logs]

    def search(folder: AttemptFolder) -> SearchReply:
        nodes = None if folder.nodes is None else list(folder.nodes)
        return folder.endpoint.search(
            folder.attempt_dir, nodes, patterns, kernel, max_bytes=MAX_FILE_BYTES, wait_s=search_s
        )

    def search_attempt(number: int) -> Sequence[SearchReply | OrchError]:
        folders = launcher.attempt_folders(number, connect=False)
        if deadline is None:
            return map_parallel(folders, search, limit=int(launcher.plan.ssh["fanout"]))
        results = map_within(folders, search, limit=len(folders), wait_s=_left_s(deadline))
        named = zip(folders, results, strict=True)
        return [Unreachable(folder.name, LATE) if result is None else result for folder, result in named]

    newest = _within(deadline, launcher.attempt)
    if newest is None:
        raise Unreachable("the machine with the folder of the run", LATE)
    number = newest[0]
    results = search_attempt(number)
    while is_over and number > 1 and _is_without_output(results):
        number -= 1
        results = search_attempt(number)
    return results


def _is_without_output(results: Sequence[SearchReply | OrchError]) -> bool:
    """True if machines have answered, and none has output of a rank."""
    replies = [result for result in results if not isinstance(result, OrchError)]
    logs = [body for reply in replies for body in reply["logs"] if body["name"] != KERNEL_LOG]
    return bool(replies) and not logs


def _within(deadline: float | None, query: Callable[[], R]) -> tuple[R] | None:
    """The result of a query; None if there is none before the deadline, which is a time of time.monotonic()."""
    if deadline is None:
        return (query(),)
    [result] = map_within([query], lambda query: (query(),), limit=1, wait_s=_left_s(deadline))
    if isinstance(result, OrchError):
        raise result
    return result


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def folded_remarks(remarks: Iterable[str]) -> tuple[str, ...]:
    """Remarks `NODE: text`, those with the same text as one."""
    parts = (remark.partition(": ") for remark in remarks)
    return tuple(f"{nodes}: {text}" for text, nodes in fold_by_value((node, text) for node, _, text in parts).items())


def _evidence_of(body: LogBody, search: LogSearch) -> Evidence:
    stem = body["name"].partition(".")[0].removeprefix("rank-")
    file = f"{body['node']}/{body['name']}"
    if body["skipped"]:
        file += f" after {body['skipped']} bytes"
    rank = int(stem) if stem.isdigit() else None
    hits = tuple(search.hits(body["hits"], file, node=body["node"], rank=rank))
    node_of = {} if rank is None else {rank: body["node"]}
    return Evidence(hits, body["counts"], {file: body["progress_line"]}, node_of=node_of)


def _evidence_of_record(record: RunRecord, search: LogSearch) -> Evidence:
    """How the first failing rank ended, and what the scheduler reported."""
    lines = [] if record.exit is None else [str(record.exit)]
    message = _RESTART_FAILURE.sub("", record.message or "")
    if message and message not in lines:
        lines.append(message)
    found = search.evidence(["\n".join(lines).encode()], RECORD)
    first_failure = None if record.exit is None else (record.exit.rank, record.exit.node)
    return found + Evidence(first_failure=first_failure)
