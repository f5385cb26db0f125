"""
The process that owns a run over SSH: it logs in to the nodes, launches the run, supervises it, and reads its logs for its viewer.

All of that goes over one login and one endpoint per node. The process outlives its viewer, which is the command that has
started it (usecases/owner/viewer.py); a run without its owner continues, and `orch attach` starts another one.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from orchestrator.endpoint.access import require_file_size
from orchestrator.endpoint.observation import NodeObservation
from orchestrator.errors import BUG, LaunchError, NodesError, OrchError, UsageError, machine_error
from orchestrator.gc_tuning import default_gc
from orchestrator.launch.planned import Launched, Planned
from orchestrator.launch.recorded_launch import recorded_launch
from orchestrator.launch.start import started
from orchestrator.launchers import direct_launcher
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import find_run
from orchestrator.supervision.link import ANSWER_S, OwnerLink, ViewerGone
from orchestrator.supervision.restart import Restarts
from orchestrator.supervision.supervisor import supervise
from orchestrator.supervision.viewers_terminal import ViewersTerminal
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch.watch import Watch, watched_lines
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.reports.log_reader import LogReader

IMPORT_AFTER_S = 2.0  # the first lines of the ranks come first
LINES_S = 10.0
"""How long the diagnosis waits until a viewer has the last lines and the outcome."""


def own_run(link_number: int) -> int:
    """Own the run that the viewer requests over the link, a descriptor; returns the exit code of the process."""
    link = OwnerLink(socket.socket(fileno=link_number))
    if not link.request:  # the viewer has ended, as by Ctrl-C
        link.join()
        return 0
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from the viewer; a shell's `&` makes it ignored
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # before anything inherits the viewer's mask
        os.chdir(link.request["cwd"])
        _restore_pythonpath(link.request["pythonpath"])
        _run(link)
    except BaseException as exc:  # noqa: BLE001  the viewer reports it
        _post_error(link, exc)
        return 1
    finally:
        link.join()
    return 0


def _restore_pythonpath(value: str | None) -> None:
    """Set the user's PYTHONPATH; this process was started with the root of orch in front of it."""
    if value is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = value


def _run(link: OwnerLink) -> None:
    require_file_size()
    terminal = ViewersTerminal(link, is_terminal=link.request["is_terminal"])
    with (_attached if "run" in link.request else _launched)(link, terminal) as launched:
        _leave_the_terminal(launched.folder)
        default_gc()  # all modules are imported; a run may last for weeks
        if _supervise(link, launched):
            return
    supervisor = launched.folder.supervisor()  # another attach was faster
    raise UsageError(f"run {launched.folder.path.name} has a supervisor: {supervisor}")


@contextmanager
def _launched(link: OwnerLink, terminal: ViewersTerminal) -> Iterator[Launched]:
    arguments = _arguments(link.request["arguments"])
    plan = _plan_benchmark() if link.request["is_benchmark"] else plan_launch
    planned = plan(arguments, link.progress, terminal)
    link.post("planned", code_lines=planned.code_lines, warnings=planned.warnings)
    with started(planned, link.warn, link.progress) as launched:
        yield launched


def _plan_benchmark() -> Callable[..., Planned]:
    from orchestrator.usecases.trials.benchmark import plan_benchmark  # few runs are benchmarks

    return plan_benchmark


