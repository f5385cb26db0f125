"""A sweep: one run per combination of settings, submitted together as one Slurm array, one task per run."""

from __future__ import annotations

import itertools
import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime, timezone

from orchestrator.actions.launch import (
    Planned,
    complete,
    keep_as_carried_out,
    plan_of,
    sigterm_interrupts,
    undo_on_failure,
)
from orchestrator.actions.request import Words, trainer_config
from orchestrator.endpoint.access import Terminal
from orchestrator.errors import OrchError, RunNotFound, UsageError
from orchestrator.fanout import each
from orchestrator.launchers.slurm.host import slurm_host
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.plan.plan import Sweep
from orchestrator.run import RunRecord, new_run_id
from orchestrator.store import RunFolder, Store, home

MOST_RUNS = 1000  # Slurm's MaxArraySize is 1001 by default
CHECKED_AT_ONCE = 8
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def points(words: Sequence[str], settings: Sequence[str] = ()) -> list[Mapping[str, str]]:
    """
    Return the swept settings of each run, in order: every combination once, the last word varies fastest.

    Args:
        words: such as `optim.lr=1e-3,3e-4`.
        settings: the settings of all runs, such as `steps=20`; a key cannot be both.

    Raises:
        UsageError: a word is no list of values for a setting, or there are too many combinations.
    """
    axes = dict(map(_axis, words))
    if len(axes) < len(words):
        raise UsageError("--sweep: a setting is swept twice", hint="give all of its values in one --sweep KEY=A,B,C")
    if both := sorted(axes.keys() & {word.partition("=")[0] for word in settings}):
        raise UsageError(f"{both[0]} is swept and set as well", hint=f"leave {both[0]}=… or its --sweep away")
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


def plan_sweep(words: Words, axes: Sequence[str]) -> list[Planned]:
    """
    Plan all runs of a sweep; what is the same for all is decided once.

    Raises:
        UsageError: no sweep is possible, or the trainer refuses the settings of a run.
    """
    if words.program is not None:
        raise UsageError(
            "--sweep is for settings of the shared trainer",
            hint="for a program of yours, orchestrator.submit in a loop",
        )
    chosen = points(axes, words.settings)
    settings = [(*words.settings, *(f"{key}={value}" for key, value in point.items())) for point in chosen]
    checked = each(settings, lambda words_: trainer_config(replace(words, settings=words_)), limit=CHECKED_AT_ONCE)
    for refusal in checked:
        if isinstance(refusal, OrchError):
            raise refusal
    first = plan_of(replace(words, settings=settings[0]))
    now, tokens = datetime.now(timezone.utc), set[str]()
    while len(tokens) < 1 + len(chosen):
        tokens.add(secrets.token_hex(2))
    sweep_id, *ids = (new_run_id(first.plan.name, now, token) for token in tokens)
    sweep = Sweep(sweep_id, tuple(ids))
    return list(_planned(first, sweep, settings, chosen))


def _planned(
    first: Planned, sweep: Sweep, settings: Sequence[tuple[str, ...]], chosen: Sequence[Mapping[str, str]]
) -> Iterator[Planned]:
    for run_id, args, point in zip(sweep.runs, settings, chosen, strict=True):
        program = replace(first.plan.program, args=args)
        plan = replace(first.plan, run_id=run_id, program=program, sweep=sweep)
        request = {**first.record.request, "program": asdict(program)}
        record = replace(first.record, id=run_id, request=request, sweep=sweep.id, swept=dict(point))
        yield replace(first, plan=plan, record=record)


def submit(planned: Sequence[Planned], on_warning: Callable[[str], None]) -> str:
    """
    Submit the runs together; returns the id of the Slurm job.

    Raises:
        OrchError: the launch failed, and so has every run.
    """
    terminal = Terminal()
    launcher = SlurmLauncher(planned[0].plan, slurm_host(planned[0].plan, terminal), terminal)
    with closing(launcher), sigterm_interrupts():
        return _start(planned, launcher, on_warning)


def _start(planned: Sequence[Planned], launcher: SlurmLauncher, on_warning: Callable[[str], None]) -> str:
    """Write all records, then all files, then submit once."""
    store, folders = Store(home(os.environ)), list[RunFolder]()
    with undo_on_failure(folders, launcher, "during the launch; nothing of the sweep goes on"):
        for run in planned:
            folders.append(store.create(run.record))
            complete(folders[-1], run)
        for doubt in launcher.connect():
            on_warning(doubt)
        others = [launcher.push(run.plan, run.bundle) for run in planned[1:]]
        job = str(launcher.start(planned[0].bundle))
        for task, folder in enumerate(folders):
            folder.update(slurm_job=f"{job}_{task}", started=True, launching=None)
        for run, plan, folder in zip(planned[1:], others, folders[1:], strict=True):
            keep_as_carried_out(folder, run.plan, plan)
        for warning in keep_as_carried_out(folders[0], planned[0].plan, launcher.plan):
            on_warning(warning)
    return job


def of_sweep(name: str, records: Iterable[RunRecord]) -> list[RunRecord]:
    """
    Return those records that belong to a sweep, in order of their tasks; `name` is its id or a unique prefix.

    Raises:
        RunNotFound: none of them does.
    """
    swept = (record for record in records if record.sweep is not None and record.sweep.startswith(name))
    records = sorted(swept, key=_task)
    if not name or len({record.sweep for record in records}) != 1:
        raise RunNotFound(f"no sweep {name!r}, or more than one", hint="take the id that orch submit --sweep printed")
    return records


def _task(record: RunRecord) -> int:
    """The number of its task in the array; 0 if nothing was submitted."""
    return int((record.slurm_job or "").partition("_")[2] or 0)
