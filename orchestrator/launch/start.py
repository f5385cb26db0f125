"""
Start the attempts of a run: connect, send the code and check the nodes meanwhile, resolve the plan, then carry it out.

A failed launch is undone. The next attempts of a run over SSH start in the process that owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator.code.files import revision
from orchestrator.endpoint.access import count_gateways, require_limits
from orchestrator.errors import LaunchError, NodesError, OrchError, Unreachable, os_error_text
from orchestrator.fanout import map_parallel
from orchestrator.launch.held_cards import require_free
from orchestrator.launch.planned import Launched, Planned
from orchestrator.launch.preflight import checked_nodes
from orchestrator.launch.signals import sigterm_interrupts, survive_sighup
from orchestrator.launch.undo import undo_on_failure
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.elastic import without_nodes
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.plan.resolve import Facts, resolve
from orchestrator.portable.names.hostlist import fold
from orchestrator.progress import OnProgress, no_progress
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import home_store
from orchestrator.run import RunState


@contextmanager
def started(
    planned: Planned, on_warning: Callable[[str], None], on_progress: OnProgress = no_progress
) -> Iterator[Launched]:
    """
    Start the run; the launcher stays connected until the context ends.

    Raises:
        OrchError: the launch failed; what had started was stopped, or is named.
    """
    launcher = launcher_for(planned.plan, planned.terminal, on_progress, planned.connected)
    try:
        if not planned.plan.by_scheduler and planned.plan.transport == "ssh":
            unconnected = [node for node in planned.plan.nodes if node.name not in planned.connected]
            require_limits(
                len(planned.plan.nodes),
                connected=len(planned.connected),
                on_the_way=lambda: count_gateways(unconnected, planned.plan.ssh),
            )
        with survive_sighup() as closed, sigterm_interrupts():
            folder = _launch(planned, launcher, on_warning)
        yield Launched(folder, launcher, closed.is_set(), planned)
    finally:
        launcher.close()


def _launch(planned: Planned, launcher: Launcher, on_warning: Callable[[str], None]) -> RunFolder:
    """Record the run, then start it; if the launch fails, the run is FAILED, or LOST if some of it may still be running."""
    folder = home_store().create(planned.record)
    with undo_on_failure([folder], launcher, when="while connecting", left="nothing was started"):
        with ThreadPoolExecutor(1) as executor:
            writing = executor.submit(record_plan, folder, planned)
            keeping = executor.submit(keep_code, folder, planned)
            reached = connect(planned, launcher, on_warning)  # waits for the network meanwhile
            writing.result()
        if reached.plan.node_count < planned.plan.node_count:
            folder.write_plan(reached.plan)
            folder.update(node_count=reached.plan.node_count)
        for warning in keeping.result():
            on_warning(warning)
        _require_free_cards(reached, launcher, folder, on_warning)
    with undo_on_failure([folder], launcher, when="during the launch", left="what had started was stopped"):
        plan = push_and_resolve(reached, launcher, folder, on_warning)
        if plan != planned.plan:
            folder.write_plan(plan)
        _require_free_cards(
            replace(reached, plan=plan), launcher, folder, on_warning
        )  # a launch beside this one may be faster
        job = launcher.start(plan, planned.bundle)
        folder.update(slurm_job=job, started=True, launching=None)
    return folder


def _require_free_cards(
    planned: Planned, launcher: Launcher, folder: RunFolder, on_warning: Callable[[str], None]
) -> None:
    if isinstance(launcher, DirectLauncher):
        require_free(planned, launcher, on_warning, is_stopped=folder.is_stop_requested)


def connect(planned: Planned, launcher: Launcher, on_warning: Callable[[str], None]) -> Planned:
    """Connect to what the launch needs; return the launch by what is there. An elastic run begins without nodes that are off."""
    plan = planned.plan
    try:
        return replace(planned, plan=resolved(plan, launcher.connect(plan), on_warning))
    except NodesError as error:
        lost = {failure.node: failure.reason for failure in error.failures if isinstance(failure, Unreachable)}
        smaller = without_nodes(plan, lost) if len(lost) == len(error.failures) else None
        if smaller is None:
            raise
    size = f"the run begins on {smaller.node_count} of {plan.node_count} nodes (--elastic)"
    facts = Facts((f"{fold(lost)} cannot be reached: {next(iter(lost.values()))}; {size}",))
    plan = resolved(resolved(smaller, facts, on_warning), launcher.connect(smaller), on_warning)
    return replace(planned, plan=plan, checked=checked_nodes(plan) if planned.checked else ())


def push_and_resolve(
    planned: Planned, launcher: Launcher, folder: RunFolder, on_warning: Callable[[str], None]
) -> LaunchPlan:
    """
    Send the code of an attempt, and check its nodes meanwhile; return the plan by what is found.

    Spare nodes are checked before the first attempt only, and do not prevent it.

    Raises:
        PreflightRefused: a check of the nodes failed.
    """
    if not isinstance(launcher, DirectLauncher) or not planned.checked:
        return resolved(planned.plan, launcher.push(planned.plan, planned.bundle), on_warning)
    from orchestrator.launch import node_check  # only launches over SSH check
    from orchestrator.launch.spare_check import begin_logins, check_spares

    check = node_check.begin_check(planned, launcher)
    spares = planned.plan.spares if planned.plan.attempt == 1 and "shared" not in planned.skipped else ()
    if spares:
        begin_logins(launcher, spares)
    plan = resolved(planned.plan, launcher.push(planned.plan, planned.bundle), on_warning)
    result = check.result()
    node_check.record(result, folder)
    node_check.require_passed(result.findings, planned.record.inventory["file"], on_warning)
    plan = resolved(plan, node_check.facts_of(result, planned), on_warning)
    return resolved(plan, check_spares(launcher, plan), on_warning) if spares else plan


def resolved(plan: LaunchPlan, facts: Facts, on_warning: Callable[[str], None]) -> LaunchPlan:
    """The plan by these facts; the warnings that it has more are reported."""
    found = resolve(plan, facts)
    for warning in found.warnings[len(plan.warnings) :]:
        on_warning(warning)
    return found


def record_plan(folder: RunFolder, planned: Planned) -> None:
    """Add the plan and the state of the code to the record, which is written earlier without them."""
    folder.write_plan(planned.plan)
    folder.write_code(planned.bundle.code)
    commit, diff = revision(Path.cwd(), planned.private)
    if diff:
        folder.write_diff(diff)
    folder.update(state=RunState.STARTING, code={"commit": commit, "dirty": bool(diff), "folder": str(Path.cwd())})


def keep_code(folder: RunFolder, planned: Planned) -> Sequence[str]:
    """
    Keep the code of a run over SSH that may be restarted, for a later owner (launch/recorded_launch.py).

    Returns:
        A warning if it cannot be kept: this process can restart the run without it.
    """
    if planned.plan.by_scheduler or not planned.plan.max_retries:
        return ()
    try:
        folder.write_bundle(planned.bundle.archive[0])
    except OSError as error:
        why = os_error_text(error)
        return (f"the run cannot be restarted after `orch attach`, because its code cannot be kept: {why}",)
    return ()


class NextAttempts:
    """Connects to the nodes of an attempt and starts it; which nodes those are is decided before (supervision/restart.py)."""

    def __init__(
        self, planned: Planned, folder: RunFolder, launcher: DirectLauncher, on_warning: Callable[[str], None]
    ) -> None:
        self._planned = planned
        self._folder = folder
        self._launcher = launcher
        self._on_warning = on_warning

    def connect(self, plan: LaunchPlan) -> None:
        """
        Connect to the nodes of an attempt, before the log readers learn of it: a spare node may be unreachable.

        Raises:
            OrchError: some cannot be used, or the run was stopped; nothing has begun.
        """
        self._launcher.connect(plan)
        if self._planned.checked and "shared" not in self._planned.skipped:
            from orchestrator.launch.spare_check import require_visible_checkpoints  # few runs restart

            require_visible_checkpoints(self._launcher, plan)
        self._require_not_stopped()  # `orch stop` may have recorded the end meanwhile

    def start(self, plan: LaunchPlan) -> LaunchPlan:
        """
        Check the connected nodes and start the agents; return the plan as it was carried out.

        Raises:
            OrchError: that failed, and nothing of the attempt is left running, or it is named.
        """
        self._launcher.begin_attempt(plan)
        checked = checked_nodes(plan) if self._planned.checked else ()
        self._planned.kept_facts(home_store()).update({node.name: None for node in checked})
        try:
            planned = replace(self._planned, plan=plan, checked=checked)
            plan = push_and_resolve(planned, self._launcher, self._folder, self._on_warning)
            self._require_not_stopped()
            self._launcher.start(plan, planned.bundle)
            self._require_not_stopped()
        except BaseException as error:
            left = self._launcher.undo()
            if left and isinstance(error, OrchError):  # a NodesError would replace a spare node while its agent may run
                raise LaunchError("\n  ".join([str(error), "not everything could be stopped:", *left])) from error
            raise
        return plan

    def send_code(self, node: NodePlan) -> bool:
        """Prepare a spare node, see DirectLauncher.send_code."""
        return self._launcher.send_code(node, self._planned.bundle)

    def free_nodes(self, nodes: Sequence[NodePlan]) -> set[str]:
        """The names of the nodes that can be reached, and on which nothing of the run is left after what remained was ended."""
        outcomes = map_parallel(nodes, self._end_remaining, limit=max(1, len(nodes)))
        return {node.name for node, left in zip(nodes, outcomes, strict=True) if left == []}

    def _end_remaining(self, node: NodePlan) -> list[int]:
        """End the processes of all attempts of the run on a node; return the pids of those that are left."""
        endpoint, plan = self._launcher.reach(node), self._launcher.plan
        folders = [replace(plan, attempt=attempt).attempt_dir(node) for attempt in range(1, plan.attempt + 1)]
        return [
            pid
            for folder in folders
            for result in endpoint.stop(folder, [node.name], grace_s=0.0)
            for pid in result.remaining
        ]

    def _require_not_stopped(self) -> None:
        if self._folder.is_stop_requested() or self._folder.read().state.ended:
            raise LaunchError("the run was stopped")
