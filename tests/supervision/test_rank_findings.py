"""Findings about the ranks of a run that continues are recorded when they change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord, RunState
from orchestrator.supervision import rank_findings
from orchestrator.supervision.rank_findings import RankFindings
from tests.verdict.test_overview import node


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run that has started."""
    folder = RunFolder(tmp_path)
    folder.write(RunRecord("a-run", "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))
    return folder


def _reporting(progress: dict[int, dict[str, Any]]) -> list[NodeObservation]:
    return [node("n0", tuple(progress), progress=progress)]


def _arrivals(*arrivals_s: float) -> list[NodeObservation]:
    measured = [{"step_s": 0.5, "calls": 1, "at_s": [at], "error_s": 0.01} for at in arrivals_s]
    steps = [{"20": of_rank, "40": of_rank} for of_rank in measured]
    return _reporting({rank: {"arrivals": {"count": 3, "steps": of_rank}} for rank, of_rank in enumerate(steps)})


def test_differing_replicas_are_recorded_once_and_the_run_continues(folder: RunFolder) -> None:
    findings = RankFindings(folder)
    steps = [{"50": {"parameters": text}} for text in "aba"]
    progress = {rank: {"replicas": {"count": 3, "steps": of_rank}} for rank, of_rank in enumerate(steps)}
    for _ in range(2):
        findings.record(folder.read(), _reporting(progress))
    [event] = folder.events()
    assert event["event"] == "replicas-differ"
    assert event["text"].startswith("n0: rank 1 differs from the 2 others in the parameters after step 50")
    assert folder.read().replicas == event["text"]
    assert folder.read().state is RunState.RUNNING


def test_slow_ranks_are_recorded_when_they_change_and_the_run_continues(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = RankFindings(folder)
    monkeypatch.setattr(rank_findings, "SLOW_RANKS_EVERY_S", 0.0)
    for arrivals_s in ((0.2, 0.4, 0.2), (0.2, 0.45, 0.2), (0.2, 0.2, 0.2), (0.2, 0.2, 0.2)):
        findings.record(folder.read(), _arrivals(*arrivals_s))
    slow, none = map(json.loads, (folder.path / "events.jsonl").read_text("utf-8").splitlines())
    assert slow["event"] == none["event"] == "slow-ranks"
    assert slow["text"].startswith("n0: rank 1 is slow: it arrives 200 ms later than most")
    assert none["text"] == "no rank is slow any more"
    assert (folder.read().slow, folder.read().slow_nodes) == (None, ("n0",))
    monkeypatch.setattr(rank_findings, "SLOW_RANKS_EVERY_S", 3600.0)
    findings.record(folder.read(), _arrivals(0.4, 0.2, 0.2))
    assert str(folder.read().slow).startswith("n0: rank 0 is slow")
    findings.record(folder.read(), _arrivals(0.2, 0.2, 0.2))
    assert folder.read().slow is not None, "the comparison is not due"
    RankFindings(folder).record(folder.read(), _arrivals(0.2, 0.2, 0.2))  # as of another supervisor
    assert folder.read().slow is None
    assert folder.read().state is RunState.RUNNING
