"""Prove a remedy: run the failure again on the smallest rung of the debug ladder that shows it, without and with the change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.change import Change
from orchestrator.diagnosis.signature import Signature
from orchestrator.errors import UsageError
from orchestrator.failure_class import FailureClass
from orchestrator.plan.plan import LaunchPlan
from orchestrator.progress import OnProgress, no_progress
from orchestrator.records.runs import find_run
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.diagnose.log_files import Diagnosed, is_run, user_signatures
from orchestrator.usecases.diagnose.run import diagnose_run
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch.rerun import rerun_arguments
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.trials.ladder import (
    Ladder,
    LadderOptions,
    Outcome,
    Rung,
    as_short_jobs,
    as_trial,
    rungs_of,
    short_settings,
)

NAME = "prove"
STEPS = 5
MOST_S, LEAST_S = 120.0, 30.0
"""
A program that reports no steps must keep running for twice the time after which the run failed, within these limits; with the change, for
twice the time after which the rung failed, at least.
"""

_CHECKPOINTS = (
    "the trials run your program as it is: it resumes from checkpoints outside of $ORCH_RUN_DIR, and writes over them, as in "
    "the training; Ctrl-C ends the trials"
)


class Result(str, Enum):
    """The result of the trials."""

    PROVED = "proved"
    """A rung failed as the run did, and passes with the change."""
    NOT_REPRODUCED = "not reproduced"
    """No rung failed as the run did."""
    NOT_HELPED = "not helped"
    """A rung failed as the run did, and fails with the change."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a rung."""

    rung: str
    outcome: Outcome
    change: str = ""
    """The change in words; empty without one."""
    run: str | None = None
    """The id of the run; None if the launch failed."""
    signature: str | None = None
    cause: str = ""
    is_undiagnosed: bool = False
    """True if the diagnosis itself failed; `cause` says how."""
    steps: int = 0
    """The last step that a rank of a user's program has reported."""
    took_s: float = 0.0
    """The time from the start of the ranks to the end."""

    @property
    def command(self) -> str | None:
        """The command line that starts the same run, with the change; None if the launch failed."""
        return f"orch rerun {self.run}" if self.run else None

    @property
    def is_passed(self) -> bool:
        return not self.outcome.exit_code

    def to_json(self) -> dict[str, Any]:
        return {
            "rung": self.rung,
            "change": self.change or None,
            "command": self.command,
            "run": self.run,
            "passed": self.is_passed,
            "outcome": self.outcome.text,
            "signature": self.signature,
            "cause": self.cause or None,
        }


@dataclass(frozen=True, slots=True)
class Proof:
    """A remedy of a run, and what its trials have shown."""

    run: str
    signature: Signature
    cause: str
    change: Change
    trials: tuple[Trial, ...]
    next_step: str
    """How to launch the whole run with the change."""

    @property
    def result(self) -> Result:
        """The last trial has the change if the failure was reproduced before."""
        last = self.trials[-1]
        if not last.change:
            return Result.NOT_REPRODUCED
        return Result.PROVED if last.is_passed else Result.NOT_HELPED

    @property
    def text(self) -> str:
        last = self.trials[-1]
        if self.result is Result.PROVED:
            return f"{last.rung} failed as {self.run} did, and passes with the remedy"
        how = f" otherwise: {last.cause or last.outcome.text}"
        if last.signature == self.signature.id:
            how = " the same way"
        elif last.is_undiagnosed:
            how = f", and {last.cause}"
        if self.result is Result.NOT_HELPED:
            return f"{last.rung} failed as {self.run} did, and with the remedy it fails{how}"
        return "no rung failed" if last.is_passed else f"{last.rung} fails{how}, so nothing can be proved"

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "signature": self.signature.id,
            "cause": self.cause,
            "change": self.change.text,
            "result": self.result.value,
            "text": self.text,
            "next": self.next_step if self.result is Result.PROVED else None,
            "trials": [trial.to_json() for trial in self.trials],
        }


@dataclass(frozen=True, slots=True)
class Planned:
    """A proof that has not begun."""

    run: str
    signature: Signature
    cause: str
    change: Change
    ladder: Ladder
    with_change: LaunchArguments
    """The arguments of the whole launch, with the change."""

    @property
    def warnings(self) -> Sequence[str]:
        """The warnings about the launch, and about the files that the trials may change."""
        if self.ladder.arguments.program is None:
            return self.ladder.warnings
        return (*self.ladder.warnings, _CHECKPOINTS)


RunRung = Callable[[LaunchArguments, LadderOptions, Trial, bool], Trial]
"""Runs a trial, and returns it with its outcome; True: a program that reports no steps has failed."""


def plan_proof(words: Sequence[str], signatures_file: Path | None, on_progress: OnProgress = no_progress) -> Planned:
    """
    Diagnose a run, and plan the proof of the remedy.

    Raises:
        UsageError: this is no failed run, or orch cannot make the change that its remedy needs.
        OrchError: as from diagnose_run and plan_launch.
    """
    if not is_run(words):
        raise UsageError("--prove needs a run: the launch in a log of another launcher is not known", hint="orch list")
    found = diagnose_run(words[0] if words else "latest", signatures_file, on_progress)
    assert found.run is not None, "of a run"
    record = find_run(found.run).read()
    signature = provable(found, record, CATALOGUE | user_signatures(signatures_file))
    assert signature.change is not None, "see provable"
    given = as_trial(replace(rerun_arguments(record.id, None), name=NAME))
    limit_s = MOST_S
    if record.ended is not None:
        took_s = (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.created)).total_seconds()
        limit_s = min(MOST_S, max(LEAST_S, 2 * took_s))
    options = LadderOptions(STEPS, limit_s)
    planned = plan_launch(given, on_progress)
    planned.close()
    given = as_short_jobs(given, planned.plan, options)
    ladder = Ladder(given, options, rungs_of(planned.plan, found.diagnosis.nodes), planned.warnings)
    changed = changed_arguments(given, signature.change, planned.plan)
    return Planned(record.id, signature, found.diagnosis.cause, signature.change, ladder, changed)


