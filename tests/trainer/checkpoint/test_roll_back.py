"""Rolling back to a good checkpoint after a loss that is not finite; one process, whole trainings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.grounds.metrics import read_metrics
from tests.grounds.trainings import NO_PREEMPTION, TINY, Breaking
from trainer.checkpoint.format import files
from trainer.config.load import load_config
from trainer.errors import NumbersError
from trainer.metrics.jsonl import Summary
from trainer.runtime.init import initialise
from trainer.runtime.progress import Progress
from trainer.train import Trainer

pytestmark = pytest.mark.trains


def _train(out: Path, *words: str) -> tuple[Summary | None, list[dict[str, Any]]]:
    config = load_config(words=[*TINY, f"out={out}", "steps=8", "save_steps=2", *words])
    group = initialise("cpu", 60.0, {})
    trainer = Trainer(config, group, Progress(group.rank, config.steps), NO_PREEMPTION)
    try:
        summary = trainer.run()
    finally:
        trainer.saver.finish()
        trainer.metrics.close(1)
    return summary, read_metrics(out)


def test_roll_back_resumes_from_the_checkpoint_and_skips_the_batches_since_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uninterrupted = Breaking(monkeypatch)
    _train(tmp_path / "uninterrupted", "steps=10")
    monkeypatch.undo()
    broken = Breaking(monkeypatch, 6)
    summary, records = _train(tmp_path / "out", "roll_back=1")
    assert summary is not None
    assert [record["step"] for record in records] == list(range(1, 9))
    assert all(math.isfinite(record["loss"]) for record in records)
    assert broken.inputs == uninterrupted.inputs[:10]  # the two repeated steps take the next batches
    warning = f"WARNING: all ranks: loss is nan at step 6: back to {tmp_path / 'out' / 'step_4'} (roll_back 1 of 1), without the "
    printed = capsys.readouterr().out
    assert "WARNING: all ranks: loss is nan at step 6: the step is repeated to find the cause" in printed
    assert warning in printed
    assert files.read_manifest(tmp_path / "out" / "step_8", 8)["position"] == 10


def test_roll_back_waits_for_a_save_in_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = Breaking(monkeypatch, 6)
    summary, records = _train(tmp_path, "roll_back=1", "async_save=true", "save_steps=1")
    assert summary is not None
    assert [record["step"] for record in records] == list(range(1, 9))
    assert files.read_manifest(tmp_path / "step_8", 8)["position"] == len(set(broken.inputs)) > 8


def test_resumed_run_skips_the_same_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Breaking(monkeypatch, 6)
    _train(tmp_path / "one", "roll_back=1", "steps=10")
    monkeypatch.undo()
    Breaking(monkeypatch, 6)
    _train(tmp_path / "two", "roll_back=1", "steps=10", "save_steps=4")
    assert files.read_manifest(tmp_path / "one" / "step_10", 10)["position"] == 12
    monkeypatch.undo()
    resumed = Breaking(monkeypatch)
    (tmp_path / "one" / "step_10").rename(tmp_path / "whole")
    (_, records), whole = _train(tmp_path / "one", "steps=10"), (tmp_path / "whole" / "r00000.safetensors").read_bytes()
    assert len(resumed.inputs) == 2
    assert [record["step"] for record in records] == list(range(1, 11))
    assert (tmp_path / "one" / "step_10" / "r00000.safetensors").read_bytes() == whole


@pytest.mark.parametrize(
    ("words", "broken", "step"),
    [((), (6,), 6), (("roll_back=1",), (6, 8), 6), (("roll_back=3",), (1,), 1)],
    ids=["not configured", "once too often", "nothing saved yet"],
)
def test_without_a_possible_roll_back_the_error_names_rank_and_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], broken: tuple[int, ...], step: int
) -> None:
    Breaking(monkeypatch, *broken)
    with pytest.raises(NumbersError, match=f"all ranks: loss is nan at step {step}; the weights were not updated"):
        _train(tmp_path, *words)
    assert len(files.newest_first(tmp_path)) == (2 if step > 1 else 0)


def test_checkpoint_that_did_not_help_is_quarantined_for_the_one_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Breaking(monkeypatch, 6, 7)
    _, records = _train(tmp_path, "roll_back=2")
    assert [record["step"] for record in records] == list(range(1, 9))
    assert [path.name for path in (tmp_path / "quarantine").iterdir()] == ["step_4-0"]
    assert files.read_manifest(tmp_path / "step_8", 8)["position"] == 13


@pytest.mark.parametrize("step", [5, 6])
def test_roll_back_with_a_loss_scale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: int) -> None:
    Breaking(monkeypatch, step)
    summary, records = _train(tmp_path, "roll_back=1", "precision=fp16")
    assert summary is not None
    assert [record["step"] for record in records] == list(range(1, 9))
    assert all(math.isfinite(record["loss"]) for record in records)
