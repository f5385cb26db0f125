"""The end of a trial of `orch diagnose --prove`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli import prove as command
from orchestrator.cli.rung import RungRun
from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.change import unset
from orchestrator.errors import OrchError
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.trials.ladder import LadderOptions, Outcome
from orchestrator.usecases.trials.prove import Proof, Result, Trial

ROW = CATALOGUE["gloo-no-interface"]
ARGUMENTS = LaunchArguments("ssh", "i.yaml", None, None, config=None, settings=(), program=("train.py",))


@pytest.mark.parametrize(
    ("change", "result", "text"),
    [
        ("", Result.NOT_REPRODUCED, "1 rank fails, and could not be diagnosed: no record of prove-1, so nothing can be proved"),
        ("unset A", Result.NOT_HELPED, "1 rank failed as r did, and with the remedy it fails, and could not be diagnosed: no record of prove-1"),
    ],
)  # fmt: skip
def test_trial_whose_diagnosis_fails_has_a_result_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, change: str, result: Result, text: str
) -> None:
    def no_record(*_: Any) -> None:  # as diagnose_run
        raise OrchError("no record of prove-1")

    monkeypatch.setattr(command, "run_rung", lambda *_, **__: RungRun(Outcome("it failed", 1), "prove-1"))
    monkeypatch.setattr(command, "diagnose_run", no_record)
    trials = command._Trials(SimpleNamespace(warnings=()), None)  # type: ignore[arg-type]  # no launch
    trial = trials.run(ARGUMENTS, LadderOptions(5, 30.0), Trial("1 rank", Outcome(""), change), False)  # RunRung
    proof = Proof("r", ROW, "why", unset("A"), (trial,), "orch rerun r")
    assert (proof.result, proof.text) == (result, text)
    assert trial.cause == "could not be diagnosed: no record of prove-1"
