"""Adapters of the Llama under DeepSpeed: the losses of DDP, and the same weights after a resume and the merge."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.grounds import components
from tests.grounds.chats import sums, write_records
from tests.grounds.hf_models import write_model
from tests.grounds.metrics import read_metrics
from tests.grounds.trainings import train_alone
from tests.train.conftest import StartRanks, codes
from trainer.checkpoint.__main__ import main
from trainer.config.load import load_config

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]

LORA = ("lora.rank=2", "lora.alpha=8", "lora.targets=q_proj,down_proj", "lr=0.01", "optim.schedule_steps=4")


def _merged(out: Path) -> dict[str, torch.Tensor]:
    target = out.with_name(f"{out.name}-merged")
    assert main(["export", str(out), str(target), "--hf", "--precision", "fp32"]) == 0
    return load_file(target / "model.safetensors")


@pytest.mark.parametrize("strategy", ["zero3", pytest.param("zero2", marks=pytest.mark.extended)])
def test_adapters_are_those_of_ddp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_ranks: StartRanks, strategy: str
) -> None:
    components.module("peft")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_model(tmp_path / "model")
    chats = write_records(tmp_path / "chat.jsonl", sums(8))
    base = (
        "task=trainer.tasks.llama:Llama",
        f"init={tmp_path / 'model'}",
        f"data.paths={chats}",
        "device=cpu",
        "report=",
    )
    words = (*base, "options.context=96", *LORA)
    ddp, zero = tmp_path / "ddp", tmp_path / "zero"
    train_alone(load_config(words=[*words, "micro_batch=2", "steps=4", f"out={ddp}"]))
    for steps in (2, 4):
        more = (f"strategy={strategy}", "micro_batch=1", f"steps={steps}", f"out={zero}")
        assert codes(start_ranks(*words, *more, base=())) == [0, 0]
    losses = [[record["loss"] for record in read_metrics(out)] for out in (ddp, zero)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    expected = _merged(ddp)
    for name, tensor in _merged(zero).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-3)
