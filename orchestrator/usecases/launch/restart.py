"""Start another attempt of a run over SSH, in the process that owns the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from orchestrator.errors import LaunchError, OrchError
from orchestrator.fanout import map_parallel
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.records.cache.facts import KeptFacts
from orchestrator.records.runs import home_store
from orchestrator.records.store import RunFolder
from orchestrator.supervision.restart import Restarts, recorded_attempts
from orchestrator.usecases.checks.preflight import checked_nodes
from orchestrator.usecases.launch.launch import Launched, Planned, begin_check_of


def restarts_of(launched: Launched, launcher: DirectLauncher, on_warning: Callable[[str], None]) -> Restarts | None:
    """The restarts of a run that is supervised here; None if it is to have none."""
    folder, planned, max_retries = launched.folder, launched.planned, launcher.plan.max_retries
    if not max_retries:
        return None
    if planned is None:
        return Restarts(folder, max_retries, None, unable=launched.unable_to_restart)

    def start(plan: LaunchPlan, on_connected: Callable[[], None]) -> LaunchPlan:
        return _start(replace(planned, plan=plan), launcher, folder, on_warning, on_connected=on_connected)

    return Restarts(
        folder,
        max_retries,
        start,
        at_any_step=launcher.plan.at_any_step,
        send_code=partial(launcher.send_code, bundle=planned.bundle),
        free_nodes=partial(_free_nodes, launcher),
        attempts=recorded_attempts(folder),
    )


def _free_nodes(launcher: DirectLauncher, nodes: Sequence[NodePlan]) -> set[str]:
    """The names of the nodes that can be reached, and on which nothing of the run is left after what remained was ended."""
    outcomes = map_parallel(nodes, partial(_end_remaining, launcher), limit=max(1, len(nodes)))
    return {node.name for node, left in zip(nodes, outcomes, strict=True) if left == []}


def _end_remaining(launcher: DirectLauncher, node: NodePlan) -> list[int]:
    """End the processes of all attempts of the run on a node; return the pids of those that are left."""
    endpoint, plan = launcher.reach(node), launcher.plan
    folders = [replace(plan, attempt=attempt).attempt_dir(node) for attempt in range(1, plan.attempt + 1)]
    return [
        pid
        for folder in folders
        for result in endpoint.stop(folder, [node.name], grace_s=0.0)
        for pid in result.remaining
    ]


def _start(
    planned: Planned,
    launcher: DirectLauncher,
    folder: RunFolder,
    on_warning: Callable[[str], None],
    *,
    on_connected: Callable[[], None],
) -> LaunchPlan:
    """Check the nodes of an attempt and start its agents; return the plan as it was carried out."""
    launcher.prepare_attempt(planned.plan)  # before the log readers learn the nodes: a spare node may be unreachable
    if planned.checked and "shared" not in planned.skipped:
        from orchestrator.usecases.launch.spare_check import require_visible_checkpoints  # few runs restart

        require_visible_checkpoints(launcher, planned.plan)
    _require_not_stopped(folder)  # `orch stop` may have recorded the end meanwhile
    on_connected()
    launcher.begin_attempt(planned.plan)
    checked = checked_nodes(planned.plan) if planned.checked else ()
    KeptFacts.of(home_store(), planned.record.inventory["digest"]).update({node.name: None for node in checked})
    try:
        check = begin_check_of(replace(planned, checked=checked), launcher, folder, on_warning)

        def checked_start() -> None:
            check()
            _require_not_stopped(folder)

        launcher.start(planned.bundle, checked_start)
        _require_not_stopped(folder)
    except BaseException as error:
        left = launcher.undo()
        if left and isinstance(error, OrchError):  # a NodesError would replace a spare node while its agent may run
            raise LaunchError("\n  ".join([str(error), "not everything could be stopped:", *left])) from error
        raise
    return launcher.plan


def _require_not_stopped(folder: RunFolder) -> None:
    if folder.is_stop_requested() or folder.read().state.ended:
        raise LaunchError("the run was stopped")
