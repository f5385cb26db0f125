"""`orch ssh-launch` and `orch submit`: from words to a plan, from the plan to a run, and watch it."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from orchestrator import bundle as bundles
from orchestrator.actions.request import Words, request_of
from orchestrator.commands.inventory import load_inventory
from orchestrator.console import print_text, say
from orchestrator.errors import LaunchError, OrchError
from orchestrator.inventory.model import Inventory
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.discovery import probed
from orchestrator.launchers.slurm.host import home_of_slurm
from orchestrator.plan import transcript
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import Request, RunRecord, RunState, new_run_id
from orchestrator.store import RunFolder, Store, home
from orchestrator.transports.terminal import Terminal
from orchestrator.verdict.launching import this_process
from orchestrator.version import __version__


@dataclass(frozen=True, slots=True)
class Planned:
    """A launch that has been decided, and nothing of it begun."""

    plan: LaunchPlan
    bundle: bundles.Bundle
    record: RunRecord
    private: Sequence[str]


def launch(words: Words, *, dry_run: bool, follow: bool) -> int:
    """Plan, then act; returns the exit code."""
    planned = plan_of(words)
    if dry_run:
        print_text(transcript.of(planned.plan))
        return 0
    with started(planned) as (folder, launcher, terminal_closed):
        if terminal_closed:  # nobody reads on, and the run goes on
            return 0
        if not follow:
            print_text(f"{planned.plan.run_id}\n")
            return 0
        from orchestrator.actions.watch import watch  # noqa: PLC0415  while Slurm or the nodes begin

        return watch(folder, launcher)


def plan_of(words: Words) -> Planned:
    """Decide everything, and say what is worth a warning."""
    inventory = load_inventory(words.inventory, words.nodes if words.launcher == "ssh" else None)
    if words.launcher == "ssh" and inventory.accelerator == "auto" and inventory.devices is None:
        inventory = probed(inventory, words.nodes)
    request, bundle = request_of(words, inventory.private_files)
    now = datetime.now(timezone.utc)
    run_id = new_run_id(inventory.name, now, secrets.token_hex(2))
    there = home_of_slurm(inventory) if words.launcher == "slurm" else None
    plan = make_plan(inventory, request, run_id=run_id, bundle=bundle.digest, home=there)
    for link in bundle.left_out:
        say(f"warning: the symbolic link {link} leads out of the code and does not travel")
    for warning in plan.warnings:
        say(f"warning: {warning}")
    return Planned(plan, bundle, _record(plan, request, inventory, now), inventory.private_files)


@contextmanager
def started(planned: Planned) -> Iterator[tuple[RunFolder, Launcher, bool]]:
    """Start the run; gives its record, its launcher, and whether the terminal was closed meanwhile."""
    terminal = Terminal()
    launcher = launcher_for(planned.plan, terminal)
    try:
        with _terminal_may_close() as closed, sigterm_interrupts():
            folder = _start(planned, launcher)
        with _looked_after(folder, planned.plan, asked=terminal.asked):
            yield folder, launcher, closed.is_set()
    finally:
        launcher.close()


def _looked_after(folder: RunFolder, plan: LaunchPlan, *, asked: bool) -> AbstractContextManager[None]:
    """Have a supervisor for the run; `asked` says whether somebody had to answer the nodes, as a supervisor cannot."""
    if plan.launcher == "slurm":  # which supervises its jobs itself
        return nullcontext()
    from orchestrator.supervision.start import say_that_nodes_ask, supervised  # noqa: PLC0415  while the nodes begin

    if asked:
        folder.update(attended=True)
        say_that_nodes_ask(folder)
    return supervised(folder)


@contextmanager
def _terminal_may_close() -> Iterator[threading.Event]:
    """Bring a launch to its end though the terminal is closed, which the event then says; under nohup nobody asks."""
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


def _start(planned: Planned, launcher: Launcher) -> RunFolder:
    """Write the record before anything starts; a launch that fails is a FAILED run, or a LOST one if something may be left."""
    folder = Store(home(os.environ)).create(planned.record)
    when, after = "while connecting", "nothing was started"
    try:
        with ThreadPoolExecutor(1) as aside:
            writing = aside.submit(complete, folder, planned)
            doubts = launcher.connect()  # waits for the network meanwhile
            writing.result()
        for doubt in doubts:
            say(f"warning: {doubt}")
        when, after = "during the launch", "what had started was stopped"
        job = launcher.start(planned.bundle)
        folder.update(slurm_job=job, started=True, launching=None)
        keep_as_carried_out(folder, planned.plan, launcher.plan)
    except OrchError as exc:
        if left := give_up([folder], launcher, RunState.FAILED, str(exc)):
            raise left from exc
        raise
    except OSError as exc:
        why = f"the launch failed: {exc}"
        left = give_up([folder], launcher, RunState.FAILED, why)
        raise left or LaunchError(f"{why}; {after}") from exc
    except KeyboardInterrupt:
        left = give_up([folder], launcher, RunState.STOPPED, f"interrupted {when}")
        raise left or LaunchError(f"interrupted {when}; {after}") from None
    return folder


def complete(folder: RunFolder, planned: Planned) -> None:
    """Add to the record what need not be in it from the first moment."""
    folder.write_plan(planned.plan)
    folder.update(state=RunState.STARTING, code=_code(folder, planned.private))


def keep_as_carried_out(folder: RunFolder, planned: LaunchPlan, plan: LaunchPlan) -> None:
    """Record the plan and tell its warnings, where it is not the one that was made."""
    if plan is not planned:
        folder.write_plan(plan)
        for warning in plan.warnings[len(planned.warnings) :]:
            say(f"warning: {warning}")


def give_up(folders: Sequence[RunFolder], launcher: Launcher, state: RunState, why: str) -> LaunchError | None:
    """Stop what had started of these runs; an error if something may be left, for then they have not ended."""
    try:
        if state is RunState.STOPPED:
            launcher.close()  # whatever waits for a node need not go on, and starts nothing any more
            for folder in folders:
                folder.ask_to_stop()
        left = launcher.undo()
    except KeyboardInterrupt:
        left = ["interrupted again: nobody waited for the nodes"]
    for folder in folders:
        if left:
            folder.update(state=RunState.LOST, message=f"{why}; not everything could be stopped", launching=None)
        else:
            folder.update(state=state, message=why, launching=None, ended=datetime.now(timezone.utc).isoformat())
    if not left:
        return None
    again = f"once the nodes can be reached, `orch stop {folders[0].path.name}` ends what is left"
    return LaunchError("\n  ".join([why, "not everything could be stopped:", *left]), hint=again)


def _code(folder: RunFolder, private: Sequence[str]) -> dict[str, Any]:
    """Which code the user has here; what differs from its commit is kept beside the record, less `private` files."""
    commit, diff = bundles.revision(Path.cwd(), private)
    if diff:
        folder.write_diff(diff)
    return {"commit": commit, "dirty": bool(diff)}


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
