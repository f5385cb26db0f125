"""Ranks of accelerate form one world on devices that it does not support. accelerate is a double; tests/train has the real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from trainer.runtime.accelerators import choose
from trainer.scripts import accelerate, devices


def _module(device: str) -> Any:
    class PartialState:
        _shared_state: ClassVar[dict[str, object]] = {}
        default_device = torch.device(device)

        def __init__(self, cpu: bool = False, **more: object) -> None:
            self._shared_state.setdefault("got", (cpu, more))

    return SimpleNamespace(PartialState=PartialState)


@pytest.mark.parametrize(
    ("device", "launched", "on_cpu"), [("cpu", True, True), ("cpu", False, False), ("cuda", True, False)]
)
def test_launched_ranks_form_a_world_on_the_cpu_without_a_card(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], device: str, launched: bool, on_cpu: bool
) -> None:
    devices.warn.cache_clear()
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if launched:
        monkeypatch.setenv("LOCAL_RANK", "0")
    module = _module(device)
    accelerate.share_the_cpu(module)
    for _ in range(2):
        module.PartialState(timeout=5)
    assert module.PartialState._shared_state == {"got": (on_cpu, {"timeout": 5})}
    assert capsys.readouterr().err.count("accelerate trains on the CPU") == int(on_cpu)


def test_no_cpu_warning_if_there_is_a_card_that_accelerate_does_not_support(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first optimizer step warns of an idle card."""
    devices.warn.cache_clear()
    monkeypatch.setenv("LOCAL_RANK", "0")
    found = choose("cpu", torch).changed(name="gcu-i3x", device="gcu:{n}")
    monkeypatch.setattr(accelerate, "accelerator_of_script", lambda: found)
    module = _module("cpu")
    accelerate.share_the_cpu(module)
    module.PartialState()
    assert module.PartialState._shared_state == {"got": (True, {})}
    assert capsys.readouterr().err == ""
