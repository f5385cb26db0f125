"""The inventory: the meaning of a file, and the messages for its errors: file, line, field and allowed values."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InventoryError, UsageError
from orchestrator.inventory.document import MAX_INVENTORY_BYTES
from orchestrator.inventory.model import Inventory, Node, from_names, inventory_json, load
from orchestrator.inventory.redaction import is_secret
from tests.paths import CASES

ERRORS: list[dict[str, Any]] = json.loads((CASES / "inventory_errors.json").read_text())
VALUES: list[dict[str, str]] = json.loads((CASES / "inventory_env.json").read_text())

FULL = """
name: h800
accelerator: cuda            # cuda | gcu | cpu | auto
network: auto                # auto | infiniband | roce | ethernet
transport: ssh               # ssh | local
defaults: {user: train, port: 22, python: /opt/conda/bin/python3, workdir: /data/orch, env: {A: d, B: d}}
env: {NCCL_IB_TIMEOUT: 22, A: top, B: top, C: top}
ssh: {config: ~/.ssh/config, proxy_jump: bastion, host_keys: accept-new, fanout: 16, connect_timeout_s: 2.5, refused_timeout_s: 600}
slurm: {partition: gpu, account: proj, time: "1-00:00:00", login: login0, options: ["--exclusive"]}
nodes:
  - {name: "h800-[00-02]", address: "10.0.0.[1-3]"}
  - {name: "spare-[0-1]", tags: [spare], port: 2222, devices: 4, env: {A: node}}
