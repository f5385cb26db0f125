"""Fingerprints of parameters: every bit counts, whatever the type, shape and place in memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trainer.parallel.replicas import Replicas
from trainer.runtime.accelerators import choose
from trainer.runtime.fingerprint import KEPT, fingerprint


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (4, 4), (7,)])
def test_each_bit_of_each_type_counts(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(dtype)
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()]
    before = fingerprint([tensor])
    assert fingerprint([tensor.clone()]) == before
    for bit in (0, 3, 8 * tensor.element_size() - 1):
        changed = tensor.clone()
        mask = torch.tensor(1, dtype=torch.int64).bitwise_left_shift(torch.tensor(bit)).to(integers)
        changed.view(-1)[-1:].view(integers).bitwise_xor_(mask)
        assert fingerprint([changed]) != before, (dtype, bit)


def test_part_of_a_buffer_and_a_transposed_tensor_have_the_fingerprint_of_their_copies() -> None:
    whole = torch.randn(33)
    assert fingerprint([whole[1:9]]) == fingerprint([whole[1:9].clone()])
    transposed = torch.randn(4, 6).t()
    assert fingerprint([transposed]) == fingerprint([transposed.contiguous()])


def test_value_that_moves_to_another_parameter_counts() -> None:
    first, second = torch.tensor([1.0]), torch.tensor([2.0])
    assert fingerprint([first, second]) != fingerprint([second, first])


def _replicas(parameters: list[torch.Tensor], **settings: int) -> Replicas:
    return Replicas(parameters, choose("cpu", torch).start_reading, **settings)


def _after(
    replicas: Replicas, step: int, norm: float = 1.0, *, roll_backs: int = 0, last: bool = False
) -> dict[str, Any]:
    replicas.after_step(step, last=last)
    return replicas.read(step, norm, roll_backs=roll_backs)


def test_newest_fingerprints_are_kept_and_a_repeated_step_is_another_one() -> None:
    replicas = _replicas([torch.ones(2)], world_size=2, every=10)
    due = {step for step in range(1, 101) if _after(replicas, step)}
    assert due == set(range(10, 101, 10))
    repeated = _after(replicas, 95, roll_backs=2, last=True)
    kept = [str(step) for step in range(40, 101, 10)]
    assert list(repeated["replicas"]["steps"]) == [*kept, "95 after roll-back 2"]
    assert len(repeated["replicas"]["steps"]) == KEPT


def test_nothing_is_computed_for_one_rank_or_without_steps_between_fingerprints() -> None:
    for world_size, every in ((1, 10), (4, 0)):
        replicas = _replicas([torch.ones(2)], world_size=world_size, every=every)
        assert _after(replicas, 10, last=True) == {}


def test_sharded_parameters_leave_the_gradient_norm_and_all_that_is_not_finite_is_equal() -> None:
    replicas = _replicas([], world_size=2, every=1)
    norms = [
        _after(replicas, step, norm)["replicas"]["steps"][str(step)]
        for step, norm in enumerate((1.0, math.nextafter(1.0, 2.0), math.nan, -math.nan, math.inf))
    ]
    assert all(list(values) == ["gradient norm"] for values in norms)
    assert norms[0] != norms[1]
    assert norms[2] == norms[3] == norms[4]
