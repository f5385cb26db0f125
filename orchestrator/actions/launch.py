"""The launch: from the user's words to a plan, from the plan to a run that has started and is supervised."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from orchestrator import bundle as bundles
from orchestrator.actions.inventory import load_inventory
from orchestrator.actions.request import Words, request_of
from orchestrator.endpoint.access import Terminal
from orchestrator.errors import LaunchError, OrchError
from orchestrator.inventory.model import Inventory
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.discovery import probed
from orchestrator.launchers.slurm.host import home_of_slurm
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import Request, RunRecord, RunState, new_run_id
from orchestrator.store import RunFolder, Store, home
from orchestrator.verdict.launching import this_process
from orchestrator.version import __version__


@dataclass(frozen=True, slots=True)
class Planned:
    """A launch that is decided and not yet begun."""

    plan: LaunchPlan
    bundle: bundles.Bundle
    record: RunRecord
    private: Sequence[str]
    """Files that do not travel and are in no record."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Launched:
    """A run that has started."""

    folder: RunFolder
    launcher: Launcher
    terminal_closed: bool = False
    """The terminal was closed during the launch: there is nobody to show the run to."""


def plan_of(words: Words) -> Planned:
    """Decide everything; nothing is started or written."""
    inventory = load_inventory(words.inventory, words.nodes if words.launcher == "ssh" else None)
    if words.launcher == "ssh" and inventory.accelerator == "auto" and inventory.devices is None:
        inventory = probed(inventory, words.nodes)
    request, bundle = request_of(words, inventory.private_files)
    now = datetime.now(timezone.utc)
    run_id = new_run_id(inventory.name, now, secrets.token_hex(2))
    slurm_home = home_of_slurm(inventory) if words.launcher == "slurm" else None
    plan = make_plan(inventory, request, run_id=run_id, bundle=bundle.digest, home=slurm_home)
    links = (f"the symbolic link {link} leads out of the code and does not travel" for link in bundle.left_out)
    record = _record(plan, request, inventory, now)
    return Planned(plan, bundle, record, inventory.private_files, (*links, *plan.warnings))


@contextmanager
def started(planned: Planned, on_warning: Callable[[str], None]) -> Iterator[Launched]:
    """
    Start the run; the launcher stays connected within the context.

    Raises:
        OrchError: the launch failed; what had started was stopped, or is named.
    """
    terminal = Terminal()
    launcher = launcher_for(planned.plan, terminal)
    try:
        with _terminal_may_close() as closed, sigterm_interrupts():
            folder = _start(planned, launcher, on_warning)
        with _supervised(folder, planned.plan, on_warning, asked=terminal.asked):
            yield Launched(folder, launcher, closed.is_set())
    finally:
        launcher.close()


def _supervised(
    folder: RunFolder, plan: LaunchPlan, on_warning: Callable[[str], None], *, asked: bool
) -> AbstractContextManager[None]:
    """Start a supervisor for the run; `asked`: a person had to answer for a login, which a supervisor cannot."""
    if plan.launcher == "slurm":  # which supervises its jobs itself
        return nullcontext()
    from orchestrator.supervision.start import logins_need_answers, supervised  # noqa: PLC0415  while the nodes begin

    if asked:
        folder.update(attended=True)
        on_warning(logins_need_answers(folder))
    return supervised(folder, on_warning)


@contextmanager
def _terminal_may_close() -> Iterator[threading.Event]:
    """Finish a launch although its terminal is closed (SIGHUP), which sets the event; under nohup it never is."""
    closed = threading.Event()
    with _handled(signal.SIGHUP, lambda *_: closed.set()):
        yield closed


