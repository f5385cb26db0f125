"""Metrics of a step: MFU, percentiles, the record, the progress bar, the plot; one process."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import io
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.grounds.metrics import read_metrics
from tests.grounds.trainings import NO_PREEMPTION, TINY
from trainer.config.config import ModelConfig, TrainConfig
from trainer.config.load import load_config
from trainer.console import log_line
from trainer.errors import StorageUserError, UserError
from trainer.metrics.hub import Bar, MetricsHub
from trainer.metrics.jsonl import StepResult, Summary, percentile
from trainer.metrics.mfu import flops_per_token, peak_flops
from trainer.metrics.reporters import ReportError
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.runtime.progress import Progress
from trainer.tasks.attention import manual_causal_attention
from trainer.tasks.gpt import GPT
from trainer.train import Trainer

BF16 = load_config(words=["precision=bf16"])


def _group_of_one() -> Group:
    return initialise("cpu", 60.0, {})


def _hide(monkeypatch: pytest.MonkeyPatch, *hidden: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in hidden else find(name))


def test_flops_of_the_formula_are_those_that_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts the matrix products that run; the formula also counts biases and norms, 1 to 2 % more."""
    monkeypatch.setattr("trainer.tasks.gpt.causal_attention", manual_causal_attention)
    shape = ModelConfig(layers=2, width=64, heads=4, context=48)
    model = GPT(shape)
    tokens = torch.zeros(3, shape.context, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(tokens, tokens).backward()
    sizes = [(name, parameter.numel()) for name, parameter in model.named_parameters()]
    assert flops_per_token(sizes, shape) == pytest.approx(counter.get_total_flops() / tokens.numel(), rel=0.02)


@pytest.mark.parametrize(
    ("device", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H800", 989.0),
        ("NVIDIA H200 NVL", 835.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10", 125.0),
        ("NVIDIA A10G", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("", None),
    ],
)
def test_peak_flops_follow_from_the_device_name_and_are_never_guessed(device: str, tflops: float | None) -> None:
    peak = None if tflops is None else tflops * 1e12
    assert peak_flops(BF16, device) == peak
    assert peak_flops(replace(BF16, precision="fp32"), device) is None
    assert peak_flops(replace(BF16, precision="fp32", peak_tflops=2.5), device) == 2.5e12


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3.0, 1.0, 2.0], 50, 2.0), ([1.0, 2.0], 50, 1.0), ([5.0], 99, 5.0), (list(range(1, 101)), 99, 99)],
)
def test_percentile_is_a_value_that_was_measured(values: list[float], percent: int, expected: float) -> None:
    assert percentile(values, percent) == expected


def _measured(out: Path, config: TrainConfig, *, code: int = 0) -> dict[str, Any]:
    """The totals of two steps of 0.5 s and 1 s, with 8 * 128 tokens each and 1000 FLOPs per token."""
    measures = MetricsHub(_group_of_one(), config, out, config.model.context)
    measures.begin(0, 1000 * config.model.context)
    for step, seconds in ((1, 0.5), (2, 1.0)):
        result = StepResult([2.0], 1e-3, 0.5, seconds, data_wait_s=0.25)
        measures.add(step, result, {}, total=1000 * step, last=step == 2)
    measures.flush()
    measures.close(code)
    return measures.totals()


def test_mfu_is_the_share_of_the_peak_and_absent_if_that_is_unknown(tmp_path: Path) -> None:
    unknown = _measured(tmp_path, load_config(words=["report="]))
    assert "mfu" not in read_metrics(tmp_path)[0]
    assert unknown["mfu"] is None
    totals = _measured(tmp_path, load_config(words=["report=", "peak_tflops=0.001"]))
    # 1024 tokens in 0.5 s at 1000 FLOPs each, divided by a peak of 1e9 FLOP/s
    assert [record["mfu"] for record in read_metrics(tmp_path)] == pytest.approx(
        [1024 * 1000 / 0.5 / 1e9, 1024 * 1000 / 1e9]
    )
    assert totals["mfu"] == pytest.approx(2 * 1024 * 1000 / 1.5 / 1e9)


