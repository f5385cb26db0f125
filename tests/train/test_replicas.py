"""A replica that silently differs is named by the fingerprints in the progress of the ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.verdict.replicas import differing_replicas
from tests.train.conftest import StartRanks, codes

pytestmark = pytest.mark.train

POINTS = ("micro_batch=2", "device=cpu", "report=", "ddp_timeout=60", "steps=6", "fingerprint_steps=2")


def test_one_flipped_bit_is_named_at_the_next_fingerprint(start_ranks: StartRanks, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flipped = ("task=tests.grounds.tasks:Flipped", "options.after=2", "options.rank=1")
    env = {"ORCH_RUN_DIR": str(run_dir), "ORCH_NODE": "n0", "ORCH_ATTEMPT": "1"}
    ranks = start_ranks(*flipped, base=POINTS, env=env, world_size=3)
    assert codes(ranks) == [0, 0, 0], ranks[0].err
    files = [run_dir / f"attempt-1/n0/progress/{rank}.json" for rank in range(3)]
    progress = {rank: json.loads(file.read_text("utf-8")) for rank, file in enumerate(files)}
    node = NodeObservation("n0", None, True, True, None, None, progress=progress)  # alive, of the same boot
    finding = differing_replicas([node])
    assert finding is not None
    assert finding.text == "rank 1 differs from the 2 others in the parameters after step 4"
    assert finding.nodes == ("n0",)
    assert progress[0]["replicas"]["steps"]["2"] == progress[1]["replicas"]["steps"]["2"]
    assert progress[0]["replicas"] == progress[2]["replicas"]
