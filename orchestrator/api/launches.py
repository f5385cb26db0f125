"""
Start runs.

    run = orchestrator.submit(["train.py", "--lr", "1e-3"], "h800.yaml", shape="2x8")
    print(run.wait().state)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from orchestrator.api.program import ProgramLike, argv_of
from orchestrator.api.recorded import Runs, words
from orchestrator.api.run import Run
from orchestrator.errors import UsageError
from orchestrator.launch.start import started
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch.transcript import dry_run_text
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.owner.reporter import start_reporter
from orchestrator.usecases.owner.viewer import Owner

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


class _Options(TypedDict, total=False):
    """The parameters of both functions, for the overloads; their defaults and texts are below."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    config: str | Path | None
    settings: Mapping[str, object] | None
    nodes: str | None
    shape: str | None
    bare: bool
    per_node: bool
    until_head: bool
    name: str | None
    note: str | None
    tags: str | Sequence[str]
    debug: bool
    env: Mapping[str, object] | None
    max_retries: int | None
    no_check: bool
    skip: str | Sequence[str]


class _SlurmOptions(_Options, total=False):
    slurm: Mapping[str, object] | None
    after: str | Sequence[str]
    here: bool


class _SshOptions(_Options, total=False):
    elastic: str | None
    share: bool
    wait_free: str | None


@overload
def submit(
    program: ProgramLike,
    inventory: str | Path | None = None,
    *,
    dry_run: Literal[False] = False,
    sweep: None = None,
    **options: Unpack[_SlurmOptions],
) -> Run: ...


@overload
def submit(
    program: ProgramLike,
    inventory: str | Path | None = None,
    *,
    dry_run: Literal[False] = False,
    sweep: Mapping[str, Sequence[object]],
    at_once: int | None = None,
    **options: Unpack[_SlurmOptions],
) -> Runs: ...


@overload
def submit(
    program: ProgramLike,
    inventory: str | Path | None = None,
    *,
    dry_run: Literal[True],
    sweep: Mapping[str, Sequence[object]] | None = None,
    at_once: int | None = None,
    **options: Unpack[_SlurmOptions],
) -> str: ...


def submit(
    program: ProgramLike,
    inventory: str | Path | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
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
    sweep: Mapping[str, Sequence[object]] | None = None,
    at_once: int | None = None,
    dry_run: bool = False,
) -> Run | Runs | str:
    """
    Start a run through Slurm, with the code of the working folder, and return at once.

    Args:
        program: the words after `--` as a list, or as one text that is split as a shell does; a top-level function of a file; None:
            the shared trainer.
        inventory: as after -i.
        args: arguments of a function, values that JSON can hold; `kwargs` by name.
        config: a configuration file of the shared trainer, as after --config.
        settings: those of the shared trainer, such as `{"optim.lr": 1e-3}`.
        nodes: as after --nodes; `shape` as after -j; `name`, `note` and the flags as the options of the command.
        tags: one, or several; `after` and `skip` alike.
        slurm: fields of `slurm:` for this run, as after --set.
        sweep: start one run per combination of these values, as with --sweep: `{"optim.lr": [1e-3, 3e-4]}`, and return
            their Runs; `at_once`: the largest number that runs at a time.
        dry_run: start nothing, and return the text that the command prints with --dry-run, after its warnings as comments.

    Raises:
        OrchError: as from the command; what had started was stopped, or is named in the message.
    """
    arguments = LaunchArguments(
        "slurm",
        inventory=None if inventory is None else str(inventory),
        nodes=nodes,
        shape=shape,
        config=None if config is None else Path(config),
        settings=_assignments(settings),
        program=argv_of(program, args, kwargs or {}),
        bare=bare,
        per_node=per_node,
        until_head=until_head,
        name=name,
        note=note,
        tags=words(tags),
        debug=debug,
        env=_assignments(env),
        max_retries=max_retries,
        slurm=tuple(_slurm_words(slurm or {})),
        after=words(after),
        here=here,
        no_check=no_check,
        skipped=words(skip),
    )
    if sweep is not None:
        return _swept(arguments, sweep, at_once, dry_run=dry_run)
    if at_once is not None:
        raise UsageError("at_once is for the runs of a sweep", hint="give sweep={KEY: [A, B]} as well, or omit at_once")
    return _dry_run(arguments) if dry_run else _launched(arguments)


