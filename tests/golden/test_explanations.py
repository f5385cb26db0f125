"""
`orch env --explain` for each kind of node: the variables, their reasons and the warnings.

After an intended change: `pytest tests/golden --update`, then read the diff.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orchestrator.usecases.checks.env import Explanation, explain
from tests.grounds import nodes

INVENTORY = """\
accelerator: {accelerator}
devices: 8
network: {network}
env: {{NCCL_DEBUG: WARN}}
nodes: [{{name: "n[0-1]", address: "10.0.0.[1-2]"}}]
"""
ACCELERATORS = {"t20": "gcu", "s60": "gcu", "cpu": "cpu"}


def _explanation(folder: Path, kind: str, network: str = "auto") -> Explanation:
    inventory, facts = folder / "inventory.yaml", folder / "facts.json"
    inventory.write_text(INVENTORY.format(accelerator=ACCELERATORS.get(kind, "cuda"), network=network))
    facts.write_text(json.dumps({"facts": nodes.cluster(kind)}))
    return explain(str(inventory), None, None, facts_file=facts, debug=False)


def _text(explanation: Explanation) -> str:
    """The table without the variables of orch, which are equal for all kinds, and the warnings."""
    columns, rows = explanation.table()
    lines: list[Sequence[str]] = [columns, *(row for row in rows if row[3] not in ("orch", "default"))]
    lines += ([line] for line in explanation.cpu_lines())
    return "".join(f"{'  '.join(line)}\n" for line in [*lines, *(["warning:", text] for text in explanation.warnings)])


@pytest.mark.parametrize("kind", nodes.KINDS)
def test_explanation_equals_its_golden_file(kind: str, golden: Callable[[str, str], None], tmp_path: Path) -> None:
    golden(f"env-{kind}.txt", _text(_explanation(tmp_path, kind)))


def test_preset_pins_the_network_and_fails_where_the_facts_contradict_it(tmp_path: Path) -> None:
    values = {(row[0], row[2]): row[1] for row in _explanation(tmp_path, "mixed", "roce").table()[1]}
    assert values["NCCL_IB_HCA", "n[0-1]"] == "=mlx5_4,mlx5_5,mlx5_6,mlx5_7"
    assert values["NCCL_NET", "n[0-1]"] == "IB"
    warning, _ = _explanation(tmp_path, "no-rdma", "infiniband").warnings
    assert warning.startswith("n[0-1]: network: infiniband, but there is no RDMA device; ")
