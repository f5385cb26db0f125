"""The host reads no number of a step before the next one: on a card, each read would leave it without work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.grounds.host_reads import HostReads
from tests.grounds.trainings import NO_PREEMPTION, TINY, world_of_one
from trainer.config.load import load_config
from trainer.runtime.accelerators import Cpu
from trainer.runtime.init import initialise
from trainer.runtime.progress import Progress
from trainer.train import Trainer

pytestmark = pytest.mark.trains


class Readings:
    """start_reading() of a CPU that records in which step a number is started and read."""

    def __init__(self) -> None:
        self.step, self.is_counting = 0, False
        self.pairs: list[tuple[int, int]] = []

    def start(self, tensor: torch.Tensor) -> Callable[[], list[Any]]:
        started, values = self.step, tensor.numpy().copy()

        def read() -> list[Any]:
            self.pairs.append((started, self.step))
            found: list[Any] = values.tolist()
            return found

        return read


@pytest.mark.parametrize(
    ("words", "launched"),
    [
        ("", False),
        ("", True),
        ("accumulation=2 precision=bf16", True),
        ("strategy=fsdp2", True),
        ("optim.name=sgd optim.ema=0.9", True),
        ("strategy=fsdp2 optim.ema=0.9", True),
        ("strategy=fsdp2 precision=bf16 accumulation=2", True),
    ],
)
def test_step_reads_only_numbers_of_the_step_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, *, launched: bool
) -> None:
    group = initialise("cpu", 60.0, world_of_one() if launched else {})
    readings, reads = Readings(), HostReads()
    monkeypatch.setattr(Cpu, "start_reading", lambda _, tensor: readings.start(tensor))
    to_list = torch.Tensor.tolist

    def counted_list(tensor: torch.Tensor) -> list[Any]:
        if readings.is_counting:
            reads.found.append("tolist")  # it is no operation
        found: list[Any] = to_list(tensor)
        return found

    monkeypatch.setattr(torch.Tensor, "tolist", counted_list, raising=False)
    make_step = Trainer._step  # no other function is a step and nothing else

    def counted_step(trainer: Trainer, step: int) -> Any:  # its result
        readings.step = step
        readings.is_counting = True
        try:
            with reads:
                return make_step(trainer, step)
        finally:
            readings.is_counting = False

    monkeypatch.setattr(Trainer, "_step", counted_step)
    config = load_config(
        words=[*TINY, *words.split(), "optim.fused=true", "steps=6", f"out={tmp_path}", "data.paths=" + __file__]
    )
    try:
        trainer = Trainer(config, group, Progress(group.rank, config.steps), NO_PREEMPTION)
        assert trainer.run() is not None
        trainer.metrics.close(1)
    finally:
        if launched:
            torch.distributed.destroy_process_group()
    assert readings.pairs == [*((step, step + 1) for step in range(1, 6)), (6, 6)]  # the last one before the final save
    assert reads.found == []
