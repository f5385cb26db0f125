"""docs/tutorial.md, block by block: on this machine, over a real sshd, through a real Slurm."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, bare_environment, blocks, run, write_ssh_config
from tests.grounds.slurm import Cluster
from tests.grounds.sshd import Farm

TENS_OF_STEPS = re.compile(r"(steps=\d)0\b")
"""Steps of the trainer and between its checkpoints; the test makes a tenth of them, as each takes 0.15 s of CPU time per rank."""


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.train
@pytest.mark.timeout(600)
def test_tutorial_runs_as_written(tmp_path: Path, farm: Farm, cluster: Cluster) -> None:
    write_ssh_config(tmp_path, farm)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "orch").symlink_to(Path(sys.executable).with_name("orch"))

    shown = run(
        TENS_OF_STEPS.sub(r"\1", "\n".join(blocks(ROOT / "docs" / "tutorial.md"))),
        tmp_path,
        bare_environment(tmp_path, commands, SLURM_CONF=str(cluster.conf)),
    )

    assert shown.count("hello from rank 3 of 4") == 2  # over ssh and through Slurm
    assert "rank 1 fails once, on purpose" in shown
    assert "[n1:1] rank 1 starts at step 20" in shown
    assert "resuming from" in shown
