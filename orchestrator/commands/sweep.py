"""`orch submit --sweep`: one array of Slurm, one run a task; and `orch list --sweep`, which compares what they came to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime, timezone

from orchestrator.actions.request import Words, trainer_config
from orchestrator.actions.sweep import points
from orchestrator.commands.launch import Planned, complete, give_up, keep_as_carried_out, plan_of, sigterm_interrupts
from orchestrator.commands.status import bring_up_to_date, readable
from orchestrator.console import print_json, print_table, print_text, say
from orchestrator.errors import LaunchError, OrchError, RunNotFound, UsageError
from orchestrator.fanout import each
from orchestrator.launchers.slurm.host import slurm_host
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.plan import transcript
from orchestrator.plan.plan import Sweep
from orchestrator.run import RunRecord, RunState, new_run_id
from orchestrator.store import RunFolder, Store, home
from orchestrator.transports.terminal import Terminal

CHECKED_AT_ONCE = 8
COMPARED = ("steps", "first_loss", "last_loss", "tokens_per_s")


def submit_sweep(words: Words, axes: Sequence[str], *, dry_run: bool) -> int:
    """Plan all runs, then submit them together; prints the id of the sweep."""
    if words.program is not None:
        raise UsageError(
            "--sweep is for settings of the shared trainer",
            hint="for a program of yours, orchestrator.submit in a loop",
        )
    planned = list(_planned(words, points(axes, words.settings)))
    if dry_run:
        print_text("\n".join(transcript.of(one.plan) for one in planned))
        return 0
    terminal = Terminal()
    launcher = SlurmLauncher(planned[0].plan, slurm_host(planned[0].plan, terminal), terminal)
    with closing(launcher), sigterm_interrupts():
        job = _start(planned, launcher)
    sweep = planned[0].plan.job_name
    say(f"{len(planned)} runs are tasks of Slurm job {job}: `orch list --sweep {sweep}` compares them")
    print_text(f"{sweep}\n")
    return 0


def _planned(words: Words, chosen: Sequence[Mapping[str, str]]) -> Iterator[Planned]:
    """One plan a point; what is the same for all is decided once."""
    settings = [(*words.settings, *(f"{key}={value}" for key, value in point.items())) for point in chosen]
    checked = each(settings, lambda own: trainer_config(replace(words, settings=own)), limit=CHECKED_AT_ONCE)
    for refusal in checked:
        if isinstance(refusal, OrchError):
            raise refusal
    first = plan_of(replace(words, settings=settings[0]))
    now, tokens = datetime.now(timezone.utc), set[str]()
    while len(tokens) < 1 + len(chosen):
        tokens.add(secrets.token_hex(2))
    own, *ids = (new_run_id(first.plan.name, now, token) for token in tokens)
    sweep = Sweep(own, tuple(ids))
    for run_id, args, point in zip(ids, settings, chosen, strict=True):
        program = replace(first.plan.program, args=args)
        plan = replace(first.plan, run_id=run_id, program=program, sweep=sweep)
        request = {**first.record.request, "program": asdict(program)}
        record = replace(first.record, id=run_id, request=request, sweep=sweep.id, swept=dict(point))
        yield replace(first, plan=plan, record=record)


def _start(planned: Sequence[Planned], launcher: SlurmLauncher) -> str:
    """Write all records, then all files, then submit once; where that fails, every run has failed."""
    store, folders = Store(home(os.environ)), list[RunFolder]()
    try:
        for one in planned:
            folders.append(store.create(one.record))
            complete(folders[-1], one)
        for doubt in launcher.connect():
            say(f"warning: {doubt}")
        others = [launcher.push(one.plan, one.bundle) for one in planned[1:]]
        job = str(launcher.start(planned[0].bundle))
        for task, folder in enumerate(folders):
            folder.update(slurm_job=f"{job}_{task}", started=True, launching=None)
        for one, plan, folder in zip(planned[1:], others, folders[1:], strict=True):
            if plan is not one.plan:
                folder.write_plan(plan)
        keep_as_carried_out(folders[0], planned[0].plan, launcher.plan)
    except (OrchError, OSError) as exc:
        raise give_up(folders, launcher, RunState.FAILED, str(exc)) or exc from exc
    except KeyboardInterrupt:
        left = give_up(folders, launcher, RunState.STOPPED, "interrupted")
        raise left or LaunchError("interrupted; nothing of the sweep goes on") from None
    return job


def list_sweep(name: str, *, as_json: bool) -> int:
    """
    Compare the runs of a sweep, asked after before.

    Raises:
        RunNotFound: no run here belongs to it.
    """
    bring_up_to_date()
    own = (record for _, record in readable() if record.sweep is not None and record.sweep.startswith(name))
    records = sorted(own, key=_task)
    if not name or len({record.sweep for record in records}) != 1:
        raise RunNotFound(f"no sweep {name!r}, or more than one", hint="take the id that orch submit --sweep printed")
    if as_json:
        print_json([record.to_json() for record in records])
        return 0
    swept = list(records[0].swept)
    rows = [_row(record, swept) for record in records]
    print_table(("RUN", "STATE", *map(str.upper, swept), *(name.upper().replace("_", " ") for name in COMPARED)), rows)
    return 0


def _task(record: RunRecord) -> int:
    """Which task of the array it is; 0 where nothing was submitted."""
    return int((record.slurm_job or "").partition("_")[2] or 0)


def _row(record: RunRecord, swept: Sequence[str]) -> tuple[object, ...]:
    found = [record.summary.get(name) for name in COMPARED]
    shown = [f"{value:.4g}" if isinstance(value, float) else value for value in found]
    return record.id, record.state.value, *(record.swept[key] for key in swept), *shown