def sigterm_interrupts() -> AbstractContextManager[None]:
    """Treat SIGTERM as Ctrl-C during a launch: `orch stop` sends it, because a shell's `&` makes orch ignore SIGINT."""
    return _handled(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def _handled(number: signal.Signals, handler: Callable[..., object]) -> Iterator[None]:
    """Handle a signal that has its default action; one that is ignored or handled by the caller of the API stays so."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    if signal.getsignal(number) is not signal.SIG_DFL or not is_main_thread:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)


def _start(planned: Planned, launcher: Launcher, on_warning: Callable[[str], None]) -> RunFolder:
    """Write the record before anything starts; a launch that fails is a FAILED run, or a LOST one if something may be left."""
    folder = Store(home(os.environ)).create(planned.record)
    with undo_on_failure([folder], launcher, "while connecting; nothing was started"):
        with ThreadPoolExecutor(1) as executor:
            writing = executor.submit(complete, folder, planned)
            doubts = launcher.connect()  # waits for the network meanwhile
            writing.result()
        for doubt in doubts:
            on_warning(doubt)
    with undo_on_failure([folder], launcher, "during the launch; what had started was stopped"):
        job = launcher.start(planned.bundle)
        folder.update(slurm_job=job, started=True, launching=None)
        for warning in keep_as_carried_out(folder, planned.plan, launcher.plan):
            on_warning(warning)
    return folder


@contextmanager
def undo_on_failure(folders: Sequence[RunFolder], launcher: Launcher, outcome: str) -> Iterator[None]:
    """
    If the block fails, whatever the reason, stop what had started of these runs and record why.

    Args:
        outcome: when the failure happens, and what is left then; for the message.

    Raises:
        LaunchError: instead of a KeyboardInterrupt or OSError, and if something may still be running.
    """
    when, _, left = outcome.partition("; ")
    try:
        yield
    except KeyboardInterrupt:
        failure = give_up(folders, launcher, RunState.STOPPED, f"interrupted {when}")
        raise failure or LaunchError(f"interrupted {outcome}") from None
    except OSError as exc:
        why = f"the launch failed: {exc}"
        raise give_up(folders, launcher, RunState.FAILED, why) or LaunchError(f"{why}; {left}") from exc
    except BaseException as exc:
        why = str(exc) if isinstance(exc, OrchError) else f"the launch failed: {type(exc).__name__}: {exc}"
        if failure := give_up(folders, launcher, RunState.FAILED, why):
            raise failure from exc
        raise


def complete(folder: RunFolder, planned: Planned) -> None:
    """Add the plan and the code's state to the record: neither needs to be there from the first moment."""
    folder.write_plan(planned.plan)
    commit, diff = bundles.revision(Path.cwd(), planned.private)
    if diff:
        folder.write_diff(diff)
    folder.update(state=RunState.STARTING, code={"commit": commit, "dirty": bool(diff)})


def keep_as_carried_out(folder: RunFolder, planned: LaunchPlan, plan: LaunchPlan) -> Sequence[str]:
    """Record the plan if the launcher changed it; return the warnings that it has added."""
    if plan is planned:
        return ()
    folder.write_plan(plan)
    return plan.warnings[len(planned.warnings) :]


def give_up(folders: Sequence[RunFolder], launcher: Launcher, state: RunState, why: str) -> LaunchError | None:
    """Stop what had started of these runs and record why; return an error if something may still be running."""
    try:
        if state is RunState.STOPPED:
            launcher.close()  # ends what still waits for a node, so that it starts nothing any more
            for folder in folders:
                folder.ask_to_stop()
        left = launcher.undo()
    except KeyboardInterrupt:
        left = ["interrupted again: nobody waited for the nodes"]
    except Exception as exc:  # noqa: BLE001  the first failure is the one to report
        left = [f"it could not be stopped: {exc}"]
    if left:
        changes: dict[str, Any] = {"state": RunState.LOST, "message": f"{why}; not everything could be stopped"}
    else:
        changes = {"state": state, "message": why, "ended": datetime.now(timezone.utc).isoformat()}
    for folder in folders:
        with suppress(OSError, OrchError):  # the disk may be why the launch failed
            folder.update(**changes, launching=None)
    if not left:
        return None
    hint = f"once the nodes can be reached, `orch stop {folders[0].path.name}` ends what is left"
    return LaunchError("\n  ".join([why, "not everything could be stopped:", *left]), hint=hint)


def _record(plan: LaunchPlan, request: Request, inventory: Inventory, now: datetime) -> RunRecord:
    return RunRecord(
        id=plan.run_id,
        launcher=plan.launcher,
        state=RunState.PENDING,
        created=now.isoformat(),
        request=asdict(request),
        inventory={"name": inventory.name, "file": inventory.file, "digest": inventory.digest},
        code={},
        launching=this_process(),
        versions={"orch": __version__, "python": sys.version.split()[0]},
    )
