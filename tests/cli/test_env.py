"""`orch env`: its output and its refusals; tests/security compares the output with the environment of real ranks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.usecases.checks.env import explain
from tests.grounds import nodes
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
    MASTER_ADDR MASTER_PORT ORCH_HOSTFILE ORCH_MEMORY_DIR ORCH_NODE_ADDRESSES ORCH_RUN_DIR ORCH_RUN_ID TORCHELASTIC_ERROR_FILE TORCHELASTIC_RUN_ID TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE
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


CLUSTER = """\
accelerator: cuda
devices: 8
env: {NCCL_DEBUG: WARN, HF_TOKEN: hunter2, QUOTE: "it's"}
nodes: [{name: "n[0-1]", address: "10.0.0.[1-2]"}]
"""


@pytest.fixture
def facts_file(tmp_path: Path) -> str:
    """The facts of two nodes that differ in one port, whose inventory replaces the other one."""
    (tmp_path / "inventory.yaml").write_text(CLUSTER)
    (tmp_path / "facts.json").write_text(json.dumps({"facts": nodes.cluster("port-down")}))
    return "facts.json"


def test_explanation_as_json_holds_the_facts_that_it_can_be_made_from(
    orch: Orch, facts_file: str, tmp_path: Path
) -> None:
    first = json.loads(orch("env", "--explain", "--facts", facts_file, "--json").stdout)
    hcas = {row["nodes"][0]: row for row in first["variables"] if row["name"] == "NCCL_IB_HCA"}
    assert (hcas["n0"]["value"].count("mlx5"), hcas["n1"]["value"].count("mlx5")) == (7, 8)
    assert (hcas["n0"]["origin"], hcas["n0"]["nodes"]) == ("discovered", ["n0"])
    assert "mlx5_3: port 1 is DOWN" in hcas["n0"]["reason"]
    assert [finding["check"] for finding in first["findings"]] == ["rdma-ports"]
    (tmp_path / "saved.json").write_text(json.dumps(first))
    assert json.loads(orch("env", "--explain", "--facts", "saved.json", "--json").stdout) == first


def test_variable_of_the_command_line_is_explained_with_the_value_that_it_replaces(
    facts_file: str, tmp_path: Path
) -> None:
    given = ["NCCL_DEBUG=INFO", "HF_TOKEN=tr0ub4dor", "NCCL_IB_HCA=mlx5_9"]
    explanation = explain(
        str(tmp_path / "inventory.yaml"), None, "n0", facts_file=tmp_path / facts_file, debug=False, given=given
    )
    found = {variable.name: variable for variable in explanation.variables["n0"]}
    assert [
        (found[name].value, found[name].origin.value, found[name].replaces)
        for name in ("NCCL_DEBUG", "HF_TOKEN", "NCCL_IB_HCA")
    ] == [
        ("INFO", "flag", "WARN (inventory)"),
        ("<redacted>", "flag", "<redacted> (inventory)"),
        ("mlx5_9", "flag", ""),
    ]
    assert len(found) == len(explanation.variables["n0"])


SCRIPT = """\
#!/bin/bash
export NCCL_DEBUG=${NCCL_DEBUG:-INFO}
export NCCL_SOCKET_IFNAME=ib0
export NCCL_IB_TIMEOUT=22 WANDB_MODE=offline
if [ "$1" ]; then export NCCL_IB_HCA=mlx5_0; fi
unset GLOO_SOCKET_IFNAME
source env.sh
HF_TOKEN=secret python train.py
"""


def test_exports_of_a_launch_script_that_replace_variables_are_named(facts_file: str, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT)
    explanation = explain(
        str(tmp_path / "inventory.yaml"),
        None,
        None,
        facts_file=tmp_path / facts_file,
        debug=False,
        script=tmp_path / "train.sh",
    )
    found = [(entry.line, entry.name, entry.value, entry.is_certain, entry.nodes) for entry in explanation.overrides]
    assert found == [
        (3, "NCCL_SOCKET_IFNAME", "ib0", True, ("n0", "n1")),
        (4, "NCCL_IB_TIMEOUT", "22", True, ("n0", "n1")),
        (5, "NCCL_IB_HCA", "mlx5_0", False, ("n0",)),
        (6, "GLOO_SOCKET_IFNAME", None, True, ("n0", "n1")),
        (8, "HF_TOKEN", "<redacted>", True, ("n0", "n1")),
        (5, "NCCL_IB_HCA", "mlx5_0", False, ("n1",)),
    ]
    words = [text.rpartition("/")[2] for text in explanation.warnings if "train.sh" in text]
    assert any(text.startswith("train.sh:4 sets NCCL_IB_TIMEOUT=22, which orch does not set") for text in words)
    assert any(text.startswith("train.sh:5 may set NCCL_IB_HCA=mlx5_0, which replaces =mlx5_0") for text in words)
    assert any(text.startswith("train.sh:6 unsets GLOO_SOCKET_IFNAME") for text in words)
    assert "train.sh:7 sources env.sh, which was not read" in words
    assert "tr0ub4dor" not in str(explanation.overrides)


def test_script_without_explain_is_refused(orch: Orch, facts_file: str) -> None:
    assert facts_file
    assert "next: add --explain" in orch("env", "--script", "train.sh", code=2).stderr


def test_export_can_be_sourced_and_holds_no_secret(orch: Orch, facts_file: str) -> None:
    lines = orch("env", "--export", "--debug", "--facts", facts_file, "--node", "n1").stdout
    assert "hunter2" not in lines
    assert "# HF_TOKEN is a secret" in lines
    script = f'{lines}\nprintf "%s " "$QUOTE" "$NCCL_DEBUG" "$GLOO_SOCKET_IFNAME" "${{RANK-none}}"'
    sourced = subprocess.run(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True, check=True, env={})
    assert sourced.stdout == "it's INFO eno1 none "


def test_facts_without_explain_are_refused(orch: Orch, facts_file: str) -> None:
    assert "next: add --explain" in orch("env", "--facts", facts_file, code=2).stderr


def test_nodes_that_differ_cannot_be_exported_as_one(facts_file: str, tmp_path: Path) -> None:
    explanation = explain(str(tmp_path / "inventory.yaml"), None, None, facts_file=tmp_path / facts_file, debug=False)
    with pytest.raises(UsageError, match="n0 and n1 differ in NCCL_IB_HCA"):
        explanation.exports()


@pytest.mark.parametrize(
    ("name", "message"), [("none.json", "No such file"), ("inventory.yaml", "holds no facts of nodes")]
)
@pytest.mark.usefixtures("facts_file")
def test_file_without_facts_is_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        explain(str(tmp_path / "inventory.yaml"), None, None, facts_file=tmp_path / name, debug=False)
