"""orch exec and orch ssh: programs on nodes without a run, over real sshd."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.endpoint.access import PlannedSsh
from orchestrator.inventory.model import Node
from orchestrator.transports.ssh.commands import login_argv
from tests.grounds.cli import Orch
from tests.grounds.screen import Screen
from tests.grounds.sshd import Farm


@pytest.fixture
def orch(farm: Farm, tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of two nodes."""
    farm.inventory(tmp_path, nodes=2)
    return Orch(tmp_path)


def test_command_runs_once_per_node_and_the_largest_exit_code_is_returned(orch: Orch) -> None:
    script = (
        'printf "%s of %s\\n" "$0" "$1"; cat >&2; case $SSH_CONNECTION in *" 127.0.0.11 "*) exit 3 ;; esac; printf end'
    )
    done = orch("exec", "--", "sh", "-c", script, "a b", "c$d", code=3)
    assert sorted(done.stdout.splitlines()) == ["[n0] a b of c$d", "[n0] end", "[n1] a b of c$d"]
    assert "n1: exited with code 3" in done.stderr


def test_single_word_is_a_line_for_the_shell_and_unreachable_nodes_are_named(orch: Orch, farm: Farm) -> None:
    with farm.only(1):
        done = orch("exec", "echo one; echo two >&2; exit 5", code=4)
    assert done.stdout == "[n0] one\n[n0] two\n"
    assert "n0: exited with code 5" in done.stderr
    assert "127.0.0.11" in done.stderr
    assert "connection refused" in done.stderr


def test_unknown_node_is_refused_and_no_command_is_a_usage_error(orch: Orch) -> None:
    assert "known nodes: n[0-1]" in orch("exec", "--nodes", "n7", "true", code=2).stderr
    assert "known nodes: n[0-1]" in orch("ssh", "n7", code=2).stderr
    assert "such as n0; orch exec --nodes 'n[0-1]' -- COMMAND" in orch("ssh", "n[0-1]", code=2).stderr
    assert "COMMAND" in orch("exec", code=2).stderr


def test_ssh_opens_a_shell_on_the_node(orch: Orch) -> None:
    with Screen(orch.argv(["ssh", "n1"]), cwd=orch.cwd, env=orch.environ()) as screen:
        screen.type("echo on $((40+2)) of $SSH_TTY; exit 7\n")
        assert screen.ended() == 7, screen.text
    assert "on 42 of /dev/" in screen.text


@pytest.mark.parametrize(
    ("fields", "settings", "argv"),
    [
        ({}, {}, ["-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=10", "--", "n0"]),
        (
            {"address": "10.0.0.5", "user": "train", "port": 2222},
            {"config": "/a b/config", "proxy_jump": "u@gate:23", "host_keys": "accept-new", "connect_timeout_s": 0.4},
            [
                *("-F", "/a b/config", "-J", "u@gate:23", "-p", "2222", "-l", "train"),
                *("-o", "StrictHostKeyChecking=accept-new", "-o", "ConnectTimeout=1", "--", "10.0.0.5"),
            ],
        ),
    ],
)
def test_ssh_has_the_address_user_port_and_host_key_rule_of_the_inventory(
    fields: dict[str, object], settings: dict[str, object], argv: list[str]
) -> None:
    defaults = {"config": None, "proxy_jump": None, "host_keys": "strict", "fanout": 64, "connect_timeout_s": 10.0}
    node = Node.model_validate({"name": "n0", "devices": 1, "accelerator": "cpu", **fields})
    assert login_argv(node, PlannedSsh(**{**defaults, **settings})) == ["ssh", *argv]  # type: ignore[arg-type]
