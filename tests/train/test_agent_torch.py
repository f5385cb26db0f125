"""The agent instead of torchrun: real torch on two nodes of two ranks, compared with torchrun itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.node.agent.test_agent_ground import Ground

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.train

ALL_REDUCE = """
import os, sys
import torch, torch.distributed as dist
assert dist.is_torchelastic_launched()
dist.init_process_group("gloo", init_method="env://")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("total", total.item(), "of", dist.get_world_size())
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo may abort in a normal exit
"""
RECORDED = """
import os, time
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("bad thing")
    time.sleep(300)
main()
"""
CLOSES_FIRST = """
import logging, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
unused = dist.new_group([0, 1], backend="gloo")
try:
    dist.all_reduce(torch.ones(1))
    if os.environ["RANK"] == "1":
        raise ValueError("bad sample 17")
    dist.all_reduce(torch.ones(1))
except ValueError:
    logging.exception("the training failed")
    dist.destroy_process_group()
    time.sleep(300)  # as what is uploaded at the end
    sys.exit(1)
"""
PRINT_NAMES = "import json, os; print(json.dumps(sorted(os.environ)))"
# A minimal environment: all other variables of a rank come from its launcher.
BARE = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(tmp_path, sys.executable)
    yield ground
    ground.close()


@pytest.mark.extended
@pytest.mark.slow
def test_two_nodes_of_two_ranks_join_over_the_reserved_port_and_reduce(ground: Ground) -> None:
    ground.job("-c", ALL_REDUCE, program={"python": True}, ranks=[2, 2])
    head = ground.start(0)
    assert ground.run(1, rendezvous=ground.record()["rendezvous"], timeout_s=90) == (0, ""), ground.out(2, 1)
    assert head.wait(timeout=30) == 0
    for rank in range(4):
        assert ground.out(rank, rank // 2) == "total 10.0 of 4\n"


@pytest.mark.extended
@pytest.mark.slow
def test_exception_under_record_is_the_error_of_the_event(ground: Ground) -> None:
    ground.job("-c", RECORDED, program={"python": True}, ranks=[2])
    assert ground.run(timeout_s=90)[0] == 1
    failure = {"rank": 1, "code": 1, "signal": None, "error": "ValueError: bad thing"}
    assert ground.finished()["exit"].items() >= failure.items()


@pytest.mark.slow
def test_rank_that_raised_is_named_although_its_peer_ends_first(ground: Ground) -> None:
    ground.job("-c", CLOSES_FIRST, program={"python": True}, ranks=[2])
    assert ground.run(timeout_s=90)[0] == 1
    assert ground.finished()["exit"].items() >= {"rank": 1, "exception": "ValueError: bad sample 17"}.items()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.extended), 2])
def test_ranks_get_exactly_the_variables_of_torchrun_and_of_orch(ground: Ground, tmp_path: Path, ranks: int) -> None:
    script = tmp_path / "names.py"
    script.write_text(PRINT_NAMES, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks)]
    torchrun += ["--standalone", "--redirects", "3", "--log-dir", str(tmp_path / "log"), str(script)]
    subprocess.run(torchrun, env=BARE, check=True, capture_output=True, timeout=90)
    (log,) = (tmp_path / "log").glob("*/attempt_0/0/stdout.log")
    of_torchrun = set(json.loads(log.read_text(encoding="utf-8")))

    ground.job(str(script), program={"python": True}, ranks=[ranks])
    agent = subprocess.run(ground.argv(), env=BARE, check=True, capture_output=True, timeout=30)
    assert agent.stderr == b""
    of_agent = set(json.loads(ground.out()))
    flight_recorder = {"TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
    more = {"NNODES", "NODE_RANK", "NPROC_PER_NODE", "PYTHONPATH", "PYTHONUNBUFFERED"}
    assert {name for name in of_agent if not name.startswith("ORCH_")} == of_torchrun | flight_recorder | more
    assert {name for name in of_agent if name.startswith("ORCH_")} == {
        "ORCH_RUN_ID",
        "ORCH_RUN_DIR",
        "ORCH_NODE",
        "ORCH_NODE_RANK",
        "ORCH_ATTEMPT",
        "ORCH_MEMORY_DIR",
    }
