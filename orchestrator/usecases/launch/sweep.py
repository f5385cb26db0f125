"""A sweep: one run per combination of settings, submitted together as one Slurm array, one task per run."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial

from orchestrator.endpoint.access import Terminal
from orchestrator.errors import LaunchError, NodeError, OrchError, RunNotFound, UsageError
from orchestrator.fanout import map_parallel
from orchestrator.launch.planned import Planned
from orchestrator.launch.signals import sigterm_interrupts, survive_sighup
from orchestrator.launch.start import record_plan
from orchestrator.launch.undo import undo_on_failure
from orchestrator.launchers.slurm.host import slurm_host
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm.queue import array_id, job_statuses
from orchestrator.plan.plan import LaunchPlan, Sweep
from orchestrator.plan.resolve import Facts, resolve
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import find_sweep, home_store
from orchestrator.run import RunRecord, RunState, new_run_id
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch.request import trainer_config
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.runs.stop import cancel_launch, stop, unended_runs, wait_for_launch
from orchestrator.verdict.launching import is_launching

MOST_RUNS = 1000  # Slurm's MaxArraySize is 1001 by default
CHECKED_AT_ONCE = 8
STOPPED_AT_ONCE = 8
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def combinations(words: Sequence[str], settings: Sequence[str] = ()) -> list[Mapping[str, str]]:
    """
    Return the swept settings of each run: every combination once, in order, the last axis varying fastest.

    Args:
        words: the arguments of --sweep, such as `optim.lr=1e-3,3e-4`.
        settings: the settings of all runs, such as `steps=20`; a key cannot be both.

    Raises:
        UsageError: a word is not a list of values for a setting, or there are too many combinations.
    """
    axes = dict(map(_axis, words))
    if len(axes) < len(words):
        raise UsageError("--sweep: a setting is swept twice", hint="give all values in one --sweep KEY=A,B,C")
    if both := sorted(axes.keys() & {word.partition("=")[0] for word in settings}):
        raise UsageError(f"{both[0]} is swept and set as well", hint=f"omit {both[0]}=… or its --sweep")
    count = math.prod(map(len, axes.values()))
    if count > MOST_RUNS:
        raise UsageError(f"--sweep: {count} combinations; at most {MOST_RUNS} go into one sweep")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _axis(word: str) -> tuple[str, tuple[str, ...]]:
    key, _, text = word.partition("=")
    values = tuple(text.split(","))
    if not _KEY.fullmatch(key) or not all(values) or len(set(values)) < len(values):
        raise UsageError(
            f"--sweep {word}: not a setting with different values", hint="as in --sweep optim.lr=1e-3,3e-4"
        )
    return key, values


def plan_sweep(arguments: LaunchArguments, axes: Sequence[str], at_once: int | None = None) -> list[Planned]:
    """
    Plan all runs of a sweep; all but their settings, or the arguments of a program, is planned once.

    Args:
        axes: the arguments of --sweep.
        at_once: how many runs may run at the same time; None for no limit.

    Raises:
        UsageError: the sweep is impossible, or the trainer refuses the settings of a run.
    """
    if arguments.here:
        raise UsageError(
            "--sweep is a job array, and --here queues no job", hint="omit --here, or start the runs in a loop"
        )
    swept = combinations(axes, arguments.settings)
    if arguments.program is None:
        words = [(*arguments.settings, *(f"{key}={value}" for key, value in values.items())) for values in swept]
        _check_settings(arguments, words)
        first = plan_launch(replace(arguments, settings=words[0]))
    else:
        words = [with_values(arguments.program, values) for values in swept]
        first = plan_launch(replace(arguments, program=words[0]))
        if first.plan.keep:
            text = "keep: of the inventory is for single runs: the runs of a sweep would write to the same folders, so each has its own"
            first = replace(first, warnings=(*first.warnings, text))
    if first.plan.hooks:  # each run would need another process on this machine
        text = "hooks: of the inventory is for single runs; Slurm sends mail itself: slurm.mail_type, slurm.mail_user"
        first = replace(first, plan=replace(first.plan, hooks=()), warnings=(*first.warnings, text))
    now, tokens = datetime.now(timezone.utc), set[str]()
    while len(tokens) < 1 + len(swept):
        tokens.add(os.urandom(2).hex())
    sweep_id, *ids = (new_run_id(arguments.name or first.plan.name, now, token) for token in tokens)
    return list(_planned(first, Sweep(sweep_id, tuple(ids), at_once), words, swept))


def with_values(program: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """
    Return the program of one run: in its arguments, {KEY} is replaced by the value; other braces stay.

    Raises:
        UsageError: a swept key is in no argument.
    """
    name, *args = program
    for key in values:
        if not any(f"{{{key}}}" in word for word in args):
            raise UsageError(
                f"--sweep {key}=…: no argument of the program contains {{{key}}}",
                hint=f"write {{{key}}} where the value goes, as in -- train.py --{key.replace('.', '-')} {{{key}}}",
            )
    placeholder = re.compile("|".join(re.escape(f"{{{key}}}") for key in values))
    return name, *(placeholder.sub(lambda found: values[found[0][1:-1]], word) for word in args)


def _check_settings(arguments: LaunchArguments, words: Sequence[tuple[str, ...]]) -> None:
    """Let the trainer check the settings of each run; raises its first refusal."""
    results = map_parallel(
        words, lambda settings: trainer_config(replace(arguments, settings=settings)), limit=CHECKED_AT_ONCE
    )
    for result in results:
        if isinstance(result, OrchError):
            raise result


def _planned(
    first: Planned, sweep: Sweep, words: Sequence[tuple[str, ...]], swept: Sequence[Mapping[str, str]]
) -> Iterator[Planned]:
    for run_id, args, values in zip(sweep.runs, words, swept, strict=True):
        program = replace(first.plan.program, args=args)
        plan = replace(first.plan, run_id=run_id, program=program, sweep=sweep, keep=(), kept_name="")
        request = {**first.record.request, "program": asdict(program)}
        record = replace(first.record, id=run_id, request=request, sweep=sweep.id, swept=dict(values))
        yield replace(first, plan=plan, record=record)


def submit(planned: Sequence[Planned], on_warning: Callable[[str], None]) -> str:
    """
    Submit the runs together; returns the id of the Slurm job.

    Raises:
        OrchError: the launch of all runs failed.
    """
    terminal = Terminal()
    launcher = SlurmLauncher(planned[0].plan, slurm_host(planned[0].plan, terminal), terminal)
    with closing(launcher), survive_sighup(), sigterm_interrupts():
        return _start(planned, launcher, on_warning)


def _start(planned: Sequence[Planned], launcher: SlurmLauncher, on_warning: Callable[[str], None]) -> str:
    """Check that the cluster can run the sweep, write all records, then all files, then submit once."""
    store, folders = home_store(), list[RunFolder]()
    first, left = planned[0], "no run of the sweep is left running"
    with _one_record_of_a_failure(folders), undo_on_failure(folders, launcher, when="during the launch", left=left):
        cluster = launcher.connect(first.plan)
        for run in planned:
            folders.append(store.create(run.record))
            record_plan(folders[-1], run)
        plans = [_pushed(launcher, run, cluster) for run in planned]
        for warning in plans[0].warnings[len(first.plan.warnings) :]:
            on_warning(warning)
        for folder, plan in zip(folders, plans, strict=True):
            folder.write_plan(plan)
        for run, plan in zip(planned[1:], plans[1:], strict=True):
            launcher.write(plan, run.bundle)
        job = str(launcher.start(plans[0], first.bundle))
        for task, folder in enumerate(folders):
            folder.update(slurm_job=f"{job}_{task}", started=True, launching=None)
    return job


def _pushed(launcher: SlurmLauncher, run: Planned, cluster: Facts) -> LaunchPlan:
    """Write the code of a run; return its plan by what is found."""
    plan = resolve(run.plan, cluster)
    return resolve(plan, launcher.push(plan, run.bundle))


@contextmanager
def _one_record_of_a_failure(folders: Sequence[RunFolder]) -> Iterator[None]:
    """If the block fails before anything is submitted, keep the record of the first run, with the reason, and remove the equal ones."""
    try:
        yield
    except BaseException:
        for folder in folders[1:]:
            with suppress(RunNotFound):
                record = folder.read()
                if record.state is RunState.FAILED and not record.started:  # not LOST: Slurm may have the job
                    shutil.rmtree(folder.path, ignore_errors=True)
        raise


def stop_sweep(runs: Sequence[tuple[RunFolder, RunRecord]], on_message: Callable[[str], None]) -> list[RunRecord]:
    """
    Stop all runs of a sweep that have not ended, and before that their launch; returns the records of all.

    Raises:
        LaunchError: some runs are not known to be over, and each is named; or the launch could not be cancelled.
    """
    unended = [folder for folder, record in runs if not record.state.ended]
    for folder in unended:
        with suppress(OSError):  # the disk may be full
            folder.request_stop()
    launching = [folder for folder in unended if is_launching(folder.read())]
    if launching:  # one process launches all runs; a second SIGTERM would interrupt its undo
        cancel_launch(launching[0], on_message)
        for folder in launching:
            wait_for_launch(folder)
    _cancel_array([(folder, folder.read()) for folder in unended])
    _stop_at_once([partial(stop, folder, on_message) for folder in unended])
    return [folder.read() for folder, _ in runs]


def stop_all(on_message: Callable[[str], None]) -> list[RunRecord]:
    """
    Stop all runs recorded here that have not ended, each sweep as a whole; returns their records.

    Raises:
        LaunchError: some runs are not known to be over, and each is named.
    """
    unended = unended_runs()
    sweeps = dict.fromkeys(record.sweep for _, record in unended if record.sweep)
    alone = [partial(stop, folder, on_message) for folder, record in unended if not record.sweep]
    _stop_at_once([*alone, *(partial(stop_sweep, find_sweep(sweep), on_message) for sweep in sweeps)])
    return [folder.read() for folder, _ in unended]


def _stop_at_once(stops: Sequence[Callable[[], object]]) -> None:
    outcomes = map_parallel(stops, lambda stop_run: stop_run(), limit=STOPPED_AT_ONCE)
    if errors := [outcome for outcome in outcomes if isinstance(outcome, OrchError)]:
        raise LaunchError("\n".join(map(str, errors)), hint=errors[0].hint)


def _cancel_array(runs: Sequence[tuple[RunFolder, RunRecord]]) -> None:
    """Cancel the whole job array with one command, so that no waiting task starts while the others are stopped one by one."""
    jobs = {record.id: record.slurm_job for _, record in runs if record.slurm_job is not None}
    if not jobs:
        return
    plan = runs[0][0].read_plan()
    with closing(slurm_host(plan, Terminal())) as host, suppress(NodeError):  # stopping each run reports it
        statuses = job_statuses(host.run, jobs).values()
        arrays = {array_id(status.job) for status in statuses if status and status.run_id == plan.job_run}
        for job in arrays:
            host.run(["scancel", job])
