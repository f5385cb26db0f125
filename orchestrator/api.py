"""
The Python interface of orch: it plans, launches and records as the commands do.

    run = orchestrator.submit(["train.py", "--lr", "1e-3"], "h800.yaml", shape="2x8")
    print(run.wait().state)
"""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from orchestrator.actions import stop
from orchestrator.actions.launch import plan_launch, started
from orchestrator.actions.launch_arguments import LaunchArguments
from orchestrator.actions.refresh import is_kept_up_to_date, refresh
from orchestrator.actions.runs import find_run
from orchestrator.actions.viewer import Owner
from orchestrator.backoff import backoff
from orchestrator.errors import LaunchError, NodesError, UsageError
from orchestrator.run import LauncherName, RunRecord, RunState
from orchestrator.store import RunFolder

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing itself from Python 3.11 on

ProgramLike = Sequence[str] | Callable[..., object] | None
"""The program and its arguments, as after `--`; or a top-level function of a file; None: the shared trainer."""
LONGEST_POLL_S = 5.0
UNREACHABLE_S = 60.0
# The file runs under another name, so its code below `if __name__ == "__main__":` does not run on the nodes.
CALL = "import json, runpy, sys; file, name, args, kwargs = sys.argv[1:]; runpy.run_path(file, run_name='orch')[name](*json.loads(args), **json.loads(kwargs))"


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was launched from this machine."""

    id: str
    warnings: tuple[str, ...] = ()
    """Warnings of the launch, one sentence each."""

    @property
    def record(self) -> RunRecord:
        """The record on this machine; nothing is queried."""
        return self._folder.read()

    def status(self) -> RunRecord:
        """Query nodes and scheduler; returns the updated record."""
        return refresh(self._folder).record

    def wait(self, timeout_s: float | None = None) -> RunRecord:
        """
        Wait until the run is over; returns its record.

        While the run has a supervisor, only the record is read; otherwise nodes and scheduler are queried.

        Raises:
            TimeoutError: it is not over after `timeout_s`.
            LaunchError: it has failed on one node, and no supervisor ends it on the others.
            NodesError: no node has answered for a minute, and the run has no supervisor.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pauses, answered_s = backoff(LONGEST_POLL_S), time.monotonic()
        while True:
            is_up_to_date = is_kept_up_to_date(self._folder)  # before the read: the supervisor may end in between
            record = self.record
            if not record.state.ended and not is_up_to_date:
                try:
                    refreshed = refresh(self._folder)
                except NodesError:
                    if time.monotonic() - answered_s > UNREACHABLE_S:
                        raise
                else:
                    record, answered_s = refreshed.record, time.monotonic()
                    if not record.state.final and (warning := refreshed.not_being_ended()):
                        raise LaunchError(f"{record.message}: {warning}")
                    if record.state is RunState.LOST:
                        return record
            if record.state.ended:
                return record
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {self.id} is {record.state.value} after {timeout_s:g} s")
            time.sleep(next(pauses))

    def stop(self) -> RunRecord:
        """End the run on every node; returns its record."""
        return stop.stop(self._folder, lambda _text: None)

    @property
    def _folder(self) -> RunFolder:
        return find_run(self.id)


class Options(TypedDict, total=False):
    """Optional arguments of submit and ssh_launch."""

    args: Sequence[Any]
    """Arguments of a function: values that JSON can hold."""
    kwargs: Mapping[str, Any]
    """Keyword arguments of a function: values that JSON can hold."""
    settings: Mapping[str, object]
    """Settings of the shared trainer, such as `{"optim.lr": 1e-3}`."""
    nodes: str
    """As after --nodes."""
    shape: str
    """As after -j."""
    bare: bool
    """As --bare."""
    name: str
    """As --name."""
    note: str
    """As --note."""
    tags: Sequence[str]
    """As --tag, each."""
    per_node: bool
    """As --per-node."""
    until_head: bool
    """As --until-head."""
    debug: bool
    """As --debug."""
    max_retries: int
    """As --max-retries."""
    elastic: str
    """As --elastic; with `ssh_launch` only."""
    slurm: Mapping[str, object]
    """Fields of `slurm:` for this run, as --set; with `submit` only, like the next two."""
    after: Sequence[str]
    """As --after, each."""
    here: bool
    """As --here."""
    no_check: bool
    """As --no-check."""
    skip: Sequence[str]
    """As --skip, each."""


