"""The variables of --debug."""

from __future__ import annotations

import pytest

from orchestrator.portable.environment.debugging import debugging_variables
from orchestrator.portable.environment.variable import Origin


@pytest.mark.parametrize(
    ("accelerator", "names"),
    [
        ("cpu", {"TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL"}),
        (
            "cuda",
            {
                "TORCH_DISTRIBUTED_DEBUG",
                "TORCH_CPP_LOG_LEVEL",
                "NCCL_DEBUG",
                "NCCL_DEBUG_SUBSYS",
                "TORCH_NCCL_TRACE_BUFFER_SIZE",
                "TORCH_FR_BUFFER_SIZE",
            },
        ),
        ("gcu", {"TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL", "ECCL_DEBUG", "ENFLAME_LOG_DEBUG_MOD"}),
    ],
)
def test_accelerator_decides_the_variables(accelerator: str, names: set[str]) -> None:
    assert {variable.name for variable in debugging_variables(accelerator, {})} == names
    assert names <= {variable.name for variable in debugging_variables("auto", {})}


def test_users_value_wins_unless_it_logs_less() -> None:
    env = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL", "TORCH_DISTRIBUTED_DEBUG": "INFO"}
    found = {variable.name: variable for variable in debugging_variables("cuda", env)}
    assert (found["NCCL_DEBUG"].value, found["NCCL_DEBUG"].replaces) == ("INFO", "WARN (inventory)")
    assert (found["NCCL_DEBUG_SUBSYS"].value, found["NCCL_DEBUG_SUBSYS"].origin) == ("ALL", Origin.INVENTORY)
    assert "TORCH_DISTRIBUTED_DEBUG" not in found


def test_users_size_of_the_flight_recorder_wins_by_its_older_name() -> None:
    found = {
        variable.name: variable.value
        for variable in debugging_variables("cuda", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "500"})
    }
    assert [value for name, value in found.items() if name.endswith("BUFFER_SIZE")] == ["500"]
