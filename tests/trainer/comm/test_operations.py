"""A wrong element of any operation's result is reported, in blocks larger than a tile, too."""

from __future__ import annotations

import pytest
import torch

from trainer.comm.config import ALL_GATHER, ALL_REDUCE, BROADCAST, OPERATIONS, REDUCE_SCATTER, SEND_RECV
from trainer.comm.operations import TILE, Case, Operation, count_of, type_of
from trainer.runtime.accelerators import Cpu

SIZE = 3


def _communicate(op: str, operations: list[Operation]) -> None:
    """The operation among buffers of one process."""
    given = [operation.given.clone() for operation in operations]
    for operation in operations:
        number, count = operation.case.number, operation.case.count
        if op in (ALL_REDUCE, REDUCE_SCATTER):
            total = torch.stack(given).sum(0).to(operation.case.dtype)
            operation.result.copy_(total[number * count : (number + 1) * count] if op == REDUCE_SCATTER else total)
        else:
            source = {
                ALL_GATHER: torch.cat(given),
                BROADCAST: given[0],
                SEND_RECV: given[(number - 1) % SIZE],
            }[op]
            operation.result.copy_(source)


def _operations(op: str, count: int, dtype: str = "fp32") -> list[Operation]:
    cases = [Case(op, type_of(dtype), count, number, SIZE, torch.device("cpu")) for number in range(SIZE)]
    operations = [Operation(case, Cpu(torch)) for case in cases]
    for operation in operations:
        operation.fill()
    return operations


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_right_results_pass_and_one_wrong_element_is_named(op: str, dtype: str) -> None:
    operations = _operations(op, 1000, dtype)
    assert all(operation.wrong() for operation in operations if op != BROADCAST or operation.case.number)
    _communicate(op, operations)
    assert [operation.wrong() for operation in operations] == [""] * SIZE
    operations[1].result[700] += 1
    assert operations[1].wrong().startswith("wrong result: element 700 is ")


@pytest.mark.parametrize("op", OPERATIONS)
def test_last_element_beyond_a_tile_is_compared(op: str) -> None:
    operations = _operations(op, TILE + 5)
    _communicate(op, operations)
    assert [operation.wrong() for operation in operations] == [""] * SIZE
    last = operations[2].result.numel() - 1
    operations[2].result[last] = -1
    assert f"element {last} is -1.0" in operations[2].wrong()


def test_swapped_blocks_are_wrong() -> None:
    [operation, *_] = operations = _operations(ALL_GATHER, 1000)
    _communicate(ALL_GATHER, operations)
    operation.result[:1000], operation.result[1000:2000] = operations[1].given, operations[0].given
    assert operation.wrong()


def test_sum_of_many_ranks_is_exact_in_bf16() -> None:
    case = Case(ALL_REDUCE, torch.bfloat16, 251, 0, 2000, torch.device("cpu"))
    assert float(Operation(case, Cpu(torch))._tile(range(2000)).max()) <= 256  # the largest exact integer


@pytest.mark.parametrize(("op", "count"), [(ALL_REDUCE, 256), (ALL_GATHER, 32), (REDUCE_SCATTER, 32), (SEND_RECV, 256)])
def test_size_is_that_of_the_whole_array(op: str, count: int) -> None:
    assert count_of(op, 1024, 4, 8) == count
    assert count_of(op, 1, 4, 8) == 1