def test_log_line_and_progress_have_mfu_of_the_steps_since_the_last_one_and_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(words=["report=", "peak_tflops=0.001", "log_steps=3"])
    measures = MetricsHub(_group_of_one(), config, tmp_path, config.model.context)
    measures.begin(0, 1000 * config.model.context)
    kept = [
        measures.add(step, StepResult([2.0], 1e-3, 0.5, seconds), {}, total=step, last=False, eta_s=90.0)
        for step, seconds in ((1, 9.0), (2, 0.5), (3, 1.5))
    ]
    measures.close(1)
    mfu = 2 * 1024 * 1000 / 2 / 1e9
    assert [set(values) for values in kept] == [{"mfu", "peak_memory_bytes"}, set(), {"mfu", "peak_memory_bytes"}]
    assert kept[2]["mfu"] == pytest.approx(mfu)
    memory = kept[2]["peak_memory_bytes"]
    assert memory > 10 << 20
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step=3 ")]
    assert line.endswith(f" mfu={mfu:.4f} peak_memory_gb={memory / 1e9:.3f} eta=0:01:30")


def test_summary_has_percentiles_data_wait_and_memory_of_the_attempt(tmp_path: Path) -> None:
    totals = _measured(tmp_path, load_config(words=["report="]))
    assert totals["tokens_per_s"] == pytest.approx(2 * 1024 / 1.5)
    assert (totals["step_time_p50_s"], totals["step_time_p99_s"], totals["data_wait_s"]) == (0.5, 1.0, 0.5)
    assert totals["peak_memory_bytes"] > 10 << 20
    line = Summary(2, 2.0, 2.0, wall_s=1.0, checkpoint="/c/step_2", **totals).line()
    assert "step_time_p50_s=0.5000 step_time_p99_s=1.0000 data_wait_s=0.5000 peak_memory_bytes=" in line
    assert "mfu" not in line


def _finished(out: Path, group: Group, *, steps: int = 2) -> Mapping[str, Any]:
    """Record a training of `steps` steps and return its summary file."""
    measures = MetricsHub(group, load_config(words=["report="]), out, 128)
    measures.begin(0, None)
    for step in range(1, steps + 1):
        measures.add(step, StepResult([2.0], 1e-3, 0.5, 0.5), {}, total=step, last=step == steps)
    measures.finish(Summary(2, 2.0, 2.0, wall_s=1.0, checkpoint="/c/step_2", **measures.totals()))
    found: Mapping[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def test_summary_is_a_private_file_that_an_attempt_without_steps_does_not_change(tmp_path: Path) -> None:
    found = _finished(tmp_path, _group_of_one())
    assert (found["steps"], found["step_time_p99_s"], found["checkpoint"]) == (2, 0.5, "/c/step_2")
    assert "mfu" not in found
    assert (tmp_path / "summary.json").stat().st_mode & 0o777 == 0o600
    assert _finished(tmp_path, _group_of_one(), steps=0) == found


def test_unwritable_summary_is_only_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(IsADirectoryError):  # the helper above reads it
        _finished(tmp_path, _group_of_one())
    assert f"WARNING: {tmp_path / 'summary.json'} is not written: Is a directory\n" in capsys.readouterr().out


def test_allocator_retries_and_failures_are_reported_if_the_device_counts_them(tmp_path: Path) -> None:
    alone = _group_of_one()
    counts = {"num_alloc_retries": 3, "num_ooms": 0, "num_device_alloc": 7}
    counting = replace(alone, accelerator=alone.accelerator.changed(memory_stats=lambda: counts))
    summary = _finished(tmp_path, counting)
    for found in (*read_metrics(tmp_path), summary):
        assert {key: found.get(key) for key in counts} == {**counts, "num_device_alloc": None}
    assert " num_alloc_retries=3 num_ooms=0 " in Summary(**{**summary, "first_loss": 2.0}).line()
    (tmp_path / "other").mkdir()
    assert set(summary) - set(_finished(tmp_path / "other", alone)) == {"num_alloc_retries", "num_ooms"}
    assert "num_ooms" not in read_metrics(tmp_path / "other")[0]


def test_non_finite_number_is_null_in_the_record(tmp_path: Path) -> None:
    """JSON has no NaN; a program that reads the file would fail at it."""
    measures = MetricsHub(_group_of_one(), load_config(words=["report="]), tmp_path, 128)
    measures.begin(0, None)
    result = StepResult([2.0], 1e-3, float("inf"), 0.5)
    measures.add(1, result, {"eval_loss": float("nan"), "eval_iou": 0.5}, total=1, last=True)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    record = json.loads(line, parse_constant=pytest.fail)
    assert (record["grad_norm"], record["eval_loss"], record["eval_iou"]) == (None, None, 0.5)


def test_missing_package_is_one_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _hide(monkeypatch, "wandb", "tensorboard")
    with pytest.raises(UserError) as caught:
        MetricsHub(_group_of_one(), load_config(words=["report=plot,tensorboard,wandb"]), tmp_path, 128)
    assert "tensorboard and wandb not installed on the node of rank 0" in str(caught.value)
    assert "pip install tensorboard wandb" in str(caught.value)
    MetricsHub(_group_of_one(), load_config(words=["report=plot"]), tmp_path, 128)


def test_corrupt_record_is_dropped_and_the_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"st\xe5p": 2}\n{"step": 3}\n')
    measures = MetricsHub(_group_of_one(), load_config(words=["report="]), tmp_path, 128)
    measures.begin(3, None)
    measures.close(0)
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 3]


