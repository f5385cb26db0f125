"""Which activations are kept from the forward to the backward pass, and which operations are computed twice."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.parallel.activation_checkpoint import _policy, kept_operations, recompute
from trainer.parallel.requirements import unmet_requirement
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.tasks.gpt import Gpt

SHAPE = "model.layers=2 model.width=32 model.heads=2 model.context=16 model.vocabulary=11"
TOKENS = torch.arange(68).view(4, 17) % 11
aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention.default  # named in traces only


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the operations, and knows the results that are still in memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[Any] = Counter()
        self.storages: list[weakref.ref[Any]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[operation.overloadpacket] += 1
        results = operation(*args, **(kwargs or {}))
        flat = results if isinstance(results, (tuple, list)) else [results]
        self.storages += [weakref.ref(value.untyped_storage()) for value in flat if isinstance(value, torch.Tensor)]
        return results

    def kept_bytes(self) -> int:
        alive = {id(storage): storage for storage in (found() for found in self.storages) if storage is not None}
        return sum(storage.nbytes() for storage in alive.values())


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _train(setting: str) -> tuple[torch.Tensor, list[torch.Tensor], int, Counter[Any]]:
    """Loss, gradients, bytes kept for the backward pass, and operations of both passes."""
    config = load_config(words=[*SHAPE.split(), f"activation_checkpointing={setting}"])
    torch.manual_seed(3)
    task = Gpt(config)
    model = task.build_model()
    recompute(config, task.blocks(model))
    with one_thread(), Operations() as operations:
        loss = task.loss(model, TOKENS)
        kept = operations.kept_bytes()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return loss.detach(), gradients, kept, operations.counts


def test_selective_keeps_the_results_of_matrices_and_attention_and_recomputes_the_rest() -> None:
    (loss, gradients, most, once), (_, _, least, twice) = _train("false"), _train("true")
    found, same, kept, counts = _train("selective")
    assert torch.equal(loss, found)
    assert all(torch.equal(*pair) for pair in zip(gradients, same, strict=True))
    assert least < 0.5 * most
    assert least < kept < 0.8 * most
    attention = aten._scaled_dot_product_flash_attention_for_cpu  # named in traces only
    for operation in (aten.addmm, attention):
        assert counts[operation] == once[operation] < twice[operation]
    for operation in (aten.gelu, aten.native_layer_norm):
        assert counts[operation] == twice[operation] > once[operation]


def test_number_recomputes_every_nth_block() -> None:
    (loss, gradients, most, once), (_, _, least, twice) = _train("false"), _train("true")
    found, same, kept, counts = _train("2")  # the first of two blocks
    assert torch.equal(loss, found)
    assert all(torch.equal(*pair) for pair in zip(gradients, same, strict=True))
    assert kept == pytest.approx((most + least) / 2, rel=0.02)
    assert 2 * counts[aten.gelu] == once[aten.gelu] + twice[aten.gelu]
    assert _train("3")[2] == kept


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_with_dropout_is_recomputed(dropout: float) -> None:
    """Its numbers are drawn from the generator that the operations behind it use."""
    query = torch.zeros(1)
    assert FLASH in kept_operations()
    expected = "PREFER_RECOMPUTE" if dropout else "MUST_SAVE"
    assert _policy(None, FLASH, query, query, query, dropout).name == expected
    assert _policy(None, FLASH, query, query, query, dropout_p=dropout).name == expected


def _group() -> Group:
    return initialise("cpu", 60.0, {})


def test_selective_needs_a_torch_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(words=["activation_checkpointing=selective"])
    assert unmet_requirement(_group(), config) == ""
    monkeypatch.delattr("torch.utils.checkpoint.create_selective_checkpoint_contexts")
    assert "activation_checkpointing=selective needs torch >= 2.4, here is" in unmet_requirement(_group(), config)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "activation_checkpointing=some",
            "activation_checkpointing=some: allowed: true, false, selective, a whole number >= 2",
        ),
        (
            "activation_checkpointing=1",
            "activation_checkpointing=1: allowed: true, false, selective, a whole number >= 2",
        ),
        ("activation_checkpointing=selective strategy=zero3", "selective does not go with strategy=zero3"),
    ],
)
def test_wrong_value_is_refused(words: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(words=words.split())
