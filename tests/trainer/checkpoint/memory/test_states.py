"""The choice of a state in memory, the neighbours that keep copies, and the limits of the memory. One process."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.grounds.checkpoints import Session, flip
from trainer.checkpoint.format.files import DamagedError
from trainer.checkpoint.manager import TrainState
from trainer.checkpoint.memory import exchange as exchange_module
from trainer.checkpoint.memory.exchange import Exchange, Neighbours, receive_state, send_state
from trainer.checkpoint.memory.memory_file import MemoryFile
from trainer.checkpoint.memory.states import (
    VARIABLE,
    MemoryStates,
    Offer,
    choose,
)
from trainer.errors import UserError
from trainer.runtime.accelerators import Accelerator, Cpu
from trainer.runtime.signals import Flag


def test_copies_are_on_the_next_node() -> None:
    nodes = ["a", "a", "b", "b", "b", "c"]
    found = [Neighbours.of(rank, nodes) for rank in range(6)]
    assert [neighbours.target for neighbours in found] == [2, 3, 5, 5, 5, 0]
    assert [neighbours.sources for neighbours in found] == [(5,), (), (0,), (1,), (), (2, 3, 4)]
    assert Neighbours.of(1, ["a", "a"]) == Neighbours(None, ())


def _offer(rank: int, step: int, *, holder: int | None = None, save: str = "x", replica: str = "same") -> Offer:
    return Offer(rank if holder is None else holder, "node", rank, step % 2, f"{save}-{step}", step, replica)


def test_newest_state_that_all_ranks_have_is_chosen() -> None:
    both = [_offer(rank, step) for rank in (0, 1) for step in (10, 15)]
    assert choose(both, 2) == [_offer(0, 15), _offer(1, 15)]
    assert choose([*both, _offer(0, 20)], 2) == [_offer(0, 15), _offer(1, 15)]
    copy = _offer(1, 20, holder=0)
    assert choose([*both, _offer(0, 20), copy], 2) == [_offer(0, 20), copy]
    assert choose([copy, _offer(0, 20), _offer(1, 20)], 2) == [_offer(0, 20), _offer(1, 20)]
    assert choose(both, 3) is None
    assert choose([], 1) is None


def test_parts_of_two_attempts_and_replicas_that_differ_are_no_state() -> None:
    assert choose([_offer(0, 10), _offer(1, 10, save="y")], 2) is None
    assert choose([_offer(0, 10), _offer(1, 10, replica="other")], 2) is None


class Attempt:
    """A rank alone that keeps states in memory; `saved` is what it kept."""

    def __init__(self, out: Path, memory: Path, *, number: int, **config: object) -> None:
        self.session = Session.start(out, memory_steps=1, **config)
        checkpoints = self.session.checkpoints
        rank = replace(checkpoints.group.rank, is_retry=number > 1)
        group = replace(checkpoints.group, rank=rank)
        states = MemoryStates.open(group, checkpoints.config, "text", {VARIABLE: str(memory)})
        assert states is not None
        self.states = states
        self.session.checkpoints = replace(checkpoints, group=group, memory=states)

    def keep(self, *steps: int) -> None:
        for step in steps:
            self.session.train()
            self.session.checkpoints.keep_in_memory(TrainState(step, 2 * step, 5.5, 1 / step), self.session.strategy)
            self.states.finish()
            assert self.states.kept == step

    def close(self) -> None:
        self.states._writer.close()  # a training ends with its process


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture
def first(tmp_path: Path, memory: Path) -> Attempt:
    """The first attempt of the training in `out`."""
    return Attempt(tmp_path / "out", memory, number=1)


@pytest.mark.processes
def test_next_attempt_takes_the_newest_state_and_a_damaged_one_is_left_out(
    tmp_path: Path, memory: Path, first: Attempt, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    first.keep(1, 2, 3)
    first.close()
    assert sorted(path.name for path in memory.iterdir()) == [
        "r00000-0.json", "r00000-0.safetensors", "r00000-1.json", "r00000-1.safetensors",
    ]  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in memory.iterdir()} == {0o600}

    second = Attempt(out, memory, number=2)
    assert second.session.resume() == TrainState(3, 6, 5.5, 1 / 3)
    assert second.session.weights() == first.session.weights()
    assert capsys.readouterr().out == "resuming from memory, step 3\n"

    flip(memory / "r00000-0.safetensors")
    third = Attempt(out, memory, number=2)
    assert third.session.resume().step == 2
    printed = capsys.readouterr().out
    assert f"damaged and not used: {memory}/r00000-0.safetensors: its hash does not match\n" in printed
    assert "resuming from memory, step 2\n" in printed

    (memory / "r00000-1.json").write_text("{}")
    assert Attempt(out, memory, number=2).session.resume().step == 0
    assert f"{memory}/r00000-1.json: its own hash does not match\n" in capsys.readouterr().out


@pytest.mark.processes
def test_state_of_other_settings_or_before_a_newer_checkpoint_or_a_roll_back_is_not_used(
    tmp_path: Path, memory: Path, first: Attempt, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    first.keep(1)
    assert Attempt(tmp_path / "other", memory, number=2, lr=1.0).session.resume().step == 0
    assert "it is of other settings or data: lr: 0.003 -> 1.0\n" in capsys.readouterr().out
    assert Attempt(tmp_path / "fresh", memory, number=1).session.resume().step == 0
    first.session.train_and_save(2)
    assert Attempt(out, memory, number=2).session.resume().step == 2
    flip(out / "step_2" / "r00000.safetensors")
    assert Attempt(out, memory, number=2).session.resume().step == 1
    assert [path.name for path in (out / "quarantine").iterdir()] == ["step_2-0"]
    shutil.rmtree(out / "quarantine")
    first.states.forget()
    first.close()
    assert Attempt(out, memory, number=2).session.resume().step == 0


@pytest.mark.processes
def test_larger_files_and_those_of_other_ranks_are_left_from_an_attempt_with_more_of_both(
    tmp_path: Path, memory: Path
) -> None:
    memory.mkdir(mode=0o700)
    for name in ("r00000-0.safetensors", "r00007-0.safetensors", "r00007-0.json"):
        (memory / name).write_bytes(bytes(1 << 22))
    first = Attempt(tmp_path, memory, number=2)
    assert first.session.resume().step == 0
    assert [path.name for path in memory.iterdir()] == ["r00000-0.safetensors"]
    first.keep(1)
    first.close()
    assert Attempt(tmp_path, memory, number=2).session.resume().step == 1


def test_states_are_due_at_multiples_unless_one_is_under_way(tmp_path: Path, memory: Path) -> None:
    states = Attempt(tmp_path, memory, number=1).states
    states.every = 5
    assert [step for step in range(1, 16) if states.is_due(step, Flag.NONE)] == [5, 10, 15]
    assert not states.is_due(5, Flag.KEEPING)


def test_too_little_memory_and_a_folder_of_others_are_errors_before_the_first_step(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path, memory, number=1)
    attempt.session.checkpoints.for_model(attempt.session.strategy)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match=r"memory_steps=1: .*memory on .* has \S+ GB of memory free, 0\.000\d+ GB are"):
        attempt.session.checkpoints.for_model(attempt.session.strategy)
    config = attempt.session.checkpoints.config
    group = attempt.session.checkpoints.group
    memory.chmod(0o770)
    with pytest.raises(UserError, match=r"memory_steps=1: .*memory: others may write it"):
        MemoryStates.open(group, config, "text", {VARIABLE: str(memory)})
    with pytest.raises(UserError, match=r"\$ORCH_MEMORY_DIR is not set: start the training by orch"):
        MemoryStates.open(group, config, "text", {})
    assert MemoryStates.open(group, replace(config, memory_steps=None), "text", {}) is None


class _Wire:
    """torch.distributed of a rank that sends to itself; a receive must have the size of the message, as with gloo."""

    def __init__(self) -> None:
        self.messages: list[torch.Tensor] = []

    def new_group(self, backend: str) -> str:
        return backend

    def isend(self, tensor: torch.Tensor, target: int, group: str) -> Any:
        self.messages.append(tensor.clone())
        return SimpleNamespace(wait=lambda: None)

    def recv(self, tensor: torch.Tensor, source: int, group: str) -> None:
        message = self.messages.pop(0)
        assert len(message) == len(tensor)
        tensor.copy_(message)


def test_copy_that_cannot_be_kept_costs_that_state_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "CHUNK_BYTES", 3)
    accelerator: Accelerator = Cpu(torch)
    group: Any = SimpleNamespace(accelerator=SimpleNamespace(distributed=_Wire()))
    exchange = Exchange(group)
    mine = MemoryFile(tmp_path, 0, 1, accelerator)
    copies = [MemoryFile(tmp_path / "copies", 0, slot, accelerator) for slot in (0, 1)]
    record = {"size": 10, "step": 5}
    mine.memory.view(10)[:] = b"0123456789"
    send_state(exchange, 0, mine, record)
    assert receive_state(exchange, 0, copies) == f"{tmp_path}/copies/r00000-1.safetensors: No such file or directory"
    (tmp_path / "copies").mkdir()
    send_state(exchange, 0, mine, record)
    assert receive_state(exchange, 0, copies) == ""
    assert copies[1].path.read_bytes() == b"0123456789"
    assert (copies[1].read_record() or {})["step"] == 5
    send_state(exchange, 0, mine, {})  # there is no such state
    assert receive_state(exchange, 0, copies) == ""
    assert copies[1].read_record() is None


class _Pins(Cpu):
    """The ranges that are locked."""

    def __init__(self) -> None:
        super().__init__(torch)
        self.locked: dict[int, int] = {}

    def pin(self, address: int, size: int) -> None:
        assert address not in self.locked
        self.locked[address] = size

    def unpin(self, address: int) -> None:
        del self.locked[address]


def test_only_memory_that_is_filled_from_the_device_is_locked(tmp_path: Path) -> None:
    accelerator = _Pins()
    file = MemoryFile(tmp_path, 0, 0, accelerator)
    file.memory.view(100)
    assert not accelerator.locked
    size = file.memory.fill({"a": torch.ones(100)})
    assert list(accelerator.locked.values()) == [size]
    file.memory.fill({"a": torch.ones(100)})
    file.memory.fill({"a": torch.ones(1000)})
    assert len(accelerator.locked) == 1
    file.close()
    assert not accelerator.locked


def test_record_is_sealed(tmp_path: Path) -> None:
    accelerator: Accelerator = SimpleNamespace()  # type: ignore[assignment]  # it is not used
    file = MemoryFile(tmp_path, 3, 1, accelerator)
    assert file.read_record() is None
    file.write_record({"step": 5})
    assert (file.read_record() or {})["step"] == 5
    file.record_path.write_text(json.dumps({**json.loads(file.record_path.read_text()), "step": 6}))
    with pytest.raises(DamagedError, match=r"r00003-1\.json: its own hash does not match"):
        file.read_record()
    file.record_path.write_bytes(b"\xff")
    with pytest.raises(DamagedError, match=r"r00003-1\.json: cannot be read"):
        file.read_record()
    file.forget()
    file.forget()
    assert file.read_record() is None
