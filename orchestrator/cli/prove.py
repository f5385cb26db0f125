"""`orch diagnose --prove`: run a failure again in small, without and with its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.cli.console import ProgressLine, print_json, print_text, warn, without_controls
from orchestrator.cli.failure import labelled
from orchestrator.cli.rung import RungRun, Screen, run_rung
from orchestrator.errors import CTRL_C, OrchError
from orchestrator.usecases.diagnose.run import diagnose_run
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.trials.ladder import LadderOptions
from orchestrator.usecases.trials.prove import Planned, Proof, Result, Trial, plan_proof, prove


def prove_remedy(words: Sequence[str], signatures: Path | None, *, as_json: bool) -> int:
    """Print what the trials have shown; returns 0 if the remedy is proved, else 1."""
    if signatures is not None:
        signatures = signatures.absolute()  # plan_proof enters the folder of the run
    with ProgressLine() as progress:
        planned = plan_proof(words, signatures, progress.update)
    for warning in planned.warnings:
        warn(warning)
    try:
        proof = prove(planned, _Trials(planned, signatures).run)
    except KeyboardInterrupt:
        return CTRL_C
    if as_json:
        print_json(proof.to_json())
    else:
        print_text("".join(f"{without_controls(line)}\n" for line in _report(proof)))
    return 0 if proof.result is Result.PROVED else 1


class _Trials:
    """Runs trials, and shows on stderr which one runs."""

    def __init__(self, planned: Planned, signatures: Path | None) -> None:
        self._screen = Screen(planned.warnings)
        self._signatures = signatures

    def run(self, arguments: LaunchArguments, options: LadderOptions, trial: Trial, must_report: bool) -> Trial:  # noqa: FBT001  RunRung
        title = f"{trial.rung}, with {trial.change}" if trial.change else trial.rung
        ran = run_rung(arguments, options, self._screen, title, must_report=must_report)
        ended = replace(trial, outcome=ran.outcome, run=ran.run, steps=ran.steps, took_s=ran.took_s)
        if not ran.outcome.exit_code:
            return ended
        try:
            signature, cause = self._cause(ran)
        except OrchError as exc:  # the trials so far have a result all the same
            return replace(ended, cause=f"could not be diagnosed: {exc}", is_undiagnosed=True)
        return replace(ended, signature=signature, cause=cause)

    def _cause(self, ran: RungRun) -> tuple[str | None, str]:
        if ran.run is None:
            return None, str(ran.error)
        if self._signatures is None and ran.diagnosed is not None and ran.diagnosed.failure is not None:
            return ran.diagnosed.failure.signature, ran.diagnosed.failure.cause or ""
        # the owner does not know the file, and diagnoses no run that was stopped at the limit of time
        found = diagnose_run(ran.run, self._signatures).diagnosis
        return found.signature, found.cause


def _report(proof: Proof) -> Iterator[str]:
    yield from labelled("cause", [proof.cause])
    yield from labelled("remedy", [proof.change.text])
    for trial in proof.trials:
        label = "passed" if trial.is_passed else "FAILED"
        which = f"{trial.rung}, with the remedy" if trial.change else trial.rung
        yield from labelled(label, [f"{which}: {trial.cause or trial.outcome.text}"])
        yield from labelled("", [trial.command] if trial.command else [])
    yield from labelled("result", [f"{proof.result.value}: {proof.text}"])
    if proof.result is Result.PROVED:
        yield from labelled("next", [proof.next_step])
