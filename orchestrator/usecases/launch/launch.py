"""Launch a run: make the plan from the arguments, and start it. A failed launch is undone."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from orchestrator.code import bundle as bundles
from orchestrator.code.files import revision
from orchestrator.endpoint.access import Terminal, count_gateways, require_limits
from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import (
    Interrupted,
    LaunchError,
    NodesError,
    OrchError,
    PreflightRefused,
    Unreachable,
    machine_error,
    os_error_text,
)
from orchestrator.inventory.model import Inventory
from orchestrator.inventory.redaction import REDACTED, is_secret
from orchestrator.inventory.slurm_settings import with_slurm_settings
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher, no_check
from orchestrator.launchers.cards import close_all, detect_cards
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.names.hostlist import fold
from orchestrator.node.files import absolute_path, user_name
from orchestrator.plan.elastic import without_nodes
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.progress import OnProgress, no_progress
from orchestrator.records.runs import home_store
from orchestrator.records.store import RunFolder
from orchestrator.run import Request, RunRecord, RunState, new_run_id
from orchestrator.usecases.checks.network import nothing_to_discover
from orchestrator.usecases.checks.preflight import CheckedNode, checked_nodes
from orchestrator.usecases.inventory import load_inventory
from orchestrator.usecases.launch.allocation import for_steps, queued_warning, this_allocation
from orchestrator.usecases.launch.request import check_labels, make_request
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.verdict.classify import failure_of_launch
from orchestrator.verdict.launching import this_process
from orchestrator.version import __version__


@dataclass(frozen=True, slots=True)
class Planned:
    """A launch that is planned and has not begun."""

    plan: LaunchPlan
    bundle: bundles.Bundle
    record: RunRecord
    private: Sequence[str]
    """Files that are neither sent to the nodes nor recorded."""
    warnings: tuple[str, ...]
    terminal: Terminal
    """For the prompts of all logins of the launch."""
    connected: Mapping[str, Endpoint]
    """The connections that planning needed, by node; `started` takes them over."""
    checked: Sequence[CheckedNode] = ()
    """The nodes that are checked before the start: none under Slurm, which chooses the nodes, and with --no-check."""
    skipped: Sequence[str] = ()
    """The names of checks that are left out."""

    @property
    def code_lines(self) -> tuple[str, ...]:
        """The sentences about the code that is sent."""
        return tuple(self.bundle.report.at_launch()) if self.bundle.report else ()

    def close(self) -> None:
        """Close the connections of a launch that does not begin."""
        close_all(self.connected)


@dataclass(frozen=True, slots=True)
class Launched:
    """A run that has started."""

    folder: RunFolder
    launcher: Launcher
    terminal_closed: bool = False
    """The terminal was closed during the launch, so the run cannot be shown."""
    planned: Planned | None = None
    """The launch as it was planned; None if another process has launched the run, and the record lacks a part of the launch."""
    unable_to_restart: str = ""
    """The reason why the run is not restarted, if `planned` is None."""


def plan_launch(
    arguments: LaunchArguments, on_progress: OnProgress = no_progress, terminal: Terminal | None = None
) -> Planned:
    """
    Plan a run; nothing is started or written. Nodes are connected to if their cards are not known.

    Args:
        terminal: for the prompts of logins; by default this process's terminal.
    """
    check_labels(arguments)
    if arguments.skipped:
        from orchestrator.usecases.checks.check import require_known  # see begin_check_of

        require_known(arguments.skipped)
    inventory = load_inventory(arguments.inventory, arguments.nodes if arguments.launcher == "ssh" else None)
    inventory = with_slurm_settings(inventory, arguments.slurm_settings)
    excluded: tuple[str, ...] = ()
    if arguments.exclude_suspects:
        from orchestrator.usecases.launch.suspects import without_suspects  # few launches exclude any

        inventory, arguments, excluded = without_suspects(inventory, arguments)
    terminal, connected = terminal or Terminal(), dict[str, Endpoint]()
    if arguments.launcher == "ssh" and inventory.accelerator == "auto" and inventory.devices is None:
        inventory, connected = detect_cards(inventory, arguments.nodes, terminal, on_progress)
    try:
        planned = _planned(arguments, inventory, terminal, connected)
        return replace(planned, warnings=(*excluded, *planned.warnings))
    except BaseException:
        close_all(connected)
        raise


def _planned(
    arguments: LaunchArguments, inventory: Inventory, terminal: Terminal, connected: Mapping[str, Endpoint]
) -> Planned:
    allocation = this_allocation(arguments, os.environ) if arguments.here else None
    inventory, warnings = _with_dependencies(inventory, arguments.after)
    if allocation is not None:
        inventory = for_steps(inventory)
    elif arguments.launcher == "slurm":
        warnings = [*warnings, *queued_warning(os.environ)]
    orch_folders = [home_store().path, *{Path(absolute_path(node.workdir)) for node in inventory.nodes}]
    request, bundle = make_request(
        arguments, inventory.private_files, allocation, orch_folders=orch_folders, keep=inventory.keep
    )
    now = datetime.now(timezone.utc)
    run_id = new_run_id(arguments.name or inventory.name, now, os.urandom(2).hex())
    slurm_home = _home_of_slurm(inventory) if arguments.launcher == "slurm" else None
    slurm_user = user_name() if slurm_home is not None else None
    plan = make_plan(
        inventory,
        request,
        run_id=run_id,
        bundle=bundle.digest,
        commit=bundle.commit,
        folder=str(Path.cwd()),
        home=slurm_home,
        user=slurm_user,
    )
    if plan.keep:
        from orchestrator.usecases.launch.keep_folders import require_unused  # few inventories keep folders

        require_unused(plan, arguments.after)
    record = replace(_record(plan, request, inventory, now), note=arguments.note, tags=arguments.tags)
    record = replace(record, rerun_of=arguments.rerun_of)
    warnings = (
        *warnings,
        *_hook_warning(inventory, arguments),
        *bundle.warnings,
        *_environment_warning(inventory),
        *plan.warnings,
    )
    if arguments.rerun_of is not None:
        from orchestrator.usecases.launch.rerun import changes_since  # most launches repeat no run

        warnings += tuple(changes_since(arguments.rerun_of, bundle, inventory))
    checked = checked_nodes(plan) if arguments.launcher == "ssh" and not arguments.no_check else ()
    if arguments.no_check:
        warnings += ("--no-check: the nodes are not checked before the start, and no network variables are discovered",)
    files = inventory.private_files
    return Planned(plan, bundle, record, files, warnings, terminal, connected, checked, arguments.skipped)


def _with_dependencies(inventory: Inventory, after: Sequence[str]) -> tuple[Inventory, Sequence[str]]:
    if not after:
        return inventory, ()
    from orchestrator.usecases.launch.dependencies import with_dependencies  # imports Slurm's modules

    return with_dependencies(inventory, after)


def _environment_warning(inventory: Inventory) -> tuple[str, ...]:
    if not inventory.env and not any(node.env for node in inventory.nodes):
        return ()
    from orchestrator.usecases.checks.lint import environment_warning  # the table takes 20 ms to import

    return environment_warning(inventory)


def _hook_warning(inventory: Inventory, arguments: LaunchArguments) -> tuple[str, ...]:
    """
    The warning that hooks are not run under Slurm.

    Raises:
        UsageError: a hook of a run over SSH could not be delivered, as without its program.
    """
    if inventory.hooks and arguments.launcher == "slurm":
        return (
            "hooks: are run over SSH only, by the supervisor; Slurm sends mail itself: slurm.mail_type, slurm.mail_user",
        )
    for hook in () if arguments.is_trial else inventory.hooks:
        hook.require_deliverable(os.environ)
    return ()


def _home_of_slurm(inventory: Inventory) -> str | None:
    from orchestrator.launchers.slurm.host import home_of_slurm  # see launchers/__init__.py

    return home_of_slurm(inventory)


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
        if planned.plan.launcher == "ssh" and planned.plan.transport == "ssh":
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


@contextmanager
def survive_sighup() -> Iterator[threading.Event]:
    """Finish a launch although its terminal is closed: SIGHUP only sets the event. Under nohup SIGHUP stays ignored."""
    closed = threading.Event()
    with _handled(signal.SIGHUP, lambda *_: closed.set()):
        yield closed


def sighup_interrupts() -> AbstractContextManager[None]:
    """Treat a closed terminal as SIGTERM, for a command whose run must not continue without it."""
    return _handled(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def sigterm_interrupts() -> AbstractContextManager[None]:
    """Treat SIGTERM as Ctrl-C during a launch: `orch stop` sends it, because a shell's `&` makes orch ignore SIGINT."""
    return _handled(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def _handled(number: signal.Signals, handler: Callable[..., object]) -> Iterator[None]:
    """Handle a signal that has its default action; one that the caller of the API ignores or handles is left as it is."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    if signal.getsignal(number) is not signal.SIG_DFL or not is_main_thread:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)


def _launch(planned: Planned, launcher: Launcher, on_warning: Callable[[str], None]) -> RunFolder:
    """Record the run, then start it; if the launch fails, the run is FAILED, or LOST if some of it may still be running."""
    folder = home_store().create(planned.record)
    with undo_on_failure([folder], launcher, "while connecting; nothing was started"):
        with ThreadPoolExecutor(1) as executor:
            writing = executor.submit(record_plan, folder, planned)
            keeping = executor.submit(keep_code, folder, planned)
            warnings = _connect(launcher)  # waits for the network meanwhile
            writing.result()
        if launcher.plan is not planned.plan:
            planned = _on_fewer_nodes(planned, launcher.plan, folder)
        for warning in (*warnings, *keeping.result()):
            on_warning(warning)
    with undo_on_failure([folder], launcher, "during the launch; what had started was stopped"):
        job = launcher.start(planned.bundle, _begin_checks(planned, launcher, folder, on_warning))
        folder.update(slurm_job=job, started=True, launching=None)
        for warning in record_changed_plan(folder, planned.plan, launcher.plan):
            on_warning(warning)
    return folder


def _connect(launcher: Launcher) -> Sequence[str]:
    """Connect to the nodes; return warnings. An elastic run begins without nodes that are off, if enough are left."""
    try:
        return launcher.connect()
    except NodesError as error:
        lost = {failure.node: failure.reason for failure in error.failures if isinstance(failure, Unreachable)}
        plan = without_nodes(launcher.plan, lost) if len(lost) == len(error.failures) else None
        if plan is None or not isinstance(launcher, DirectLauncher):
            raise
        size = f"the run begins on {plan.node_count} of {launcher.plan.node_count} nodes (--elastic)"
        launcher.begin_attempt(plan)
        remarks = launcher.connect()
        return [f"{fold(lost)} cannot be reached: {next(iter(lost.values()))}; {size}", *remarks]


def _on_fewer_nodes(planned: Planned, plan: LaunchPlan, folder: RunFolder) -> Planned:
    """The launch with another plan, which is recorded."""
    folder.write_plan(plan)
    folder.update(node_count=plan.node_count)
    return replace(planned, plan=plan, checked=checked_nodes(plan) if planned.checked else ())


def _begin_checks(
    planned: Planned, launcher: Launcher, folder: RunFolder, on_warning: Callable[[str], None]
) -> Callable[[], None]:
    """As begin_check_of, of the spare nodes as well; none of them prevents the start."""
    check = begin_check_of(planned, launcher, folder, on_warning)
    has_spares = bool(planned.checked and planned.plan.spares) and "shared" not in planned.skipped
    if not has_spares or not isinstance(launcher, DirectLauncher):
        return check
    from orchestrator.usecases.launch.spare_check import begin_spare_check  # few launches have spare nodes

    check_spares = begin_spare_check(launcher)

    def finish() -> None:
        check()
        for warning in check_spares():
            on_warning(warning)

    return finish


def begin_check_of(
    planned: Planned, launcher: Launcher, folder: RunFolder, on_warning: Callable[[str], None]
) -> Callable[[], None]:
    """Begin to check the nodes; return the function that waits for the result, and raises PreflightRefused if it is a failure."""
    if not planned.checked or not isinstance(launcher, DirectLauncher):
        return no_check
    from orchestrator.checks.variables import discovery
    from orchestrator.records.cache.facts import KeptFacts
    from orchestrator.usecases.launch.editable import editable_warnings  # only launches over SSH check

    # only launches over SSH check
    from orchestrator.usecases.launch.launch_check import begin_check, require_passed, software_versions

    by_name = {node.name: node for node in planned.plan.nodes}
    kept = KeptFacts.of(home_store(), planned.record.inventory["digest"])
    result = begin_check(
        planned.checked,
        lambda name: launcher.reach(by_name[name]),
        planned.plan,
        kept,
        skipped=planned.skipped,
    )

    def finish() -> None:
        checked = result.result()
        folder.write_software(software_versions(checked.cluster))
        require_passed(checked.findings, folder, on_warning)
        if planned.bundle.root is not None:
            folders = {name: facts["software"]["import_folders"] for name, facts in checked.cluster.facts.items()}
            for warning in editable_warnings(planned.plan, planned.bundle.root, folders):
                on_warning(warning)
        if not nothing_to_discover(planned.plan):
            found = discovery(checked.cluster)
            launcher.add_defaults({name: found.environment(name) for name in by_name})

    return finish


@contextmanager
def undo_on_failure(folders: Sequence[RunFolder], launcher: Launcher, outcome: str) -> Iterator[None]:
    """
    If the block raises any exception, stop what had started of these runs and record the cause.

    Args:
        outcome: the phase of the launch and what a failure leaves, such as `during the launch; nothing was started`.

    Raises:
        Interrupted: instead of a KeyboardInterrupt.
        LaunchError: instead of an error of this machine, and if something may still be running.
    """
    when, _, left = outcome.partition("; ")
    try:
        yield
    except KeyboardInterrupt:
        failure = abandon_launch(folders, launcher, RunState.STOPPED, f"interrupted {when}")
        raise failure or Interrupted(f"interrupted {outcome}") from None
    except BaseException as exc:
        machine = machine_error(exc)
        cause = machine or f"{type(exc).__name__}: {exc}"
        why = str(exc) if isinstance(exc, OrchError) else f"the launch failed: {cause}"
        if failure := abandon_launch(folders, launcher, RunState.FAILED, why, error=exc):
            raise failure from exc
        if machine is not None:
            raise LaunchError(f"{why}; {left}", hint=machine.hint) from exc
        raise


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
    Keep the code of a run over SSH that may be restarted, for a later owner (usecases/launch/recorded_launch.py).

    Returns:
        A warning if it cannot be kept: this process can restart the run without it.
    """
    if planned.plan.launcher != "ssh" or not planned.plan.max_retries:
        return ()
    try:
        folder.write_bundle(planned.bundle.archive[0])
    except OSError as error:
        why = os_error_text(error)
        return (f"the run cannot be restarted after `orch attach`, because its code cannot be kept: {why}",)
    return ()


def record_changed_plan(folder: RunFolder, planned: LaunchPlan, plan: LaunchPlan) -> Sequence[str]:
    """Record the plan if the launcher changed it; return the warnings that it has added."""
    if plan is planned:
        return ()
    folder.write_plan(plan)
    return plan.warnings[len(planned.warnings) :]


def abandon_launch(
    folders: Sequence[RunFolder],
    launcher: Launcher,
    state: RunState,
    why: str,
    *,
    error: BaseException | None = None,
) -> LaunchError | None:
    """
    Stop what had started of these runs and record the cause; return an error if something may still be running.

    Args:
        error: the error by which the launch failed; None if it was interrupted.
    """
    failure = None if error is None else failure_of_launch(error)
    try:
        if state is RunState.STOPPED:
            with suppress(Exception):  # `undo` connects again
                launcher.close()  # cancels the requests in progress, so that they start nothing more
            for folder in folders:
                with suppress(OSError):  # the disk may be full
                    folder.request_stop()
        left = launcher.undo()
    except KeyboardInterrupt:
        left = ["interrupted a second time, without waiting for the nodes"]
    except Exception as exc:  # noqa: BLE001  the first failure is the one to report
        left = [f"it could not be stopped: {exc}"]
    if left:
        changes: dict[str, Any] = {
            "state": RunState.LOST,
            "message": f"{why}; not everything could be stopped",
            "failure": failure,
        }
    else:
        refused, ended = isinstance(error, PreflightRefused), datetime.now(timezone.utc).isoformat()
        changes = {"state": state, "message": why, "refused": refused, "failure": failure, "ended": ended}
    for folder in folders:
        with suppress(OSError, OrchError):  # the disk may be why the launch failed
            folder.update(**changes, launching=None)
    if not left:
        return None
    hint = f"once the nodes can be reached, `orch stop {folders[0].path.name}` ends what is left"
    return LaunchError("\n  ".join([why, "not everything could be stopped:", *left]), hint=hint)


def _without_secrets(variables: Mapping[str, str | None], inventory: Inventory) -> dict[str, str | None]:
    secret = frozenset().union(*map(inventory.secret_names, inventory.nodes))
    return {name: REDACTED if name in secret or is_secret(name) else value for name, value in variables.items()}


def _record(plan: LaunchPlan, request: Request, inventory: Inventory, now: datetime) -> RunRecord:
    return RunRecord(
        id=plan.run_id,
        launcher=plan.launcher,
        state=RunState.PENDING,
        created=now.isoformat(),
        request={**asdict(request), "variables": _without_secrets(request.variables, inventory)},
        inventory={"name": inventory.name, "file": inventory.file, "digest": inventory.digest},
        code={},
        launching=this_process(),
        node_count=plan.node_count,
        versions={"orch": __version__, "python": sys.version.split()[0]},
    )