@overload
def ssh_launch(
    program: ProgramLike,
    inventory: str | Path | None = None,
    *,
    dry_run: Literal[False] = False,
    **options: Unpack[_SshOptions],
) -> Run: ...


@overload
def ssh_launch(
    program: ProgramLike, inventory: str | Path | None = None, *, dry_run: Literal[True], **options: Unpack[_SshOptions]
) -> str: ...


def ssh_launch(
    program: ProgramLike,
    inventory: str | Path | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
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
    dry_run: bool = False,
) -> Run | str:
    """
    Start a run over SSH, or on this machine (transport local), and return at once. Arguments as of `submit`.

    Args:
        elastic: MIN:MAX, as after --elastic.
        share: start also on cards that another run of yours holds; `wait_free`: wait for them at most this time span, as in "2h".
    """
    arguments = LaunchArguments(
        "ssh",
        inventory=None if inventory is None else str(inventory),
        nodes=nodes,
        shape=shape,
        config=None if config is None else Path(config),
        settings=_assignments(settings),
        program=argv_of(program, args, kwargs or {}),
        bare=bare,
        per_node=per_node,
        until_head=until_head,
        name=name,
        note=note,
        tags=words(tags),
        debug=debug,
        env=_assignments(env),
        max_retries=max_retries,
        elastic=elastic,
        share=share,
        wait_free=wait_free,
        no_check=no_check,
        skipped=words(skip),
    )
    return _dry_run(arguments) if dry_run else _launched(arguments)


def _launched(arguments: LaunchArguments) -> Run:
    warnings: list[str] = []
    if not arguments.by_scheduler:
        with Owner.of_launch(arguments, follow=False) as owner:
            run = owner.until_launched(warnings.append, warnings.append)
        return Run(run, tuple(warnings))
    planned = plan_launch(arguments)
    warnings += planned.warnings
    with started(planned, warnings.append) as launched:
        start_reporter(launched.folder)
    return Run(planned.plan.run_id, tuple(warnings))


def _swept(
    arguments: LaunchArguments, axes: Mapping[str, Sequence[object]], at_once: int | None, *, dry_run: bool
) -> Runs | str:
    from orchestrator.usecases.launch.sweep import plan_sweep, submit  # imports Slurm's modules

    planned = plan_sweep(arguments, [_axis(key, values) for key, values in axes.items()], at_once)
    warnings = list(planned[0].warnings)
    if dry_run:
        return _with_warnings("\n".join(dry_run_text(run.plan) for run in planned), warnings)
    submit(planned, warnings.append)
    return Runs((Run(run.plan.run_id) for run in planned), warnings)


def _axis(key: str, values: Sequence[object]) -> str:
    """The argument of --sweep."""
    texts = [values] if isinstance(values, str) else [str(value) for value in values]
    if unusable := [text for text in texts if "," in text]:
        raise UsageError(f"sweep: {key}: {unusable[0]!r} has a comma", hint="give values without commas")
    return f"{key}={','.join(texts)}"


def _dry_run(arguments: LaunchArguments) -> str:
    planned = plan_launch(arguments)
    planned.close()
    return _with_warnings(dry_run_text(planned.plan, planned.bundle.report), planned.warnings)


def _with_warnings(text: str, warnings: Sequence[str]) -> str:
    return "".join(f"# Warning: {warning}\n" for warning in warnings) + text


def _assignments(given: Mapping[str, object] | None) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in (given or {}).items())


def _slurm_words(fields: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The fields as options of the command line; a list is one option per item."""
    for field, value in fields.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            yield "--set", f"slurm.{field}={item}"
