"""An evaluation leaves the values of the training unchanged, and alone it needs neither its data nor disk space. One process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.grounds.metrics import read_metrics
from tests.grounds.tasks import COUNT, Points, Sample
from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.metrics.jsonl import Summary
from trainer.runtime.init import initialise
from trainer.runtime.progress import Progress
from trainer.train import Trainer

pytestmark = pytest.mark.trains


class Counting(Points):
    """metrics() has the mean of the targets that loss() saw, also those of validation samples, which are greater."""

    def build_data(self, split: str) -> list[Sample] | None:
        if split == "train":
            if self.config.evaluate_only:
                raise UserError("the training data are gone")
            return super().build_data("train")
        return [(torch.ones(4), torch.full((1,), 1000.0))] * COUNT

    def loss(self, model: Any, batch: Sample) -> torch.Tensor:
        self.targets = [*getattr(self, "targets", []), *batch[1].flatten().tolist()]
        return super().loss(model, batch)

    def metrics(self) -> Mapping[str, Any]:
        targets, self.targets = getattr(self, "targets", []), []
        return {"target": (sum(targets), len(targets))} if targets else {}


def _train(out: Path, *words: str) -> Summary | None:
    base = ("micro_batch=1", "steps=6", "save_steps=3", "log_steps=2", "device=cpu", "report=", f"out={out}")
    config = load_config(words=["task=tests.trainer.test_evaluation:Counting", *base, *words])
    group = initialise("cpu", 60.0, {})
    trainer = Trainer(config, group, Progress(group.rank, config.steps), SimpleNamespace(is_received=False))  # type: ignore[arg-type]  # a real one would handle signals
    try:
        return trainer.run()
    finally:
        trainer.metrics.close(1)


def _trained(out: Path) -> dict[int, float]:
    return {record["step"]: record["train_target"] for record in read_metrics(out) if "train_target" in record}


def test_validation_samples_are_not_among_the_values_of_the_training(tmp_path: Path) -> None:
    _train(tmp_path / "alone", "eval_steps=100")
    _train(tmp_path / "evaluated", "eval_steps=1")
    trained = _trained(tmp_path / "alone")
    assert list(trained) == [2, 4, 6]
    assert _trained(tmp_path / "evaluated") == pytest.approx(trained)


def test_evaluation_alone_needs_neither_training_data_nor_space_for_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _train(tmp_path, "eval_steps=3")
    metrics = read_metrics(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(UserError, match=r": 0 GB free, 0\.0\d+ GB needed"):
        _train(tmp_path, "steps=9")
    assert _train(tmp_path, "evaluate_only=true", "memory_steps=1") is not None
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found == {"step": 6, "eval_loss": pytest.approx(metrics[-1]["eval_loss"])}
    assert _train(tmp_path, "evaluate_only=true", f"resume={tmp_path / 'step_3'}") is not None
    assert json.loads((tmp_path / "evaluation.json").read_text())["step"] == 3
    assert (tmp_path / "step_6").exists(), "only a training that continues from step 3 replaces it"
    assert read_metrics(tmp_path) == metrics


LOSSES = [5.0, 4.0, 4.5, float("nan"), 3.0, 3.0, 3.5, 2.0]


class Stalling(Counting):
    """The evaluations of steps 1, 2 … have these losses."""

    def __init__(self, config: TrainConfig, *, named: str = "loss") -> None:
        super().__init__(config)
        self.named = named

    def evaluate(self, model: Any, batch: Sample) -> Mapping[str, Any]:
        records = read_metrics(Path(self.config.out or ""))  # of the steps before
        return {self.named: LOSSES[records[-1]["step"] if records else 0]}


def _stalling(out: Path, *words: str) -> Summary | None:
    task = "task=tests.trainer.test_evaluation:Stalling"
    return _train(out, task, "steps=8", "eval_steps=1", "eval_batches=1", *words)


@pytest.mark.parametrize(("patience", "step"), [(1, 3), (2, 4), (3, 8), (8, 8)])
def test_training_stops_after_evaluations_without_a_lower_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], patience: int, step: int
) -> None:
    summary = _stalling(tmp_path, f"patience={patience}")
    assert summary is not None
    assert (summary.steps, Path(summary.checkpoint)) == (step, tmp_path / f"step_{step}")
    assert (tmp_path / f"step_{step}" / "manifest.json").exists()
    line = f"stopped at step {step}: patience={patience} evaluations without an eval_loss below 4.0000\n"
    assert (line in capsys.readouterr().out) == (step < 8)


def test_patience_counts_across_a_resume_and_a_stopped_training_continues_with_more_of_it(tmp_path: Path) -> None:
    words = ("save_steps=1", "save_total_limit=9")
    _stalling(tmp_path, *words, "patience=2")
    shutil.rmtree(tmp_path / "step_4")  # as if it was killed after step 3
    resumed = _stalling(tmp_path, *words, "patience=2")
    assert resumed is not None
    assert resumed.steps == 4
    manifest = json.loads((tmp_path / "step_4" / "manifest.json").read_text())
    assert (manifest["best_eval_loss"], manifest["stale_evaluations"]) == (4.0, 2)
    records = read_metrics(tmp_path)
    unchanged = _stalling(tmp_path, *words, "patience=2")
    assert unchanged is not None
    assert (unchanged.steps, read_metrics(tmp_path)) == (4, records)
    longer = _stalling(tmp_path, *words, "patience=3")
    assert longer is not None
    assert longer.steps == 8


def test_patience_without_a_loss_to_compare_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"patience=2 counts evaluations: set eval_steps"):
        load_config(words=["patience=2"])
    with pytest.raises(UserError, match=r"patience=2: evaluate\(\) of task=.*Stalling gave no loss, but eval_accuracy"):
        _stalling(tmp_path, "patience=2", "options.named=accuracy")
    with pytest.raises(UserError, match=r"patience=2: there are no validation samples: set data.validation"):
        _train(tmp_path / "none", "task=tests.grounds.tasks:Points", "eval_steps=1", "patience=2")
