"""TensorBoard and W&B data of a training that was killed and resumed, read back with their own code."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.grounds import components, held_task
from tests.grounds.metrics import read_metrics
from tests.train.conftest import DEADLINE_S, HELD, StartRanks
from tests.until import until

pytestmark = pytest.mark.train


def _tensorboard(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """(step, time, number) of every curve, as TensorBoard shows it."""
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(point.step, point.wall_time, point.value) for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def _log(path: Path) -> Iterator[bytes]:
    """
    The records of a .wandb file: a LevelDB log, 32 KiB blocks of (checksum, length, kind, data).

    W&B's own reader is inside a program that uploads, so the frames are parsed here.
    """
    data, at, whole = path.read_bytes(), 7, b""  # after ":W&B", magic and version
    while at < len(data):
        if 32768 - at % 32768 < 7:  # too short for a frame: padding
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the only part, or the last
            yield whole
            whole = b""


def _wandb(path: Path) -> tuple[dict[str, str], list[dict[str, Any]], dict[str, Any]]:
    """The run's facts, its history in the form of metrics.jsonl, and its summary."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    facts, history, summary = {}, [], {}
    for data in _log(path):
        record = messages.Record.FromString(data)
        if record.HasField("run"):
            run = record.run
            facts = {"id": run.run_id, "name": run.display_name, "project": run.project}
        if record.HasField("history"):
            items = {
                (item.key or ".".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item
            }
            history.append({"step": record.history.step.num, **items})
        if record.HasField("summary"):
            summary.update(
                {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.summary.update}
            )
    return facts, history, summary


@pytest.mark.extended
@pytest.mark.slow
def test_killed_training_has_every_step_once_in_tensorboard_and_in_wandb(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    for name in ("tensorboard", "wandb", "matplotlib"):
        components.module(name)
    out = tmp_path / "out"
    words = ("steps=60", "save_steps=20", f"out={out}", "report=plot,tensorboard,wandb", "peak_tflops=0.1")
    env = {"ORCH_RUN_ID": "20261121-train-ab12", "WANDB_MODE": "offline"}
    held = held_task.hold(out, steps=25)
    (first,) = start_ranks(*words, env=env, world_size=1, base=HELD)
    metrics = out / "metrics.jsonl"
    until(lambda: metrics.exists() and len(read_metrics(out)) == 25, deadline_s=DEADLINE_S, awaited="step 25")
    first.process.kill()
    first.wait()
    held.unlink()
    (second,) = start_ranks(*words, env={**env, "ORCH_ATTEMPT": "2"}, world_size=1, base=HELD)
    assert second.wait() == 0, second.err
    records = read_metrics(out)
    assert [record["step"] for record in records] == list(range(1, 61))

    summary = json.loads((out / "summary.json").read_text())
    assert summary["steps"] == 60
    assert summary["last_loss"] == records[-1]["loss"]
    assert summary["step_time_p50_s"] <= summary["step_time_p99_s"] <= max(record["step_time_s"] for record in records)
    numbers = {key: value for key, value in summary.items() if key != "checkpoint"}

    curves = _tensorboard(out / "tensorboard")
    totals = {tag: curves.pop(tag) for tag in sorted(curves) if tag.startswith("summary/")}
    assert {tag: [point[0] for point in curve] for tag, curve in totals.items()} == {
        f"summary/{key}": [60] for key in numbers
    }
    assert {tag: curve[0][2] for tag, curve in totals.items()} == pytest.approx(
        {f"summary/{key}": value for key, value in numbers.items()}, rel=1e-6
    )
    assert set(curves) == set(records[0]) - {"step", "time"}
    for tag, curve in curves.items():
        assert [point[:2] for point in curve] == [(record["step"], record["time"]) for record in records], tag
        assert [point[2] for point in curve] == pytest.approx([record[tag] for record in records], rel=1e-6), (
            tag
        )  # 32 bits

    newest = max((out / "wandb").glob("offline-run-*/*.wandb"))
    facts, history, shown = _wandb(newest)
    assert {key: shown[f"summary/{key}"] for key in summary} == summary
    assert facts == {"id": "20261121-train-ab12", "name": "20261121-train-ab12", "project": "orch"}
    assert [{key: record[key] for key in records[0]} for record in history] == records
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_wandb_without_a_key_is_one_error_on_all_ranks_before_the_first_step(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    components.module("wandb")
    env = {"HOME": str(tmp_path), "WANDB_MODE": "online", "WANDB_API_KEY": "", "NETRC": str(tmp_path / "none")}
    ranks = start_ranks("report=tensorboard,wandb", f"out={tmp_path / 'out'}", env=env)
    assert [rank.wait() for rank in ranks] == [2, 2]
    assert "error: rank 0: report=wandb: " in ranks[0].err
    assert "WANDB_MODE=offline" in ranks[0].err
    assert ranks[1].err == ""
    assert "step=1" not in ranks[0].out
    assert len(list((tmp_path / "out" / "tensorboard").iterdir())) == 1  # of rank 0 alone