def provable(found: Diagnosed, record: RunRecord, signatures: Mapping[str, Signature]) -> Signature:
    """The signature of the failure; UsageError if its remedy cannot be proved."""
    diagnosis, run = found.diagnosis, record.id
    by_hand = "; ".join(diagnosis.remedy)
    if record.state is not RunState.FAILED:
        why = "has not failed" if record.state.ended else "has not ended"
        hint = "it can be diagnosed without --prove" if record.state.ended else f"wait for its end, or: orch stop {run}"
        raise UsageError(f"run {run} is {record.state.value}: it {why}, so there is no remedy to prove", hint=hint)
    if diagnosis.signature is None:
        raise UsageError(f"the cause of {run} is unknown, so there is no remedy to prove", hint=f"orch diagnose {run}")
    if diagnosis.kind is FailureClass.MEMORY:
        message = f"{run} has exhausted the memory ({diagnosis.signature}), and would again: it is not run unchanged"
        raise UsageError(message, hint=by_hand)
    signature = signatures[diagnosis.signature]
    if signature.change is None:
        message = f"orch cannot make the change that the remedy of {signature.id} needs: {diagnosis.cause}"
        raise UsageError(message, hint=by_hand)
    return signature


def changed_arguments(given: LaunchArguments, change: Change, plan: LaunchPlan) -> LaunchArguments:
    """The arguments of the launch with the change; UsageError if it cannot be made for this program, or would change nothing."""
    if change.call is not None:
        if given.program is None:
            if not change.setting:
                raise UsageError(f"the shared trainer has no setting for this remedy: {change.text}")
            return replace(given, settings=(*given.settings, change.setting))
        if not plan.program.is_prepared:
            text = f"this remedy changes a call of a Python program that orch prepares: {change.text}"
            hint = "launch the program as -- FILE.py ARGS, without --bare, or change the call yourself"
            raise UsageError(text, hint=hint)
    elif all(node.env.get(name) == value for node in plan.nodes for name, value in change.variables.items()):
        state = "already has" if any(change.variables.values()) else "does not set"
        names = " or ".join(name if value is None else f"{name}={value}" for name, value in change.variables.items())
        text = f"the inventory {state} {names}, so this remedy changes nothing: {change.text}"
        raise UsageError(text, hint="the program, or the login on the node, sets it: change it there")
    return replace(given, variables={**given.variables, **change.variables, **change.call_variables})


def prove(planned: Planned, run_rung: RunRung) -> Proof:
    """Run the rungs up to the first that fails, and if that failed as the run did, the same rung with the change."""
    trials, options = list[Trial](), planned.ladder.options
    for rung in planned.ladder.rungs:
        steps = max((trial.steps for trial in trials), default=0)
        arguments = _arguments_of(planned, rung, planned.ladder.arguments, options)
        trial = Trial(_title(planned, rung), Outcome(""))
        trials.append(run_rung(arguments, options, trial, steps > 0))
        if not trials[-1].is_passed:
            break
    failed = trials[-1]
    if not failed.is_passed and failed.signature == planned.signature.id:
        limit_s = max(options.limit_s, 2 * failed.took_s)
        options = LadderOptions(failed.steps + options.steps, limit_s)  # beyond where it failed
        arguments = _arguments_of(planned, rung, planned.with_change, options)
        must_report = any(trial.steps for trial in trials) or planned.signature.kind is FailureClass.HANG
        trial = replace(failed, change=planned.change.text, run=None, signature=None, cause="")
        trials.append(run_rung(arguments, options, trial, must_report))
    change, given, rerun = planned.change, planned.ladder.arguments, f"orch rerun {planned.run}"
    next_step = f"in the program: {change.text}; then: {rerun}"
    if change.call is None:
        next_step = f"in env: of {given.inventory or 'the inventory'}: {change.text}; then: {rerun}"
    elif given.program is None:
        next_step = f"{rerun} {change.setting}"
    return Proof(planned.run, planned.signature, planned.cause, change, tuple(trials), next_step)


def _title(planned: Planned, rung: Rung) -> str:
    rungs = planned.ladder.rungs
    return f"rung {rungs.index(rung) + 1} of {len(rungs)}, {rung}"


def _arguments_of(planned: Planned, rung: Rung, given: LaunchArguments, options: LadderOptions) -> LaunchArguments:
    """The launch of a rung as the run was launched: without the variables of --debug, and with its own limits of time."""
    settings = given.settings if given.program else (*given.settings, *short_settings(options.steps))
    launch = planned.ladder.arguments_of(rung)
    note = f"{_title(planned, rung)}: proves a remedy of {planned.run}"
    return replace(launch, settings=settings, variables=given.variables, debug=given.debug, note=note)
