"""Every variable of a launch with its origin and reason, equal nodes as one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.environment.variable import Origin, Variable

AT_LAUNCH = "(at the launch)"
# Reasons for the variables that orch itself sets; by name, else by prefix.
_REASONS = {
    "MASTER_ADDR": "the address of the head for the rendezvous",
    "MASTER_PORT": "a port that is free on the head",
    "PYTHONUNBUFFERED": "lines appear in the log at once",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "torch's own default; 1, which torchrun sets, may hang in the abort",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "a collective that times out leaves a flight record",
    "TORCH_FR_DUMP_TEMP_FILE": "the flight record in the run's folder, from torch 2.9 on",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "the flight record in the run's folder, up to torch 2.8",
    "OMP_NUM_THREADS": "as torchrun sets it for more than one rank on a node",
    "PATH": "begins with the folder of the inventory's python",
    "TORCHELASTIC_USE_AGENT_STORE": "rank 0 hosts the store, as there is no torchrun",
}
_REASONS_BY_PREFIX = {"ORCH_": "this run and node", "TORCHELASTIC_": "as torchrun sets it"}
_NUMBERS = "numbers the ranks and nodes, as torchrun does"


@dataclass(frozen=True)
class Row:
    """A variable on the nodes where value, origin and reason are equal."""

    variable: Variable
    nodes: Sequence[str]


def orch_variable(name: str, value: str | None, origin: Origin = Origin.ORCH) -> Variable:
    """A variable that orch sets; `value` None is known at the launch."""
    by_prefix = (reason for prefix, reason in _REASONS_BY_PREFIX.items() if name.startswith(prefix))
    reason = _REASONS.get(name) or next(by_prefix, _NUMBERS)
    return Variable(name, AT_LAUNCH if value is None else value, origin, reason)


def folded(variables: Mapping[str, Sequence[Variable]]) -> list[Row]:
    """
    The variables of all nodes, sorted by origin and name; equal ones of several nodes as one row.

    Variables that orch gives another value on each node are one row, too, with the first and the last value.
    """
    nodes_of: dict[Variable, list[str]] = {}
    for node, of_node in variables.items():
        for variable in of_node:
            nodes_of.setdefault(variable, []).append(node)
    numbered: dict[str, list[Variable]] = {}
    for variable, nodes in nodes_of.items():
        if variable.origin is Origin.ORCH and len(nodes) == 1 and len(variables) > 1:
            numbered.setdefault(variable.name, []).append(variable)
    rows = [Row(variable, nodes) for variable, nodes in nodes_of.items() if variable.name not in numbered]
    for name, values in numbered.items():
        text = f"{values[0].value} … {values[-1].value}" if len(values) > 1 else values[0].value
        merged = Variable(name, text, Origin.ORCH, values[0].reason)
        rows.append(Row(merged, [node for variable in values for node in nodes_of[variable]]))
    order = list(Origin)
    return sorted(rows, key=lambda row: (order.index(row.variable.origin), row.variable.name))
