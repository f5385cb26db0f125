"""A run that proves a remedy changes calls of libraries, and nothing else; the functions that the catalogue names exist."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.diagnosis import change
from orchestrator.diagnosis.catalogue import CATALOGUE
from trainer.scripts import CHANGED_CALLS
from trainer.scripts import calls as changed_calls
from trainer.scripts.calls import with_arguments

CALLS = {row.change.text: row.change.call for row in CATALOGUE.values() if row.change and row.change.call}


def _repeat(name: str, *, times: int = 1, limit: object = None) -> tuple[str, int, object]:
    return name, times, limit


def test_changed_arguments_win_over_those_of_the_program() -> None:
    changed = with_arguments(_repeat, {"times": None, "limit": {"seconds": 9}})
    assert changed("a", times=3) == ("a", 1, timedelta(seconds=9))
    assert with_arguments(_repeat, {"name": "b"})(name="a", times=3) == ("b", 3, None)
    with pytest.raises(TypeError, match="unknown"):
        changed("a", unknown=1)


def test_only_the_named_function_of_the_module_is_changed_and_each_rank_reports_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = SimpleNamespace(__name__="library", repeat=_repeat, other=_repeat)
    calls = [{"module": name, "function": "repeat", "arguments": {"times": 7}} for name in ("library", "another")]
    monkeypatch.setenv(CHANGED_CALLS, json.dumps(calls))
    changed_calls.change(module)
    assert [module.repeat("a"), module.repeat("a"), module.other("a")] == [
        ("a", 7, None),
        ("a", 7, None),
        ("a", 1, None),
    ]
    assert capsys.readouterr().err == "NOTE: to prove a remedy, _repeat is called with times=7\n"


def test_ranks_read_the_variable_that_the_plan_sets() -> None:
    assert CHANGED_CALLS == change.CHANGED_CALLS


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_function_of_every_change_takes_its_arguments(call: change.Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the installed versions of torch and DeepSpeed."""
    pytest.importorskip(call.module.partition(".")[0])
    module = importlib.import_module(call.module)
    owner, _, name = call.function.rpartition(".")
    holder = getattr(module, owner) if owner else module
    before = getattr(holder, name)
    monkeypatch.setattr(holder, name, before)  # restores it
    monkeypatch.setenv(CHANGED_CALLS, json.dumps([asdict(call)]))
    changed_calls.change(module)
    assert getattr(holder, name) is not before


def test_loader_without_workers_loads_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = torch.utils.data.DataLoader
    arguments: Any = change.NO_WORKERS.call and change.NO_WORKERS.call.arguments
    monkeypatch.setattr(loader, "__init__", with_arguments(loader.__init__, arguments))
    loaded = loader([1, 2, 3, 4], batch_size=2, num_workers=2, prefetch_factor=4, persistent_workers=True)
    assert (loaded.num_workers, loaded.persistent_workers) == (0, False)
    assert [batch.tolist() for batch in loaded] == [[1, 2], [3, 4]]


def test_deepspeed_computes_the_batch_size_that_it_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setenv("WORLD_SIZE", "1")
    sizes = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
    with pytest.raises(AssertionError, match="train_batch_size is not equal to"):
        config.DeepSpeedConfig(sizes)
    for sample in (change.NO_TOTAL_BATCH, change.MICRO_BATCH):
        assert sample.call is not None
        name = sample.call.function
        monkeypatch.setattr(config, name, with_arguments(getattr(config, name), sample.call.arguments))
    assert config.DeepSpeedConfig(sizes).train_batch_size == 1
    monkeypatch.undo()
