"""A user's task on real ranks: killed and resumed, and sent to the nodes of an inventory."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.grounds import components, held_task
from tests.grounds.checkpoints import saved_state
from tests.grounds.cli import Orch
from tests.grounds.metrics import read_metrics
from tests.grounds.sshd import Farm
from tests.train.conftest import DEADLINE_S, REPOSITORY, StartRanks
from tests.until import until
from trainer.checkpoint.format import files
from trainer.data.order import Order

pytestmark = [pytest.mark.train]

EXAMPLE = REPOSITORY / "examples" / "segmentation" / "unet.py"
SMALL = ("options.width=4", "options.size=16", "micro_batch=2", "device=cpu", "report=", "eval_batches=2")


def _untimed_metrics(out: Path) -> list[dict[str, Any]]:
    timed = ("time", "step_time_s", "data_wait_s", "samples_per_s", "peak_memory_bytes")
    return [{key: value for key, value in line.items() if key not in timed} for line in read_metrics(out)]


@pytest.mark.extended
@pytest.mark.parametrize(("strategy", "steps"), [("ddp", 12), pytest.param("fsdp2", 12, marks=pytest.mark.slow)])
def test_killed_segmentation_repeats_an_uninterrupted_run_bit_for_bit(
    start_ranks: StartRanks, tmp_path: Path, strategy: str, steps: int
) -> None:
    """With random crops in data workers, running means of BatchNorm, and evaluations."""
    folder = tmp_path / "images"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(7):
        np.save(folder / f"{number}.image.npy", draw.normal(size=(3, 20, 24)))
        np.save(folder / f"{number}.mask.npy", draw.integers(0, 3, size=(20, 24)))
    words = (
        f"strategy={strategy}",
        f"steps={steps}",
        "save_steps=3",
        "eval_steps=5",
        "data.workers=1",
        f"data.paths={folder}",
    )
    base = ("task=tests.grounds.held_segmentation:Held", *SMALL)
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    assert [rank.wait() for rank in start_ranks(*words, f"out={uninterrupted}", base=base)] == [0, 0]
    held = held_task.hold(killed)
    first = start_ranks(*words, f"out={killed}", base=base)
    until((killed / "step_3").exists, deadline_s=DEADLINE_S, awaited="the first checkpoint")
    for rank in first:
        rank.process.kill()
    assert [rank.wait() for rank in first] == [-signal.SIGKILL] * 2
    held.unlink()
    second = start_ranks(*words, f"out={killed}", base=base)
    assert [rank.wait() for rank in second] == [0, 0]
    assert "resuming from" in second[0].out
    assert f"evaluated step={steps} eval_loss=" in second[0].out
    assert "samples/s=" in second[0].out
    assert _untimed_metrics(killed) == _untimed_metrics(uninterrupted)
    assert [record["step"] for record in read_metrics(uninterrupted) if "eval_iou" in record] == [
        *range(5, steps, 5),
        steps,
    ]
    assert files.read_manifest(killed / f"step_{steps}", steps)["eval_loss"] == read_metrics(killed)[-1]["eval_loss"]
    assert (killed / f"step_{steps}" / "r00000.safetensors").read_bytes() == (
        uninterrupted / f"step_{steps}" / "r00000.safetensors"
    ).read_bytes()


@pytest.mark.slow
def test_classification_of_image_folders_resumes_and_is_evaluated_alone(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    """
    With channels_last, a lower rate for the last layer, values of the training, and all validation samples.

    Not with 4 channels: the backward pass of torch 2.13 then corrupts its memory (seen on a CPU with AVX2 only).
    """
    components.module("PIL")
    pillow: Any = importlib.import_module("PIL.Image")
    for split, count in (("train", 6), ("val", 5)):
        for name, colour in (("blue", (0, 0, 200)), ("red", (200, 0, 0))):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                pillow.new("RGB", (12, 10), colour).save(tmp_path / split / name / f"{number}.png")
    words = (
        f"data.paths={tmp_path / 'train'}",
        f"data.validation={tmp_path / 'val'}",
        "channels_last=true",
        "log_steps=2",
    )
    base = (
        "task=examples.classification.resnet:Classification", "options.width=8", "options.size=8", "options.head_lr=0.5",
        "micro_batch=2", "device=cpu", "report=", "steps=6", "save_steps=3",
    )  # fmt: skip
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert [rank.wait() for rank in start_ranks(*words, f"out={whole}", base=base)] == [0, 0]
    metrics = _untimed_metrics(whole)
    assert [0 <= line.get("train_accuracy", -1) <= 1 for line in metrics] == [False, True] * 3
    resumed.mkdir()
    shutil.copytree(whole / "step_3", resumed / "step_3")
    assert [rank.wait() for rank in start_ranks(*words, f"out={resumed}", base=base)] == [0, 0]
    assert [line["loss"] for line in _untimed_metrics(resumed)] == [line["loss"] for line in metrics[3:]]
    alone = start_ranks(*words, f"out={resumed}", "evaluate_only=true", base=base)
    assert [rank.wait() for rank in alone] == [0, 0], alone[0].err
    found = json.loads((resumed / "evaluation.json").read_text())
    assert found == {"step": 6, **{key: value for key, value in metrics[-1].items() if key.startswith("eval_")}}
    assert "step=" not in re.sub("evaluated step=6", "", alone[0].out)
    nothing = start_ranks(*words, f"out={tmp_path / 'new'}", "evaluate_only=true", base=base)
    assert [rank.wait() for rank in nothing] == [2, 2]
    assert "error: evaluate_only=true: there is no checkpoint in " in nothing[0].err


def test_tokens_beyond_the_vocabulary_end_all_ranks_and_others_train(start_ranks: StartRanks, tmp_path: Path) -> None:
    np.save(tmp_path / "train.npy", np.arange(5000, dtype="u4") % 300)
    paths = (f"data.paths={tmp_path / 'train.npy'}", f"data.validation={tmp_path / 'train.npy'}")
    ranks = start_ranks(*paths, "steps=2", "model.vocabulary=300", "data.workers=1", "deterministic=true")
    assert [rank.wait() for rank in ranks] == [0, 0]
    assert "5000 tokens sha256" in ranks[0].out
    assert "evaluated step=2 eval_loss=" in ranks[0].out
    ranks = start_ranks(*paths, "steps=2", "model.vocabulary=200", f"out={tmp_path / 'other'}")
    assert [rank.wait() for rank in ranks] == [2, 2]
    message = f"data.paths: {tmp_path / 'train.npy'}, token"
    assert ranks[0].err.startswith(f"error: rank 0: {message}")
    assert ranks[1].err == ""


@pytest.mark.parametrize(
    ("split", "step", "done"), [("train", 3, 1), pytest.param("validation", 1, 3, marks=pytest.mark.extended)]
)
def test_wrong_sample_on_one_rank_during_training_is_one_error_line_on_each_rank(
    start_ranks: StartRanks, tmp_path: Path, split: str, step: int, done: int
) -> None:
    """The other ranks, which are in a collective, print the error of that rank and no traceback. They report a step during the next one."""
    ranks, micro_batch, context = 3, 4, 32
    tokens = np.arange(5000, dtype="u4") % 300
    np.save(tmp_path / "good.npy", tokens)
    position = (step - 1) * ranks * micro_batch + micro_batch  # the first of rank 1 at that step
    bad = Order((len(tokens) - 1) // context, 0, split).sample(position) * context + context // 2
    tokens[bad] = 4711
    np.save(tmp_path / "bad.npy", tokens)
    files = {"train": "good.npy", "validation": "good.npy", split: "bad.npy"}
    words = [f"data.paths={tmp_path / files['train']}", f"data.validation={tmp_path / files['validation']}"]
    started = start_ranks(*words, "steps=9", "eval_steps=4", "log_steps=1", "model.vocabulary=300", world_size=ranks)
    assert [rank.wait() for rank in started] == [2] * ranks
    assert re.findall(r"^step=(\d)", started[0].out, re.MULTILINE)[-1:] == [str(done)]
    key = "data.paths" if split == "train" else "data.validation"
    message = f"{key}: {tmp_path / 'bad.npy'}, token {bad}: 4711 is no token of model.vocabulary=300: "
    assert [rank.err.partition(message)[0] for rank in started] == [
        "error: rank 1: ",
        "rank 1: error: ",
        "rank 2: error: rank 1: ",
    ]
    assert [rank.err.count("\n") for rank in started] == [1] * ranks
    recorded = [json.loads((rank.folder / f"{rank.number}.json").read_text())["message"] for rank in started]
    assert {record["extraInfo"]["kind"] for record in recorded} == {"config"}


@pytest.mark.extended
def test_shared_weights_and_buffers_train_alike_under_every_strategy(start_ranks: StartRanks, tmp_path: Path) -> None:
    components.module("deepspeed")
    base = (
        "task=tests.grounds.tied_task:Tied",
        "steps=6",
        "micro_batch=4",
        "batch=16",
        "lr=0.05",
        "device=cpu",
        "report=",
    )
    started = {
        strategy: start_ranks(f"strategy={strategy}", f"out={tmp_path / strategy}", base=base)
        for strategy in ("ddp", "fsdp2", "zero3")
    }
    coarse = ("strategy=zero3", "precision=bf16", "micro_batch=8", f"out={tmp_path / 'bf16'}")
    started["bf16"] = start_ranks(*coarse, base=base, world_size=1)
    assert {rank.wait() for ranks in started.values() for rank in ranks} == {0}, started["bf16"][0].err
    assert "batch 16 = micro_batch 4 x devices 2 x nodes 1 x accumulation 2\n" in started["ddp"][0].out
    losses = {name: [record["loss"] for record in read_metrics(tmp_path / name)] for name in started}
    assert losses["ddp"][-1] < 0.9 * losses["ddp"][0]
    assert losses["fsdp2"] == pytest.approx(losses["ddp"], rel=1e-4)
    assert losses["zero3"] == pytest.approx(losses["ddp"], rel=1e-4)
    states = {name: saved_state(tmp_path / name / "step_6")["model"] for name in started}
    for state in states.values():
        assert set(state) == set(states["ddp"])
        assert torch.equal(state["head.weight"], state["token.weight"])
        torch.testing.assert_close(state["head.weight"], states["ddp"]["head.weight"], atol=0.005, rtol=0.0)
    assert losses["bf16"] == pytest.approx(
        losses["ddp"], rel=0.003
    )  # with buffers in bf16 the losses would be 0.9 % off


@pytest.mark.timeout(200)
def test_task_is_sent_to_the_nodes_and_cannot_shadow_the_trainer(farm: Farm, tmp_path: Path) -> None:
    """From a folder outside of git with its own trainer.py."""
    (tmp_path / "unet.py").write_text(EXAMPLE.read_text("utf-8"))
    (tmp_path / "trainer.py").write_text("raise SystemExit('the wrong trainer')")
    farm.inventory(tmp_path, nodes=2, devices=1, env={"OMP_NUM_THREADS": "1"})
    orch = Orch(tmp_path)
    orch("ssh-launch", "task=unet:Segmentation", "steps=2", *SMALL, timeout_s=180)
    status = orch.status()
    assert status["state"] == "DONE"
    assert status["summary"]["steps"] == 2
    assert status["summary"]["samples_per_s"] > 0
    assert any("evaluated step=2" in line["text"] for line in orch.lines())
