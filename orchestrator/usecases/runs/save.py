"""Let the ranks of a run save and end, then end the run: `orch stop --save`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import NodesError, UsageError
from orchestrator.fanout import failed_nodes, map_parallel
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import AttemptFolder, Launcher
from orchestrator.node.run.events import State
from orchestrator.plan.plan import GRACE_S
from orchestrator.portable.names.hostlist import fold
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord
from orchestrator.usecases.durations import clock
from orchestrator.usecases.runs.stop import stop
from orchestrator.verdict.launching import is_launching
from orchestrator.verdict.observe import STRAGGLER_S, observe_folders

DEFAULT_GRACE_S = 600.0
LOOK_S = 0.5
ENDED = "the ranks have ended"
REQUEST_S = 10.0
"""After this time an agent has read the request: it does so once a second, on a shared file system a little later."""


def save_and_stop(folder: RunFolder, grace_s: float, on_message: Callable[[str], None]) -> RunRecord:
    """
    Ask the ranks to save, wait until they have ended, for the grace at most, and end the run; returns its record.

    If this process is interrupted, the ranks save and end all the same: their agents know the grace.

    Raises:
        UsageError: the grace is shorter than a second.
        OrchError: as `stop`.
    """
    if grace_s < 1:
        raise UsageError(f"a grace of {grace_s:g} s: the ranks need time to save", hint="stop the run without a save")
    record = folder.read()
    if record.state.ended or is_launching(record) or not record.started:
        return stop(folder, on_message)
    with suppress(OSError):  # as in `stop`
        folder.request_stop()  # no later attempt starts
    with closing(launcher_for(folder.read_plan())) as launcher:
        try:
            folders = launcher.attempt_folders(launcher.attempt())
            is_requested = _request(folders, grace_s, on_message)
            if is_requested:
                _until_saved(record.id, launcher, grace_s, on_message)
        except NodesError as error:
            on_message(f"the ranks are not asked to save: {error}")
    return stop(folder, on_message)


def _request(folders: Sequence[AttemptFolder], grace_s: float, on_message: Callable[[str], None]) -> bool:
    """Write the requests; False if no agent takes one, such as those of a job that waits in the queue."""

    def request(folder: AttemptFolder) -> list[str]:
        if folder.failure is not None:
            raise folder.failure
        return folder.endpoint.request_save(folder.attempt_dir, folder.nodes, grace_s=grace_s)

    results = map_parallel(folders, request, limit=len(folders))
    if error := failed_nodes([result for result in results if not isinstance(result, list)]):
        on_message(f"not all ranks are asked to save: {error}")
    return any(result for result in results if isinstance(result, list))


def _until_saved(run_id: str, launcher: Launcher, grace_s: float, on_message: Callable[[str], None]) -> None:
    """Wait until the ranks have ended, or nothing is left to wait for."""
    how_to_end = f"`orch stop {run_id}` ends them at once, Ctrl-C ends this command alone"
    on_message(f"the ranks save and end, within {clock(grace_s)}; {how_to_end}")
    begun_s, reported = time.monotonic(), set[str]()
    deadline_s = begun_s + grace_s + GRACE_S
    while time.monotonic() < deadline_s:
        folders = launcher.attempt_folders(launcher.attempt(), connect=False)
        nodes, missing = observe_folders(folders, straggler_s=STRAGGLER_S)
        for failure in missing.failures if missing else ():
            if failure.node not in reported:
                reported.add(failure.node)
                on_message(f"{failure}; its ranks may not have saved, and the others are waited for")
        if reason := _reason_to_end(nodes, time.monotonic() - begun_s):
            if reason != ENDED:
                on_message(reason)
            return
        time.sleep(LOOK_S)
    on_message(f"the ranks have not ended {clock(grace_s)} after the request: they are ended now")


def _reason_to_end(nodes: Sequence[NodeObservation], waited_s: float) -> str:
    """Why there is nothing to wait for; empty while ranks may save."""
    running = [node for node in nodes if node.agent is not None and node.finished is None]
    failed = [node.node for node in nodes if node.finished is not None and node.finished.state == State.FAILED]
    if not running:
        return ENDED
    if failed:
        return f"a rank on {fold(failed)} has failed: the others cannot save"
    if waited_s < REQUEST_S and any(node.saving_ranks is None for node in running):
        return ""
    if not any(node.saving_ranks for node in nodes):
        return "no rank can be asked to save: the program does not handle SIGUSR2, and is ended without a save"
    return ""