def _arguments(typed: Mapping[str, Any]) -> LaunchArguments:
    """The arguments of the command; JSON has lists for their tuples."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in typed.items()}
    config = None if values["config"] is None else Path(values["config"])
    return LaunchArguments(**{**values, "config": config})


@contextmanager
def _attached(link: OwnerLink, terminal: ViewersTerminal) -> Iterator[Launched]:
    folder = find_run(link.request["run"])
    planned, unable = None, ""
    if (plan := folder.read_plan()).max_retries:
        try:
            planned = recorded_launch(folder, terminal)
        except OrchError as error:
            unable = str(error)
            link.warn(f"the run is supervised, but not restarted if it fails: {error}")
        else:
            plan = planned.plan
            for warning in planned.warnings:
                link.warn(warning)
    with closing(direct_launcher(plan, terminal, link.progress)) as launcher:
        if terminal.is_available():  # prompts before the viewer may leave
            with suppress(NodesError):  # all nodes; the supervisor tries again
                launcher.attempt_folders(launcher.attempt())
        yield Launched(folder, launcher, planned=planned, unable_to_restart=unable)


def _leave_the_terminal(folder: RunFolder) -> None:
    """Keep nothing of the viewer's: not its signals, nor its working folder, nor its terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")
    try:
        log = folder.supervisor_log()
    except OSError:  # a full disk
        log = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  closed below
    with log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def _supervise(link: OwnerLink, launched: Launched) -> bool:
    """Supervise the run, and show its logs meanwhile; return whether no other process supervises it."""
    launcher = launched.launcher
    assert isinstance(launcher, DirectLauncher)
    has_ended = threading.Event()
    observed = deque[Sequence[NodeObservation]](maxlen=1)
    watched = link, launched.folder, launcher.without_reconnects(has_ended), observed
    watching = threading.Thread(target=_watch, args=watched)

    def diagnose() -> None:
        if watching.is_alive():
            watching.join(LINES_S)  # the outcome first
        from orchestrator.usecases.diagnose.failure import diagnose_failure  # only if a run has failed

        unreconnected = launcher.without_reconnects(threading.Event())
        record = diagnose_failure(launched.folder, unreconnected, link.warn)
        if record is not None:
            link.post("diagnosed", record=record.to_json())

    def begin() -> None:
        link.post("launched", run=launched.folder.path.name)
        importing = threading.Timer(IMPORT_AFTER_S, _import_for_failures)
        importing.daemon = True
        with suppress(RuntimeError):  # the user may have no more threads: then a failure imports them
            importing.start()
        if not link.request["follow"]:
            return link.end()
        try:
            watching.start()
        except RuntimeError as error:  # the user may have no more threads
            _post_unshown(link, launched.folder, error)
        return None

    link.answer_s = ANSWER_S  # a prompt keeps the other logins and the end of the run waiting
    try:
        restarts = Restarts.of(launched, launcher, link.warn)
        return supervise(launched.folder, launcher, begin, diagnose, restarts=restarts, on_nodes=observed.append)
    except Exception as exc:
        cause, run = machine_error(exc) or exc, launched.folder.path.name
        link.warn(f"the supervisor of the run has failed ({cause}); `orch attach {run}` starts another one")
        raise
    finally:
        has_ended.set()
        if watching.is_alive():
            watching.join()


def _import_for_failures() -> None:
    """Import what only a failure needs: in the middle of a run of weeks, an upgrade may replace the files of orch for a moment."""
    with suppress(ImportError):
        from orchestrator.launch import node_check, spare_check  # noqa: F401
        from orchestrator.portable.checks import network  # noqa: F401
        from orchestrator.usecases.diagnose import failure as diagnose_failure  # noqa: F401


def _watch(
    link: OwnerLink, folder: RunFolder, launcher: DirectLauncher, observed: deque[Sequence[NodeObservation]]
) -> None:
    """Show the logs until the run ends or the viewer leaves; `observed` has the supervisor's last observation of the nodes."""
    try:
        lines = watched_lines(quiet=link.request["quiet"], all_ranks=link.request["all_ranks"])
        reader = LogReader(launcher, folder.read_plan(), link, lines, is_live=link.request["is_live"])
        if "run" in link.request:  # it may have run for weeks
            reader.past(tail=link.request["tail"], unfinished=False)
        record = Watch(
            folder, launcher, reader, link, ends_failed=True, observed=lambda: observed[-1] if observed else ()
        ).to_end()
        link.post("ended", record=record.to_json())
    except ViewerGone:
        return
    except Exception as exc:  # noqa: BLE001  the viewer reports it
        _post_unshown(link, folder, exc)


def _post_unshown(link: OwnerLink, folder: RunFolder, exc: Exception) -> None:
    """Report why the logs are not shown any more; a failure of this machine does not end the run."""
    machine, run = machine_error(exc), folder.path.name
    if machine is not None:
        exc = LaunchError(f"the logs of run {run} cannot be shown: {machine}; the run continues", hint=machine.hint)
    _post_error(link, exc)


def _post_error(link: OwnerLink, exc: BaseException) -> None:
    error = exc if isinstance(exc, OrchError) else machine_error(exc)
    if isinstance(exc, KeyboardInterrupt):
        link.post("interrupted")
    elif error is not None:
        link.post("error", type=type(error).__name__, text=str(error), hint=error.hint, exit_code=error.exit_code)
    else:
        traceback.print_exception(exc)
        text = f"a bug in orch: {type(exc).__name__}: {exc}"
        hint = "report it with the lines above, or those in the run's supervisor.log"
        link.post("error", type="OrchError", text=text, hint=hint, exit_code=BUG)