"""


def _load(folder: Path, text: str) -> Inventory:
    path = folder / "inventory.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return load(path)


def _refused(folder: Path, text: str) -> InventoryError:
    with pytest.raises(InventoryError) as caught:
        _load(folder, text)
    return caught.value


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: str(case["rule"]))
def test_error_names_line_field_and_allowed_values(case: dict[str, Any], tmp_path: Path) -> None:
    error = _refused(tmp_path, "\n".join(case["text"]))
    assert str(error).splitlines() == [f"{tmp_path}/inventory.yaml:{line}" for line in case["errors"]]
    assert "orch inventory validate" in error.hint
    assert all(line.isprintable() for line in str(error).splitlines())


@pytest.mark.parametrize("case", VALUES, ids=lambda case: ascii(case["written"]))
def test_env_value_arrives_as_written(case: dict[str, str], tmp_path: Path) -> None:
    inventory = _load(tmp_path, f"env:\n  X: {case['written']}\nnodes: [{{name: n0}}]\n")
    assert inventory.env == {"X": case["value"]}


def test_complete_file(tmp_path: Path) -> None:
    inventory = _load(tmp_path, FULL)
    assert inventory.name == "h800"
    assert inventory.ssh.model_dump() == {
        "config": "~/.ssh/config",
        "proxy_jump": "bastion",
        "host_keys": "accept-new",
        "fanout": 16,
        "connect_timeout_s": 2.5,
        "refused_timeout_s": 600,
    }
    assert inventory.slurm.options == ("--exclusive",)
    assert inventory.slurm.time == "1-00:00:00"
    assert inventory.file == str(tmp_path / "inventory.yaml")
    assert inventory.digest == hashlib.sha256(FULL.encode()).hexdigest()
    assert inventory.nodes[1] == Node(
        name="h800-01",
        address="10.0.0.2",
        user="train",
        port=22,
        python="/opt/conda/bin/python3",
        workdir="/data/orch",
        devices=8,
        accelerator="cuda",
        env={"A": "d", "B": "d"},
    )
    spare = inventory.node("spare-1")
    assert (spare.address, spare.port, spare.devices, spare.tags) == ("spare-1", 2222, 4, ("spare",))


def test_env_of_a_node_overrides_defaults_and_the_file(tmp_path: Path) -> None:
    inventory = _load(tmp_path, FULL)
    environment = inventory.environment(inventory.node("spare-0"))
    assert environment == {"NCCL_IB_TIMEOUT": "22", "A": "node", "B": "d", "C": "top"}


@pytest.mark.parametrize(
    ("head", "node", "devices"),
    [
        ("accelerator: cuda", "", 8),
        ("accelerator: gcu", "", 8),
        ("accelerator: cpu", "", 1),
        ("accelerator: auto", "", 1),
        ("accelerator: cuda", ", accelerator: cpu", 1),
        ("devices: 4", ", accelerator: cuda", 4),
        ("devices: 4\ndefaults: {devices: 3}", "", 3),
        ("devices: 4\ndefaults: {devices: 3}", ", devices: 2", 2),
    ],
)
def test_devices_are_those_of_node_else_defaults_else_file_else_accelerator(
    head: str, node: str, devices: int, tmp_path: Path
) -> None:
    assert _load(tmp_path, f"{head}\nnodes: [{{name: n0{node}}}]").nodes[0].devices == devices


def test_defaults_of_a_minimal_file(tmp_path: Path) -> None:
    inventory = _load(tmp_path, "nodes: [{name: n0}]")
    node = inventory.nodes[0]
    assert (inventory.name, inventory.transport, inventory.ssh.host_keys) == ("inventory", "ssh", "strict")
    assert (inventory.ssh.fanout, inventory.ssh.connect_timeout_s, inventory.devices) == (64, 10.0, None)
    assert (node.address, node.user, node.port, node.python, node.workdir) == ("n0", None, None, "python3", "~/.orch")


def test_inventory_without_a_name_is_named_after_its_file(tmp_path: Path) -> None:
    path = tmp_path / "lab 2.yaml"
    path.write_text("nodes: [{name: n0}]")
    assert load(path).name == "lab-2"


def test_local_nodes_use_the_python_that_runs_orch(tmp_path: Path) -> None:
    inventory = _load(tmp_path, "transport: local\nnodes: [{name: n0}, {name: n1, python: python3.8}]")
    assert [node.python for node in inventory.nodes] == [sys.executable, "python3.8"]


def test_addresses_pair_with_names_in_the_order_written(tmp_path: Path) -> None:
    inventory = _load(tmp_path, 'nodes: [{name: "n[3,1]", address: "10.0.0.[7,5]"}]')
    assert {node.name: node.address for node in inventory.nodes} == {"n3": "10.0.0.7", "n1": "10.0.0.5"}


@pytest.mark.parametrize("address", ["10.0.0.1", "fe80::1%ib0", "::1", "gpu-1.lab.example", "my_host"])
def test_address_may_be_a_host_name_or_an_ip_address(address: str, tmp_path: Path) -> None:
    assert _load(tmp_path, f"nodes: [{{name: n0, address: '{address}'}}]").nodes[0].address == address


def test_empty_sections_are_valid(tmp_path: Path) -> None:
    inventory = _load(tmp_path, "env:\nssh:\nslurm:\ndefaults:\nnodes:\n  - name: n0\n    env:\n")
    assert inventory.env == {}
    assert inventory.nodes[0].env == {}


def test_anchors_and_aliases_work(tmp_path: Path) -> None:
    inventory = _load(tmp_path, "nodes:\n  - {name: a, env: &e {X: 1}}\n  - {name: b, env: *e}")
    assert inventory.nodes[1].env == {"X": "1"}


def test_relative_ssh_config_is_resolved_against_the_inventory(tmp_path: Path) -> None:
    inventory = _load(tmp_path, "ssh: {config: ssh_config}\nnodes: [{name: n0}]")
    assert inventory.ssh.config == str(tmp_path / "ssh_config")


def test_bom_and_crlf_are_accepted(tmp_path: Path) -> None:
    assert _load(tmp_path, "\ufeffname: a\r\nnodes:\r\n  - name: n0\r\n").name == "a"


def test_error_for_a_missing_file_names_the_shipped_inventories(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"none\.yaml: No such file or directory") as caught:
        load(tmp_path / "none.yaml")
    assert "inventories/" in caught.value.hint


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="Is a directory"):
        load(tmp_path)


def test_huge_file_is_refused_unread(tmp_path: Path) -> None:
    error = _refused(tmp_path, "nodes: [{name: n0}]\n" + "#" * MAX_INVENTORY_BYTES)
    assert "larger than 1048576 bytes" in str(error)


def test_bytes_that_are_not_utf8_are_reported_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "latin1.yaml"
    path.write_bytes(b"nodes:\n  - {name: n0, user: j\xe9r\xf4me}\n")
    with pytest.raises(InventoryError, match=r"latin1\.yaml:2: byte 0xe9 is not UTF-8"):
        load(path)


def test_alias_bomb_ends_in_an_error(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 10)]
    assert "anchors and aliases" in str(_refused(tmp_path, "\n".join(lines)))


def test_deep_nesting_ends_in_an_error(tmp_path: Path) -> None:
    assert "nested too deep" in str(_refused(tmp_path, "nodes: " + "[" * 500))


def test_long_list_of_problems_is_truncated(tmp_path: Path) -> None:
    error = _refused(tmp_path, "nodes:\n" + "".join(f"  - {{name: -x{index}}}\n" for index in range(80)))
    assert len(str(error).splitlines()) == 51
    assert str(error).endswith("and 30 more")


def test_a_thousand_nodes_load(tmp_path: Path) -> None:
    inventory = _load(tmp_path, 'nodes: [{name: "n[0000-0999]", address: "n[0-999].lab"}]')
    assert inventory.nodes[999].address == "n999.lab"


def test_select_keeps_inventory_order(tmp_path: Path) -> None:
    inventory = _load(tmp_path, FULL)
    assert [node.name for node in inventory.select("spare-0,h800-[01-02]")] == ["h800-01", "h800-02", "spare-0"]


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        ("h800-[02-04],x", "h800-[03-04],x: not in {file}", "known nodes: h800-[00-02],spare-[0-1]"),
        ("spare-2", "spare-2: not in {file}", "did you mean spare-1? known nodes: h800-[00-02],spare-[0-1]"),
        ("spare-1,spare-[0-1]", "--nodes: spare-1 is named twice", "name every node once"),
        ("n[0-", "--nodes: n[0- is not a host list; a [ is not closed", "write a list such as n[0-3],x"),
        ("", "--nodes: '' is not a host list; a name is empty", "write a list such as n[0-3],x"),
    ],
)
def test_select_refuses(names: str, message: str, hint: str, tmp_path: Path) -> None:
    inventory = _load(tmp_path, FULL)
    with pytest.raises(UsageError) as caught:
        inventory.select(names)
    assert str(caught.value) == message.format(file=inventory.file)
    assert caught.value.hint.endswith(hint)


def test_unknown_node_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^n9: not in "):
        _load(tmp_path, FULL).node("n9")


def test_host_names_alone_make_an_inventory() -> None:
    inventory = from_names(["n[0-1]", "x"])
    assert (inventory.name, inventory.transport, inventory.accelerator) == ("adhoc", "ssh", "auto")
    assert [(node.name, node.address, node.devices) for node in inventory.nodes] == [
        ("n0", "n0", 1),
        ("n1", "n1", 1),
        ("x", "x", 1),
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "no node is named"),
        (["a", "a"], "--nodes: a is named twice"),
        (["a;b"], "--nodes: a;b is not a host list"),
        (["-oProxyCommand=x"], "--nodes: -oProxyCommand=x is not a host list"),
        (["-x"], "--nodes: -x is not a name"),
    ],
)
def test_host_names_alone_are_checked(names: list[str], message: str) -> None:
    with pytest.raises(UsageError, match="^" + message) as caught:
        from_names(names)
    assert caught.value.hint


def test_description_is_json_without_secrets(tmp_path: Path) -> None:
    text = "env: {HF_TOKEN: hunter2, A: b}\nnodes: [{name: n0, env: {wandb_api_key: hunter2}}]"
    described = json.dumps(inventory_json(_load(tmp_path, text)))
    assert "hunter2" not in described
    assert json.loads(described)["env"] == {"HF_TOKEN": "<redacted>", "A": "b"}
    assert json.loads(described)["nodes"][0]["env"] == {"wandb_api_key": "<redacted>"}


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("WANDB_API_KEY", True),
        ("APIKEY", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("db_password", True),
        ("MYSQL_PASSWD", True),
        ("GOOGLE_CREDENTIALS", True),
        ("SSH_PRIVATE_KEY", True),
        ("COMET_KEY", True),
        ("OPENAI_API_KEYS", True),
        ("GITHUB_PAT", True),
        ("MYSQL_PWD", True),
        ("SSHPASS", True),
        ("SMTP_PASS", True),
        ("REDISCLI_AUTH", True),
        ("SENTRY_DSN", True),
        ("DATABASE_URL", True),
        ("AZURE_STORAGE_CONNECTION_STRING", True),
        ("SLACK_WEBHOOK_URL", True),
        ("AWS_ACCESS_KEY_ID", True),
        ("AWS_SESSION_TOKEN", True),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", True),
        ("AWS_REGION", False),
        ("AWS_DEFAULT_REGION", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("MAX_TOKENS", False),
        ("TOKENS_PER_BATCH", False),
        ("NCCL_IB_HCA", False),
        ("NCCL_IB_PKEY", False),
        ("NCCL_SOCKET_KEY", False),
        ("UCX_IB_PKEY", False),
        ("SSH_AUTH_SOCK", False),
        ("OLDPWD", False),
        ("PASSES", False),
        ("KEYBOARD", False),
    ],
)
def test_secrets_are_recognised_by_name(name: str, *, secret: bool) -> None:
    assert is_secret(name) is secret