def submit(program: ProgramLike, inventory: str | Path | None = None, **options: Unpack[Options]) -> Run:
    """
    Start a run through Slurm, with the code of the working folder, and return at once.

    Raises:
        OrchError: as from the command; what had started was stopped, or is named in the message.
    """
    return _launched("slurm", program, inventory, options)


def ssh_launch(program: ProgramLike, inventory: str | Path | None = None, **options: Unpack[Options]) -> Run:
    """Start a run over SSH, or on this machine (transport local). Otherwise as submit."""
    return _launched("ssh", program, inventory, options)


def _launched(launcher: LauncherName, program: ProgramLike, inventory: str | Path | None, options: Options) -> Run:
    given = next((name for name in ("slurm", "after", "here") if name in options), None)
    if launcher == "ssh" and given is not None:
        raise UsageError(f"{given}= is for runs through Slurm", hint=f"orchestrator.submit, or omit {given}=")
    arguments = LaunchArguments(
        launcher,
        inventory=None if inventory is None else str(inventory),
        nodes=options.get("nodes"),
        shape=options.get("shape"),
        config=None,
        settings=tuple(f"{name}={value}" for name, value in options.get("settings", {}).items()),
        program=_argv(program, options.get("args", ()), options.get("kwargs", {})),
        bare=options.get("bare", False),
        name=options.get("name"),
        note=options.get("note"),
        tags=tuple(options.get("tags", ())),
        per_node=options.get("per_node", False),
        until_head=options.get("until_head", False),
        debug=options.get("debug", False),
        max_retries=options.get("max_retries"),
        elastic=options.get("elastic"),
        slurm=tuple(_slurm_words(options.get("slurm", {}))),
        after=tuple(options.get("after", ())),
        here=options.get("here", False),
        no_check=options.get("no_check", False),
        skipped=tuple(options.get("skip", ())),
    )
    warnings: list[str] = []
    if launcher == "ssh":
        with Owner.of_launch(arguments, follow=False) as owner:
            run = owner.until_launched(warnings.append, warnings.append)
        return Run(run, tuple(warnings))
    planned = plan_launch(arguments)
    warnings += planned.warnings
    with started(planned, warnings.append):
        pass
    return Run(planned.plan.run_id, tuple(warnings))


def _slurm_words(fields: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The fields as options of the command line; a list is one option per item."""
    for field, value in fields.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            yield "--set", f"slurm.{field}={item}"


def _argv(program: ProgramLike, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...] | None:
    if not callable(program):
        if args or kwargs:
            raise UsageError("args and kwargs are for a function", hint="put a program and its arguments into one list")
        return None if program is None else tuple(program)
    name = getattr(program, "__qualname__", "")
    file = inspect.getsourcefile(program) if inspect.isfunction(program) else None
    if file is None or not name.isidentifier():
        raise UsageError(f"{program!r} is not a function of a file", hint="define it at the top level of one")
    path = os.path.relpath(Path(file).resolve(), Path.cwd().resolve())
    if path.startswith(".."):
        raise UsageError(
            f"{file} is not below {Path.cwd()}, so it would not be sent to the nodes", hint="start from its folder"
        )
    try:
        return ("-c", CALL, path, name, json.dumps(list(args)), json.dumps(dict(kwargs)))
    except (TypeError, ValueError) as exc:
        raise UsageError(f"arguments of {name}: {exc}", hint="use numbers, text, lists and mappings") from exc
