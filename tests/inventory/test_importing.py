"""Imported text loads as an inventory, in the order of the source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.inventory.importing import import_hostfile, import_scontrol, import_ssh_config
from orchestrator.inventory.model import Inventory, load
from tests.paths import CASES

SCONTROL: dict[str, list[str]] = json.loads((CASES / "inventory_scontrol.json").read_text())


def _loaded(folder: Path, text: str) -> Inventory:
    path = folder / "imported.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def test_hostfile_of_every_dialect(tmp_path: Path) -> None:
    text = "# MPI\nn0 slots=8\nn1 slots=8 max_slots=16  # spare\n\nb:4\nfe80::1\np\np\n10.0.0.1\nn1 slots=2\n"
    inventory = _loaded(tmp_path, import_hostfile(text))
    assert [(node.name, node.address, node.devices) for node in inventory.nodes] == [
        ("n0", "n0", 8),
        ("n1", "n1", 10),
        ("b", "b", 4),
        ("fe80--1", "fe80::1", 1),
        ("p", "p", 2),
        ("10.0.0.1", "10.0.0.1", 1),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "n0 slots = 8\nn1 slots =8\n",
        "n0:8,n1:8\n",
        "n[0-1] slots=8\n",
        "n0,n1 slots=8 // both\n",
        "n0 slots=8\r\nn1 slots=8\r\n",
    ],
)
def test_hostfile_may_have_blanks_lists_and_comments_of_open_mpi(text: str, tmp_path: Path) -> None:
    inventory = _loaded(tmp_path, import_hostfile(text))
    assert [(node.name, node.devices) for node in inventory.nodes] == [("n0", 8), ("n1", 8)]


def test_imported_names_are_folded_if_that_keeps_their_order(tmp_path: Path) -> None:
    text = import_hostfile("\n".join(f"h-{index:02} slots=8" for index in range(16)))
    assert '  - {name: "h-[00-15]", devices: 8}' in text.splitlines()
    backwards = import_hostfile("n2\nn1\n")
    assert [node.name for node in _loaded(tmp_path, backwards).nodes] == ["n2", "n1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n0 slots=x", "hostfile:1: 'n0 slots=x' is not a host"),
        ("n0\nn1 gpus=8", "hostfile:2: 'n1 gpus=8' is not a host"),
        ("n0:8 slots=8", "hostfile:1: 'n0:8 slots=8' is not a host"),
        ("n0 slots=0", "hostfile:1: 'n0 slots=0' is not a host"),
        ("n0\n-x", "hostfile:2: '-x' is not a host name or address"),
        ("a@n0 slots=8", "hostfile:1: 'a@n0' is not a host name or address"),
        ("n[0- slots=8", "hostfile:1: 'n[0-' is not a host name or address"),
        ("[gpu]\nn0 ansible_host=10.0.0.1", "hostfile:1: '[gpu]' is not a host name or address"),
        ("NodeName=n0 CPUs=4", "hostfile:1: 'NodeName=n0 CPUs=4' is not a host"),
        ("", "no host found in the hostfile"),
    ],
)
def test_invalid_hostfile_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        import_hostfile(text)
    assert str(caught.value) == message
    assert caught.value.hint


def test_ssh_config_gives_its_hosts_without_wildcards(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text('Include more/*\nHost *\n User x\nHost n0 n1 !n2 gpu-*\n  Port 3\nhost=jump\nHost "q" a@b # c\n')
    text = import_ssh_config(config)
    inventory = _loaded(tmp_path, text)
    assert [node.name for node in inventory.nodes] == ["n0", "n1", "jump", "q"]
    assert inventory.ssh.config == str(config)
    assert {node.port for node in inventory.nodes} == {None}
    assert f"# {config}:1: not followed: Include more/*" in text
    assert f"# {config}:7: left out, not a host name: a@b" in text


def test_import_leaves_out_hosts_that_an_inventory_would_refuse(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host n0 n0:22 fe80::1%eth0 a%b\n")
    text = import_ssh_config(config)
    assert [line.rpartition(" ")[2] for line in text.splitlines() if "left out" in line] == ["n0:22", "a%b"]
    (tmp_path / "inventory.yaml").write_text(text)
    assert [node.address for node in load(tmp_path / "inventory.yaml").nodes] == ["n0", "fe80::1%eth0"]


def test_ssh_config_may_have_tabs_and_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh" / "more").mkdir(parents=True)
    (tmp_path / ".ssh" / "more" / "a").write_text("Host n0\nInclude more/a more/b\n")
    (tmp_path / ".ssh" / "more" / "b").write_text("Host\tn1\n\tUser x\n")
    config = tmp_path / "config"
    config.write_text("Include more/*\nHost\tn2\n\tPort 22\nHost *\n")
    inventory = _loaded(tmp_path, import_ssh_config(config))
    assert [node.name for node in inventory.nodes] == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Host *\n User x\n", "no host found"),
        ("\ufeffHost n0\n", ":1: begins with a byte order mark"),
        ("", "no host found"),
    ],
)
def test_ssh_config_without_a_host_names_its_file(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message) as caught:
        import_ssh_config(tmp_path / "config")
    assert str(caught.value).startswith(str(tmp_path / "config"))
    assert caught.value.hint


def test_missing_ssh_config_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        import_ssh_config(tmp_path / "none")


@pytest.mark.parametrize("form", ["show_node", "show_node_o"])
def test_scontrol_of_slurm_22_05(form: str, tmp_path: Path) -> None:
    text = import_scontrol("\n".join(SCONTROL[form]))
    inventory = _loaded(tmp_path, text)
    assert [(node.name, node.address, node.devices, node.accelerator) for node in inventory.nodes] == [
        ("h800-00", "127.0.0.1", 8, "cuda"),
        ("h800-01", "127.0.0.2", 8, "cuda"),
        ("t20-0", "10.9.9.9", 1, "auto"),
        ("x0", "10.9.9.8", 4, "cuda"),
    ]
    assert "# Not usable when this was written: x0 (DOWN+NOT_RESPONDING)" in text
    assert "there are gpu, t20" in text
    assert "# slurm: {partition: …, gres: gpu}" in text


@pytest.mark.parametrize(
    ("gres", "devices", "accelerator"),
    [
        ("gpu:h800:8(S:0-1)", 8, "cuda"),
        ("gpu:8", 8, "cuda"),
        ("gpu:a100:4(S:0,2),gpu:v100:2(S:1),nic:1", 6, "cuda"),
        ("nic:mlx:8,gpu:h800:4", 4, "cuda"),
        ("gcu:8", 8, "gcu"),
        ("gpu:t20:8", 8, "gcu"),
        ("nic:2", 1, "auto"),
        ("(null)", 1, "auto"),
        ("", 1, "auto"),
    ],
)
def test_cards_of_a_gres(gres: str, devices: int, accelerator: str, tmp_path: Path) -> None:
    record = (
        f"NodeName=n0 Arch=x86_64\n   Gres={gres}\n   NodeAddr=n0 Version=22.05.8\n   State=IDLE\n   Partitions=a,b\n"
    )
    inventory = _loaded(tmp_path, import_scontrol(record))
    assert (inventory.nodes[0].devices, inventory.nodes[0].accelerator) == (devices, accelerator)
    assert inventory.slurm.partition == "a"


def test_reason_of_a_slurm_node_is_not_read_as_fields(tmp_path: Path) -> None:
    record = "NodeName=n0\n   State=DOWN\n   Reason=NodeAddr=evil Gres=gpu:99 [root@2026-11-20T23:21:27]\n"
    node = _loaded(tmp_path, import_scontrol(record)).nodes[0]
    assert (node.address, node.devices) == ("n0", 1)


def test_indented_output_of_scontrol_is_read(tmp_path: Path) -> None:
    inventory = _loaded(
        tmp_path, import_scontrol("  NodeName=n0 Arch=x86_64\n     Gres=gpu:8\n     NodeAddr=10.0.0.1\n")
    )
    assert [(node.address, node.devices) for node in inventory.nodes] == [("10.0.0.1", 8)]


@pytest.mark.parametrize("name", ["DEFAULT", "n[0-3]", "n0,n1"])
def test_line_of_slurm_conf_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"slurm\.conf:2: NodeName=.* is a line of slurm\.conf") as caught:
        import_scontrol(f"ClusterName=c\nNodeName={name} Gres=gpu:8\n", "slurm.conf")
    assert "scontrol show node" in caught.value.hint


def test_scontrol_without_a_node() -> None:
    with pytest.raises(UsageError, match="no host found"):
        import_scontrol("No nodes in the system\n")
