"""A user's own launch script, which starts torchrun on each node, over hosts with addresses of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grounds.hosts import Hosts

pytestmark = pytest.mark.train

SCRIPT = """#!/bin/bash
NNODES=${NNODES:-1}
NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-localhost}
MASTER_PORT=${MASTER_PORT:-29500}
NPROC_PER_NODE=${NPROC_PER_NODE:-8}
"$PYTHON" -m torch.distributed.run --nnodes "$NNODES" --node_rank "$NODE_RANK" --nproc_per_node "$NPROC_PER_NODE" \\
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" train.py "$@"
"""
"""Case S4 of the field guides."""

# Without torch, which would take most of the test's time: torchrun numbers the ranks at a rendezvous of both nodes.
TRAIN = """
import json, os, sys, time
rank, world, node = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "ORCH_NODE"))
with open(f"{os.environ['ORCH_RUN_DIR']}/attempt-1/{node}/progress/{rank}.json", "w") as file:
    json.dump({"step": 7, "phase": "step", "time": time.time()}, file)
print(f"rank {rank} of {world}, {sys.argv[1]}, on {node}")
"""


def test_launch_script_is_one_world_per_node_and_is_stopped_in_each_rank(hosts: Hosts, tmp_path: Path) -> None:
    hosts.inventory(tmp_path, devices=2, env={"PYTHON": str(hosts.python)})
    orch = hosts.orch(tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/train_2node.sh").write_text(SCRIPT)
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("--", "bash", "scripts/train_2node.sh", "--lr=1")
    orch("ssh-launch", "-j", "2x2", "--per-node", *words)
    lines = orch.lines("--stream", "out")
    assert sorted(line["text"] for line in lines) == [f"rank {rank} of 4, --lr=1, on h{rank // 2}" for rank in range(4)]
    assert {line["rank"] for line in lines} == {None}
    nodes = orch.status()["nodes"]
    assert [(list(node["ranks"]), len(node["progress"])) for node in nodes] == [(["0", "1"], 2), (["2", "3"], 2)]
    assert "not divided by rank" in orch("logs", "--rank", "3", code=2).stderr

    done = orch("ssh-launch", "-j", "2x2", *words, code=1)
    assert "each of the 4 ranks has started python -m torch.distributed.run, which starts ranks itself" in done.stderr
    assert "`orch ssh-launch … --per-node -- bash scripts/train_2node.sh --lr=1`" in done.stderr
