"""`orch env`: its output and its refusals; tests/security compares the output with the environment of real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.grounds.cli import Orch

INVENTORY = """\
devices: 2
setup: [module load cuda/12.8]
env: {NCCL_IB_TIMEOUT: 22, HF_TOKEN: hunter2, LINES_AND_TABS: "a\\tb\\n"}
nodes: [{name: n0}, {name: n1, env: {OMP_NUM_THREADS: 4}}, {name: s0, tags: [spare], python: /opt/env/bin/python3}]
"""


@pytest.fixture
def orch(tmp_path: Path) -> Orch:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    return Orch(tmp_path)


def test_text_names_the_origin_of_each_variable_and_hides_secrets(orch: Orch) -> None:
    assert (
        orch("env", "--node", "n1").stdout
        == """\
n1:
  from the inventory
    HF_TOKEN=<redacted>
    LINES_AND_TABS="a\\tb\\n"
    NCCL_IB_TIMEOUT=22
    OMP_NUM_THREADS=4
  from orch
    GROUP_RANK=1
    GROUP_WORLD_SIZE=2
    LOCAL_WORLD_SIZE=2
    NNODES=2
    NODE_RANK=1
    NPROC_PER_NODE=2
    ORCH_ATTEMPT=1
    ORCH_NODE=n1
    ORCH_NODE_RANK=1
    ROLE_NAME=default
    ROLE_WORLD_SIZE=4
    TORCHELASTIC_MAX_RESTARTS=0
    TORCHELASTIC_RESTART_COUNT=0
    TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT
    TORCHELASTIC_USE_AGENT_STORE=False
    WORLD_SIZE=4
  from orch, for each rank
    RANK=2 ROLE_RANK=2 LOCAL_RANK=0
    RANK=3 ROLE_RANK=3 LOCAL_RANK=1
  from orch, unless the node has it
    PYTHONUNBUFFERED=1
    TORCH_NCCL_ASYNC_ERROR_HANDLING=3
    TORCH_NCCL_DUMP_ON_TIMEOUT=1
  from orch, known at the launch
    MASTER_ADDR MASTER_PORT ORCH_RUN_DIR ORCH_RUN_ID TORCHELASTIC_ERROR_FILE TORCHELASTIC_RUN_ID TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE
  from the setup lines, which run first
    module load cuda/12.8
"""
    )


def test_json_is_one_object_per_node_of_the_launch(orch: Orch) -> None:
    nodes = json.loads(orch("env", "--json").stdout)
    assert [node["node"] for node in nodes] == ["n0", "n1"]
    assert nodes[0]["env"] == {"HF_TOKEN": "<redacted>", "LINES_AND_TABS": "a\tb\n", "NCCL_IB_TIMEOUT": "22"}
    nccl = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    assert nodes[0]["unless_set"] == {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **nccl}
    assert nodes[1]["ranks"] == [
        {"RANK": "2", "ROLE_RANK": "2", "LOCAL_RANK": "0"},
        {"RANK": "3", "ROLE_RANK": "3", "LOCAL_RANK": "1"},
    ]


def test_nodes_and_their_order_decide_the_ranks(orch: Orch) -> None:
    (only,) = json.loads(orch("env", "--nodes", "n1,s0", "--node", "s0", "--json").stdout)
    assert (only["node"], only["orch"]["WORLD_SIZE"], only["ranks"][0]["RANK"]) == ("s0", "4", "2")
    assert "PATH" in only["at_launch"]  # /opt/env/bin, then the node's PATH


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--node", "s0"), "s0 takes no part in this launch"),
        (("--node", "n9"), "n9: not in"),
        (("--nodes", "n9"), "n9: not in"),
        (("-i", "none.yaml"), "none.yaml: No such file"),
    ],
)
def test_unknown_node_is_refused(words: tuple[str, str], message: str, orch: Orch) -> None:
    done = orch("env", *words, code=2)
    assert message in done.stderr
    assert "next: " in done.stderr


def test_secrets_in_the_inventory_itself_are_warned_about(orch: Orch) -> None:
    assert "holds secrets, so it is not sent to the nodes" in orch("env").stderr