@pytest.mark.parametrize("broken", ["MetricsFile", "open_reporters"])
def test_unwritable_metrics_are_an_error_that_all_ranks_agree_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/disk/events")

    monkeypatch.setattr(f"trainer.metrics.hub.{broken}", refuse)
    measures = MetricsHub(_group_of_one(), load_config(words=["report="]), tmp_path, 128)
    with pytest.raises(StorageUserError, match=r"^/disk/events: No space left on device; ") as caught:
        measures.begin(0, None)
    assert caught.value.is_agreed
    measures.close(2)


class _Broken:
    def __init__(self) -> None:
        self.writes = 0

    def write(self, record: Mapping[str, Any]) -> None:
        self.writes += 1
        raise ReportError(f"somewhere: no room for step {record['step']}")

    def flush(self) -> None:
        raise AssertionError

    def close(self, code: int) -> None:
        raise AssertionError(code)


def test_failing_reporter_is_reported_once_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = _Broken()
    monkeypatch.setattr("trainer.metrics.hub.open_reporters", lambda *_: [broken])
    _measured(tmp_path, load_config(words=["report="]))
    assert broken.writes == 1
    assert capsys.readouterr().out.count("WARNING: no more is reported to somewhere: no room for step 1\n") == 1
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2]


def test_reporters_are_flushed_before_a_checkpoint_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise a kill between the two would lose steps that no later attempt repeats."""
    calls: list[tuple[str, object]] = []
    reporter = SimpleNamespace(
        write=lambda record: calls.append(("write", record["step"])),
        summarise=lambda summary: calls.append(("summary", summary["steps"])),
        flush=lambda: calls.append(("flush", sorted(path.name for path in tmp_path.glob("step_*")))),
        close=lambda code: calls.append(("close", code)),
    )
    monkeypatch.setattr("trainer.metrics.hub.open_reporters", lambda *_: [reporter])
    config = load_config(words=[*TINY, f"out={tmp_path}", "steps=3", "save_steps=2"])
    group = _group_of_one()
    trainer = Trainer(config, group, Progress(group.rank, config.steps), NO_PREEMPTION)
    assert trainer.run() is not None
    trainer.metrics.close(0)
    assert calls == [
        *(("write", 1), ("write", 2), ("flush", [])),
        *(("write", 3), ("flush", ["step_2"]), ("summary", 3), ("close", 0)),
    ]


def test_loss_is_plotted_at_the_end_of_a_finished_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for code in (1, 99):
        _measured(tmp_path, TrainConfig(), code=code)
        assert not (tmp_path / "loss.png").exists()
    _measured(tmp_path, TrainConfig())
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert f"plotted {tmp_path / 'loss.png'}" in capsys.readouterr().out


def test_plot_is_skipped_with_one_line_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _hide(monkeypatch, "matplotlib")
    _measured(tmp_path, TrainConfig())
    assert capsys.readouterr().out.count("loss.png is left out: matplotlib is not installed\n") == 1


def test_bar_is_shown_on_a_terminal_only_and_the_next_output_replaces_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    plain = io.StringIO()
    Bar(plain, 10).show(1, 2.5, "1000 tokens/s", None)
    assert plain.getvalue() == ""
    log_line("in a log")
    assert capsys.readouterr().out == "in a log\n"
    times = iter([7.0, 7.01, 17.0])
    master, slave = os.openpty()
    with os.fdopen(master, "r") as screen, os.fdopen(slave, "w") as terminal:
        bar = Bar(terminal, 10, lambda: next(times))
        bar.show(5, 2.5, "1000 tokens/s", None)
        bar.show(6, 2.5, "1000 tokens/s", 20.0)  # too soon
        bar.show(7, 2.25, "1000 tokens/s", 15.0)
        with contextlib.redirect_stdout(terminal):
            log_line("above the bar")
        assert screen.readline() == ("\x1b[K5/10 [##########          ] loss 2.5000  1000 tokens/s\n")
        assert screen.readline() == "\x1b[K7/10 [##############      ] loss 2.2500  1000 tokens/s  0:00:15 left\n"
        assert screen.readline() == "\x1b[Kabove the bar\n"
