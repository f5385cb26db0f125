"""Defaults that follow from the device and the size of the model."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.config.defaults import (
    COLLECT_STEPS,
    WHOLE_COLLECTIONS,
    Garbage,
    expand_segments,
    with_device,
    with_shards,
)
from trainer.config.load import load_config, with_saved
from trainer.optim.schedule import Schedule
from trainer.run_rank import common_precisions
from trainer.runtime.seeds import set_tf32


def test_cuda_has_defaults_of_its_own_and_names_them() -> None:
    config, line = with_device(load_config(), "cuda", ("fp32", "bf16", "fp16"))
    assert (config.precision, config.tf32, config.optim.fused) == ("bf16", True, True)
    assert (config.data.workers, config.data.pin_memory) == (2, True)
    assert line == ("defaults for cuda: optim.fused=true data.workers=2 data.pin_memory=true tf32=true precision=bf16")
    assert with_device(load_config(), "cuda", ("fp32", "fp16"))[0].precision == "fp32"


def test_precision_is_one_that_the_cards_of_all_ranks_have() -> None:
    """Ranks that gather weights of other types fail or hang."""
    accelerator = SimpleNamespace(precisions=lambda: ("fp32", "bf16", "fp16"))
    group: Any = SimpleNamespace(accelerator=accelerator, gather_bytes=lambda mine: [mine, b"fp32 fp16"])
    assert with_device(load_config(), "cuda", common_precisions(group))[0].precision == "fp32"


def test_given_values_stay() -> None:
    words = ["precision=fp32", "tf32=false", "optim.fused=false", "data.workers=0", "data.pin_memory=false"]
    config = load_config(words=words)
    assert with_device(config, "cuda", ("fp32", "bf16")) == (config, "")


@pytest.mark.parametrize(
    ("words", "is_tf32"),
    [
        ("", True),
        ("precision=fp32", False),
        ("precision=bf16", False),
        ("deterministic=true", False),
        ("precision=fp32 tf32=true", True),
    ],
)
def test_requested_fp32_is_not_tf32(monkeypatch: pytest.MonkeyPatch, words: str, *, is_tf32: bool) -> None:
    config, _ = with_device(load_config(words=words.split()), "cuda", ("fp32",))
    assert config.tf32 is is_tf32
    for module in (torch.backends.cuda.matmul, torch.backends.cudnn):
        monkeypatch.setattr(module, "allow_tf32", not is_tf32)
    set_tf32(allowed=config.tf32)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (is_tf32, is_tf32)
    assert torch.get_float32_matmul_precision() == ("high" if is_tf32 else "highest")


@pytest.mark.parametrize("device", ["cpu", "gcu-i3x", "gcu-t2x"])
def test_other_devices_keep_the_settings(device: str) -> None:
    assert with_device(load_config(), device, ("fp32", "bf16")) == (load_config(), "")


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        ("", 3e-3),
        ("model.size=30m", 1e-3),
        ("model.size=100m", 6e-4),
        ("model.size=350m", 3e-4),
        ("model.size=1b", 2e-4),
        ("model.size=7b", 1.2e-4),
        ("model.size=7b lr=0.003", 3e-3),
        ("task=tests.grounds.tasks:Points", 3e-3),
    ],
)
def test_learning_rate_falls_with_the_size_of_the_model(words: str, rate: float) -> None:
    assert load_config(words=words.split()).lr == rate


@pytest.mark.parametrize(
    ("words", "device", "has_memory", "is_async", "share"),
    [
        ("", "cuda", True, True, 0.02),
        ("", "cuda", False, False, 0.02),
        ("save_steps=50", "cuda", True, True, None),
        ("save_minutes=5 async_save=false", "cuda", True, False, None),
        ("save_share=0.1", "cuda", True, True, 0.1),
        ("", "cpu", True, False, None),
    ],
)
def test_cards_do_not_wait_for_shards_unless_the_settings_say_so(
    words: str, device: str, share: float | None, *, has_memory: bool, is_async: bool
) -> None:
    config, line = with_shards(load_config(words=words.split()), device, has_memory=has_memory)
    assert (config.async_save, config.save_share) == (is_async, share)
    assert ("async_save=true" in line) is is_async


@pytest.mark.parametrize(
    ("words", "lr", "decay", "warmup"),
    [
        ("init=/w", 1e-5, 0.0, 30),
        ("task=hf:/m", 1e-5, 0.0, 30),
        ("task=hf:/m lora.rank=8", 1e-4, 0.0, 30),
        ("init=/w steps=20", 1e-5, 0.0, 0),
        ("init=/w optim.schedule_steps=200", 1e-5, 0.0, 6),
        ("init=/w lr=0.01 optim.weight_decay=0.2 optim.warmup_steps=7", 0.01, 0.2, 7),
        ("init=/w optim.name=sgd", 3e-3, 0.0, 30),
        ("", 3e-3, 0.1, 10),
    ],
)
def test_weights_that_exist_are_trained_further_with_rates_that_keep_them(
    words: str, lr: float, decay: float, warmup: int
) -> None:
    config = load_config(words=["steps=1000", *words.split()])
    assert (config.lr, config.optim.weight_decay, config.optim.warmup_steps) == (lr, decay, warmup)


@pytest.mark.parametrize(
    ("words", "saved", "expected"),
    [
        ("init=/w", "init=/w lr=0.003 optim.weight_decay=0.1 optim.warmup_steps=10", (0.003, 0.1, 10)),
        ("init=/w lr=1e-3", "init=/w lr=0.003 optim.weight_decay=0.1 optim.warmup_steps=10", (0.001, 0.1, 10)),
        ("steps=200", "init=/w", (1e-5, 0.0, 3)),  # init= may be left out then
        ("steps=200", "lr=0.1", (3e-3, 0.1, 10)),
    ],
)
def test_resumed_training_keeps_the_rates_of_its_checkpoint(
    words: str, saved: str, expected: tuple[float, float, int]
) -> None:
    """An earlier trainer had other defaults."""
    config = with_saved(load_config(words=words.split()), load_config(words=saved.split()).as_dict())
    assert (config.lr, config.optim.weight_decay, config.optim.warmup_steps) == expected


@pytest.mark.parametrize(("words", "warns"), [("steps=10", True), ("steps=11", False), ("optim.warmup_steps=0", False)])
def test_warm_up_that_takes_all_steps_is_warned_of(words: str, *, warns: bool) -> None:
    schedule, _ = Schedule.plan(load_config(words=words.split()), 0, None)
    assert ("only warms up: optim.warmup_steps=10 of 10 steps" in schedule.warning()) is warns


@pytest.mark.parametrize(
    ("version", "given", "name"),
    [
        ("2.13.0+cu130", {}, "PYTORCH_ALLOC_CONF"),
        ("2.6.0", {}, "PYTORCH_CUDA_ALLOC_CONF"),
        ("1.10.0", {}, None),
        ("2.13.0", {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}, None),
    ],
)
def test_segments_are_expandable_unless_the_user_configures_the_allocator(
    version: str, given: dict[str, str], name: str | None
) -> None:
    env = dict(given)
    expand_segments(version, env)
    assert env == (given if name is None else {name: "expandable_segments:True"})


def test_garbage_is_collected_between_steps_only() -> None:
    garbage, generations = Garbage(), []
    gc.callbacks.append(lambda phase, info: generations.append(info["generation"]) if phase == "start" else None)
    try:
        with garbage.held():
            assert not gc.isenabled()
            generations.clear()
            for step in range(1, WHOLE_COLLECTIONS * COLLECT_STEPS + 1):
                cycle: list[object] = []
                cycle.append(cycle)
                garbage.after_step(step)
        assert generations == [1] * (WHOLE_COLLECTIONS - 1) + [2]  # a cycle that has survived one is freed by the last
    finally:
        gc.callbacks.pop()
    assert gc.isenabled()
