"""A sweep: one run per combination of settings, submitted together as one Slurm array, one task per run."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime, timezone

from orchestrator.actions.launch import (
    Planned,
    plan_launch,
    record_changed_plan,
    record_plan,
    sigterm_interrupts,
    undo_on_failure,
)
from orchestrator.actions.request import LaunchArguments, trainer_config
from orchestrator.actions.runs import home_store
from orchestrator.endpoint.access import Terminal
from orchestrator.errors import OrchError, RunNotFound, UsageError
from orchestrator.fanout import each
from orchestrator.launchers.slurm.host import slurm_host
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.plan.plan import Sweep
from orchestrator.run import RunRecord, new_run_id
from orchestrator.store import RunFolder

MOST_RUNS = 1000  # Slurm's MaxArraySize is 1001 by default
CHECKED_AT_ONCE = 8
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


def plan_sweep(arguments: LaunchArguments, axes: Sequence[str]) -> list[Planned]:
    """
    Plan all runs of a sweep; all but their settings is planned once.

    Raises:
        UsageError: the sweep is impossible, or the trainer refuses the settings of a run.
    """
    if arguments.program is not None:
        raise UsageError(
            "--sweep is for settings of the shared trainer",
            hint="for a program of yours, orchestrator.submit in a loop",
        )
    swept = combinations(axes, arguments.settings)
    settings = [(*arguments.settings, *(f"{key}={value}" for key, value in values.items())) for values in swept]
    results = each(settings, lambda words: trainer_config(replace(arguments, settings=words)), limit=CHECKED_AT_ONCE)
    for result in results:
        if isinstance(result, OrchError):
            raise result
    first = plan_launch(replace(arguments, settings=settings[0]))
    now, tokens = datetime.now(timezone.utc), set[str]()
    while len(tokens) < 1 + len(swept):
        tokens.add(os.urandom(2).hex())
    sweep_id, *ids = (new_run_id(arguments.name or first.plan.name, now, token) for token in tokens)
    sweep = Sweep(sweep_id, tuple(ids))
    return list(_planned(first, sweep, settings, swept))


def _planned(
    first: Planned, sweep: Sweep, settings: Sequence[tuple[str, ...]], swept: Sequence[Mapping[str, str]]
) -> Iterator[Planned]:
    for run_id, args, values in zip(sweep.runs, settings, swept, strict=True):
        program = replace(first.plan.program, args=args)
        plan = replace(first.plan, run_id=run_id, program=program, sweep=sweep)
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
    with closing(launcher), sigterm_interrupts():
        return _start(planned, launcher, on_warning)


def _start(planned: Sequence[Planned], launcher: SlurmLauncher, on_warning: Callable[[str], None]) -> str:
    """Write all records, then all files, then submit once."""
    store, folders = home_store(), list[RunFolder]()
    with undo_on_failure(folders, launcher, "during the launch; no run of the sweep is left running"):
        for run in planned:
            folders.append(store.create(run.record))
            record_plan(folders[-1], run)
        for warning in launcher.connect():
            on_warning(warning)
        pushed_plans = [launcher.push(run.plan, run.bundle) for run in planned[1:]]
        job = str(launcher.start(planned[0].bundle))
        for task, folder in enumerate(folders):
            folder.update(slurm_job=f"{job}_{task}", started=True, launching=None)
        for run, plan, folder in zip(planned[1:], pushed_plans, folders[1:], strict=True):
            record_changed_plan(folder, run.plan, plan)
        for warning in record_changed_plan(folders[0], planned[0].plan, launcher.plan):
            on_warning(warning)
    return job


def of_sweep(name: str, records: Iterable[RunRecord]) -> list[RunRecord]:
    """
    Return the records of a sweep, in task order; `name` is its id or a unique prefix.

    Raises:
        RunNotFound: no sweep, or more than one, has the name.
    """
    swept = (record for record in records if record.sweep is not None and record.sweep.startswith(name))
    records = sorted(swept, key=_task)
    if not name or len({record.sweep for record in records}) != 1:
        raise RunNotFound(f"no sweep {name!r}, or more than one", hint="use the id that orch submit --sweep printed")
    return records


def _task(record: RunRecord) -> int:
    """The index of the run's task in the job array; 0 if nothing was submitted."""
    return int((record.slurm_job or "").partition("_")[2] or 0)
