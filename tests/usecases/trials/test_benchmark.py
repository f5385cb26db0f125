"""The benchmark of communication names a slow node and a slow link."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.usecases.trials.benchmark import check_plot
from orchestrator.usecases.trials.benchmark_plot import matrix, plot
from tests.grounds import components
from tests.grounds.hosts import open_hosts

RESULTS: dict[str, Any] = {
    "ranks": [{"rank": rank, "node": f"n{rank}", "local_rank": 0, "error": ""} for rank in range(3)],
    "results": [
        {
            "groups": "pairs",
            "op": "send-recv",
            "dtype": "fp32",
            "ranks": ranks,
            "bytes": size,
            "error": "",
            "busbw": size / 1e3,
        }
        for size in (1024, 4096)
        for ranks in ([0, 1], [0, 2])
    ],
}


@pytest.mark.extended
@pytest.mark.hosts
@pytest.mark.processes
@pytest.mark.train
def test_slow_node_and_slow_link_are_named(tmp_path: Path) -> None:
    """h3 is slow with all other hosts, and h0 with h1 only; other pairs are far faster, even on a busy machine."""
    with open_hosts(4) as hosts:
        hosts.inventory(tmp_path)
        hosts[3].limit_rate(40)
        hosts[0].limit_rate(40, to=hosts[1])
        done = hosts.orch(tmp_path)("check", "--level", "full", "--skip", "device", "--json", code=3)
    checked = json.loads(done.stdout)
    results = checked["measurements"]["results"]
    assert {tuple(result["ranks"]) for result in results} == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
    assert not any(result["error"] for result in results)
    found = [finding for finding in checked["findings"] if finding["check"] == "bandwidth"]
    assert [finding["nodes"] for finding in found][:2] == [["h3"], ["h0", "h1"]], found
    assert {finding["severity"] for finding in found} == {"FAIL"}


def test_matrix_has_the_bandwidth_of_the_largest_size_in_both_directions() -> None:
    ranks, rows = matrix(RESULTS["results"])
    assert ranks == [0, 1, 2]
    assert (rows[0][1], rows[1][0], rows[2][0]) == (4.096, 4.096, 4.096)
    assert math.isnan(rows[1][2])


def test_heat_map_and_curves_are_png_files(tmp_path: Path) -> None:
    components.module("matplotlib")
    for groups in ("pairs", "all"):
        results = [{**result, "groups": groups} for result in RESULTS["results"]]
        plot({**RESULTS, "results": results}, tmp_path / "a.png")
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
        assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_picture_in_a_missing_folder_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    components.module("matplotlib")
    with pytest.raises(UsageError, match="there is no folder"):
        check_plot(tmp_path / "absent" / "a.png")
