"""
The Python interface of orch: it plans, launches and records as the commands do.

    run = orchestrator.submit(["train.py", "--lr", "1e-3"], "h800.yaml", shape="2x8")
    print(run.wait().state)
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.backoff import backoff
from orchestrator.errors import LaunchError, NodesError, UsageError
from orchestrator.launch.start import started
from orchestrator.records.runs import find_run
from orchestrator.records.store import RunFolder
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.owner.reporter import start_reporter
from orchestrator.usecases.owner.viewer import Owner
from orchestrator.usecases.runs import stop
from orchestrator.usecases.runs.refresh import is_kept_up_to_date, refresh

ProgramLike = str | Sequence[str] | Callable[..., object] | None
"""The program and its arguments, as after `--`; or a top-level function of a file; None: the shared trainer."""
LONGEST_POLL_S = 5.0
UNREACHABLE_S = 60.0
# The file runs under another name, so its code below `if __name__ == "__main__":` does not run on the nodes.
CALL = "import json, runpy, sys; file, name, args, kwargs = sys.argv[1:]; runpy.run_path(file, run_name='orch')[name](*json.loads(args), **json.loads(kwargs))"


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was launched from this machine: `Run("latest")`, or an id, the beginning of one, or a name; RunNotFound otherwise."""

    id: str
    warnings: tuple[str, ...] = ()
    """Warnings of the launch, one sentence each."""

    def __post_init__(self) -> None:
        """Resolve the name, so that the object keeps its run whatever is launched later."""
        object.__setattr__(self, "id", find_run(self.id).path.name)

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


def submit(
    program: ProgramLike,
    inventory: str | Path | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    settings: Mapping[str, object] | None = None,
    nodes: str | None = None,
    shape: str | None = None,
    bare: bool = False,
    per_node: bool = False,
    until_head: bool = False,
    name: str | None = None,
    note: str | None = None,
    tags: str | Sequence[str] = (),
    debug: bool = False,
    env: Mapping[str, object] | None = None,
    max_retries: int | None = None,
    slurm: Mapping[str, object] | None = None,
    after: str | Sequence[str] = (),
    here: bool = False,
    no_check: bool = False,
    skip: str | Sequence[str] = (),
) -> Run:
    """
    Start a run through Slurm, with the code of the working folder, and return at once.

    Args:
        program: the words after `--` as a list, or as one text that is split as a shell does; a top-level function of a file; None:
            the shared trainer.
        inventory: as after -i.
        args: arguments of a function, values that JSON can hold; `kwargs` by name.
        settings: those of the shared trainer, such as `{"optim.lr": 1e-3}`.
        nodes: as after --nodes; `shape` as after -j; `name`, `note` and the flags as the options of the command.
        tags: one, or several; `after` and `skip` alike.
        slurm: fields of `slurm:` for this run, as after --set.

    Raises:
        OrchError: as from the command; what had started was stopped, or is named in the message.
    """
    return _launched(
        LaunchArguments(
            "slurm",
            inventory=None if inventory is None else str(inventory),
            nodes=nodes,
            shape=shape,
            config=None,
            settings=_assignments(settings),
            program=_argv(program, args, kwargs or {}),
            bare=bare,
            per_node=per_node,
            until_head=until_head,
            name=name,
            note=note,
            tags=_words(tags),
            debug=debug,
            env=_assignments(env),
            max_retries=max_retries,
            slurm=tuple(_slurm_words(slurm or {})),
            after=_words(after),
            here=here,
            no_check=no_check,
            skipped=_words(skip),
        )
    )


def ssh_launch(
    program: ProgramLike,
    inventory: str | Path | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    settings: Mapping[str, object] | None = None,
    nodes: str | None = None,
    shape: str | None = None,
    bare: bool = False,
    per_node: bool = False,
    until_head: bool = False,
    name: str | None = None,
    note: str | None = None,
    tags: str | Sequence[str] = (),
    debug: bool = False,
    env: Mapping[str, object] | None = None,
    max_retries: int | None = None,
    elastic: str | None = None,
    share: bool = False,
    wait_free: str | None = None,
    no_check: bool = False,
    skip: str | Sequence[str] = (),
) -> Run:
    """
    Start a run over SSH, or on this machine (transport local), and return at once. Arguments as of `submit`.

    Args:
        elastic: MIN:MAX, as after --elastic.
        share: start also on cards that another run of yours holds; `wait_free`: wait for them at most this time span, as in "2h".
    """
    return _launched(
        LaunchArguments(
            "ssh",
            inventory=None if inventory is None else str(inventory),
            nodes=nodes,
            shape=shape,
            config=None,
            settings=_assignments(settings),
            program=_argv(program, args, kwargs or {}),
            bare=bare,
            per_node=per_node,
            until_head=until_head,
            name=name,
            note=note,
            tags=_words(tags),
            debug=debug,
            env=_assignments(env),
            max_retries=max_retries,
            elastic=elastic,
            share=share,
            wait_free=wait_free,
            no_check=no_check,
            skipped=_words(skip),
        )
    )


def _launched(arguments: LaunchArguments) -> Run:
    warnings: list[str] = []
    if arguments.launcher == "ssh":
        with Owner.of_launch(arguments, follow=False) as owner:
            run = owner.until_launched(warnings.append, warnings.append)
        return Run(run, tuple(warnings))
    planned = plan_launch(arguments)
    warnings += planned.warnings
    with started(planned, warnings.append) as launched:
        start_reporter(launched.folder)
    return Run(planned.plan.run_id, tuple(warnings))


def _words(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _assignments(given: Mapping[str, object] | None) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in (given or {}).items())


def _slurm_words(fields: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The fields as options of the command line; a list is one option per item."""
    for field, value in fields.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            yield "--set", f"slurm.{field}={item}"


def _split(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as exc:
        raise UsageError(f"program {command!r}: {exc}", hint="close the quote, or give a list of words") from exc


def _argv(program: ProgramLike, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...] | None:
    if not callable(program):
        if args or kwargs:
            raise UsageError("args and kwargs are for a function", hint="put a program and its arguments into one list")
        return _split(program) if isinstance(program, str) else None if program is None else tuple(program)
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
