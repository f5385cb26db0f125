"""The log lines of steps, metrics.jsonl and the summary."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from trainer.metrics.jsonl import MetricsFile, StepLog, StepResult, Summary


def test_resumed_metrics_have_every_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 0.1}\n{"step": 2, "loss": 0.2}\n{"step": 3, "lo')
    metrics = MetricsFile(path, last_step=1)
    metrics.write({"step": 2, "loss": 1 / 3})
    metrics.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": 0.1},
        {"step": 2, "loss": 1 / 3},
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_rank_0_logs_the_mean_and_others_their_own_loss(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        log = StepLog(every=2, per_step=100, unit="tokens", rank=rank)
        for step in (1, 2, 3, 4, 5):
            result = StepResult([1.0, 2.0], 0.1, 0.5, 0.25)
            log.add(result)
            if log.is_due(step, last=step == 5):
                log.write(step, result, mfu=0.41234, peak_memory_bytes=40_123_456_789, eta_s=3661.4)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "step=1 loss=1.5000 lr=1.000e-01 grad_norm=0.5000 tokens/s=400 step_time_s=0.2500 data_wait_s=0.0000 "
        "mfu=0.4123 peak_memory_gb=40.123 eta=1:01:01"
    )
    assert [line.split()[0] for line in lines] == ["step=1", "step=2", "step=4", "step=5"] * 2
    assert lines[4] == "step=1 loss=2.0000"


def test_what_is_not_known_is_left_out_of_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    log, result = StepLog(every=1, per_step=100, unit="samples", rank=0), StepResult([1.0], 0.1, 0.5, 0.25)
    log.add(result)
    log.write(1, result, mfu=None, peak_memory_bytes=None, eta_s=None)
    assert capsys.readouterr().out.endswith(" samples/s=400 step_time_s=0.2500 data_wait_s=0.0000\n")


def test_summary_of_a_run_with_nothing_left_to_train() -> None:
    line = Summary(5, None, None, 1.0, "/c/step_5", tokens_per_s=0.0).line()
    assert line == "summary steps=5 first_loss=none last_loss=none tokens/s=0 wall_s=1.0 checkpoint=/c/step_5"
