"""fp8=true: who may use it, and which layers torchao converts. torchao itself is replaced here; docs/trainer.md has its numbers."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.parallel.building import build_plain
from trainer.parallel.fp8 import unmet_fp8
from trainer.runtime.accelerators import Cpu, Cuda
from trainer.tasks.gpt import Gpt

Converted = list[tuple[str, str]]


def settings(*words: str) -> TrainConfig:
    return load_config(words=["fp8=true", "precision=bf16", "model.layers=2", "model.context=8", *words])


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> Converted:
    """Puts a torchao into place that converts nothing; the layers that it would convert, with their block."""
    found: Converted = []

    def convert(block: torch.nn.Module, *, module_filter_fn: Callable[[Any, str], bool], config: object) -> None:
        assert config == {}
        linear = [(name, layer) for name, layer in block.named_modules() if isinstance(layer, torch.nn.Linear)]
        found.extend((type(block).__name__, name) for name, layer in linear if module_filter_fn(layer, name))

    api = SimpleNamespace(convert_to_float8_training=convert, Float8LinearConfig=dict)
    package = ModuleType("torchao")
    package.__spec__ = importlib.machinery.ModuleSpec("torchao", None)
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.float8", api)
    return found


def test_linear_layers_of_blocks_are_converted(converted: Converted) -> None:
    config = settings("model.width=32", "model.heads=2")
    build_plain(Gpt(config), config)
    assert converted == [("Block", name) for _ in range(2) for name in ("mix", "gather", "feed.0", "feed.2")]


def test_model_without_suitable_layers_is_refused(converted: Converted) -> None:
    config = settings("model.width=24", "model.heads=2")
    with pytest.raises(
        UserError, match=r"has no linear layers in blocks\(\) whose sizes are multiples of 16; leave it out"
    ):
        build_plain(Gpt(config), config)
    assert converted == []


@pytest.mark.usefixtures("converted")
@pytest.mark.parametrize("capability", [(8, 9), (9, 0)])
def test_card_with_fp8_and_torchao_is_accepted(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert unmet_fp8(Cuda(torch), settings()) == ""


@pytest.mark.parametrize(
    ("accelerator", "capability", "words", "message"),
    [
        (Cpu(torch), (9, 0), "", "fp8=true: cpu has no fp8: leave it out"),
        (
            Cuda(torch),
            (8, 0),
            "",
            "needs a card of compute capability 8.9 or more, such as Ada and Hopper, here is 8.0",
        ),
        (
            Cuda(torch),
            (9, 0),
            "precision=fp16",
            "goes with precision=bf16, in which all other layers compute, not fp16",
        ),
        (Cuda(torch), (9, 0), "", "needs the package torchao, which is not installed"),
    ],
)
def test_missing_requirement_is_named(
    monkeypatch: pytest.MonkeyPatch, accelerator: Cpu | Cuda, capability: tuple[int, int], words: str, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert message in unmet_fp8(accelerator, settings(*words.split()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("strategy=zero2", "fp8=true goes with strategy=ddp or fsdp2, not zero2"),
        ("task=hf:folder lora.rank=4", "fp8=true does not go with lora.rank"),
    ],
)
def test_settings_that_exclude_fp8_are_refused(words: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(words=["fp8=true", *words.split()])
