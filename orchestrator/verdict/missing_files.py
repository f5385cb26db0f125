"""Explain a rank's FileNotFoundError if another machine has the file; a file that no machine has is not explained."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import OrchError
from orchestrator.fanout import map_parallel
from orchestrator.node.run.code_folder import CODE

if TYPE_CHECKING:
    from orchestrator.launchers.base import AttemptFolder, Launcher
    from orchestrator.plan.plan import LaunchPlan
    from orchestrator.run import RankExit
    from orchestrator.verdict.judge import Verdict

MOST_QUERIED = 4  # nodes: the head, which usually writes such files, and some more
QUERY_S = 5.0


def explain(verdict: Verdict, plan: LaunchPlan, code: Mapping[str, Any]) -> Verdict:
    """Add to the failure that the file exists where the run was launched from; `code` is that of the record."""
    failure = verdict.exit
    if failure is None or failure.missing is None or not isinstance(code.get("folder"), str):
        return verdict
    in_code = _path_in_code(failure.missing, plan)
    if in_code is not None:
        from_cwd = posixpath.relpath(f"/{in_code}", f"/{plan.program.cwd or ''}")
        path = Path(posixpath.normpath(posixpath.join(code["folder"], from_cwd)))
        reason = "git ignores it, a rule leaves it out, it is outside of the work tree, or it is newer than the launch"
        text = f"{path} exists on this machine, but is not in the code that was sent to {failure.node}: {reason}"
        hint = "`git add` it, add !NAME to .orchignore, or pass an absolute path that exists on the node"
    else:
        path = Path(failure.missing)
        text, hint = f"it exists on this machine, but not on {failure.node}", "copy it there"
    is_elsewhere = in_code is not None or plan.transport != "local"
    return _with_cause(verdict, f"{text}; {hint}") if is_elsewhere and path.exists() else verdict


def explain_by_nodes(verdict: Verdict, plan: LaunchPlan, launcher: Launcher, attempt: int) -> Verdict:
    """Add to the failure that another node has the file. Nodes that cannot be queried are left out."""
    failure = verdict.exit
    if failure is None or failure.missing is None:
        return verdict
    in_code = _path_in_code(failure.missing, plan)

    def has_file(folder: AttemptFolder) -> bool:
        path = failure.missing if in_code is None else f"{posixpath.dirname(folder.attempt_dir)}/{CODE}/{in_code}"
        assert path is not None, "checked above"
        return folder.endpoint.command(["test", "-e", path], timeout_s=QUERY_S).code == 0

    folders = launcher.attempt_folders(attempt, connect=False)
    queried = [folder for folder in folders if folder.nodes and failure.node not in folder.nodes][:MOST_QUERIED]
    answers: list[bool | OrchError] = map_parallel(queried, has_file, limit=MOST_QUERIED)
    owner = next((folder.name for folder, answer in zip(queried, answers, strict=True) if answer is True), None)
    if owner is None:
        return verdict
    if in_code is None:
        return _with_cause(verdict, f"{owner} has that file, and {failure.node} does not; copy it there")
    text = f"{owner} has that file, and {failure.node} does not, because they share no workdir"
    return _with_cause(verdict, f"{text}; write it on every node, or to a folder that all nodes see")


def _path_in_code(path: str, plan: LaunchPlan) -> str | None:
    """The path relative to the run's code folder; None if it is not in it. The folders above differ between nodes."""
    _, found, rest = path.partition(f"/runs/{plan.run_id}/{CODE}/")
    return rest if found else None


def _with_cause(verdict: Verdict, cause: str) -> Verdict:
    failure = verdict.exit
    assert failure is not None, "only a failure of a rank has a missing file"
    known: RankExit = replace(failure, error=f"{failure.error}; {cause}", missing=None)
    message = verdict.message.replace(str(failure), str(known)) if verdict.message else None
    return replace(verdict, exit=known, message=message)
