"""The simulated nodes of bench/ answer what the present protocol asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.scale import measure
from bench.workspace import Workspace


@pytest.mark.processes
def test_simulated_nodes_can_be_started_supervised_queried_and_stopped(tmp_path: Path) -> None:
    rows, uses, _ = measure(Workspace.at(tmp_path), 4, steady_s=0.1, cut_nodes=0)
    assert [row.phase for row in rows] == ["start", "all nodes supervised", "0.1 s of supervision", "status", "stop"]
    assert uses["supervisor"].threads > 4
