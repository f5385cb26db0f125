"""Many nodes, simulated by bench/: they answer what the present protocol requests, and silent ones delay nothing for long."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from bench.programs.simulated_nodes import Simulation
from bench.scale import NODES_MISSING, measure, simulated_nodes
from bench.workspace import Workspace
from orchestrator.errors import NodeError
from orchestrator.node.protocol import operations
from orchestrator.portable.names.hostlist import expand
from tests.grounds.ports import silent_port

NODES = 64
OF_OTHER_COMMANDS = {  # than those that launch, watch, stop and diagnose a run over SSH with a small bundle
    "find", "active_runs", "file_system", "strays", "clear", "list_files", "read_file", "command_once", "lacking", "put_part",
    "request_save", "holders",  # only on nodes with cards
    "claim_folder", "release_folder", "offer", "digest", "put_pieces", "keep_time", "finish", "forward", "forwarded",
    "board_start", "board_connect", "board_send", "board_receive", "board_close",
}  # fmt: skip
CONNECT_S = 10  # on a busy machine, nodes that answer take seconds
SILENT = {f"n{index}" for index in range(1, NODES, 8)}


@pytest.mark.processes
def test_simulated_nodes_can_be_started_supervised_queried_and_stopped(tmp_path: Path) -> None:
    rows, uses, _ = measure(Workspace.at(tmp_path), 4, steady_s=0.1, cut_nodes=0)
    assert [row.phase for row in rows] == ["start", "0.1 s of supervision", "status", "stop"]
    assert uses["supervisor"].threads > 4


def test_simulated_nodes_know_each_request_of_a_run() -> None:
    requests = {name for key, name in vars(operations).items() if key.isupper() and isinstance(name, str)}
    simulation = Simulation(1)
    assert {name for name in requests if not simulation.knows(name)} == OF_OTHER_COMMANDS


@pytest.mark.processes
def test_launch_with_silent_nodes_starts_none_and_names_them_in_one_message(tmp_path: Path) -> None:
    """Every eighth of 16 nodes accepts connections and sends nothing."""
    with silent_port() as port, simulated_nodes(Workspace.at(tmp_path), 16) as scale:
        inventory = tmp_path / "inventory.yaml"
        content = YAML(typ="safe").load(inventory)
        content["ssh"]["connect_timeout_s"] = CONNECT_S
        for node in content["nodes"][1::8]:
            node["port"] = port
        YAML(typ="safe").dump(content, inventory)
        done = scale.orch("ssh-launch", "--", "sleep", "1000")
        assert done.code == NodeError.exit_code, done.output
        assert f"n[1,9]: timed out after {CONNECT_S} s (2 of 16)" in done.output
        assert done.output.count("timed out") == 1, done.output
        assert done.wall < 60  # CONNECT_S, and the rest on a busy machine
        simulated = scale.simulated()
        assert (simulated["logins"], simulated["running"]) == (14, 0)


@pytest.mark.processes
def test_status_and_stop_log_in_nowhere_and_name_the_nodes_that_are_silent(tmp_path: Path) -> None:
    """The owner's connections are used; every eighth of 64 nodes answers nothing any more, but other nodes reach it."""
    with simulated_nodes(Workspace.at(tmp_path), NODES) as scale:
        assert scale.orch("ssh-launch", "--detach", "--", "sleep", "1000").code == 0
        try:
            logins = scale.simulated()["logins"]
            status = scale.orch("status")
            assert status.code in (0, NODES_MISSING), status.output
            assert scale.simulated()["logins"] == logins == NODES
            scale.simulated(silent=sorted(SILENT))
            status = scale.orch("status")
            assert status.code == NODES_MISSING, status.output
            assert set(re.findall(r"^(n\d+) .*no answer", status.output, re.MULTILINE)) >= SILENT, status.output
            begun = time.monotonic()
            stop = scale.orch("stop")
            assert time.monotonic() - begun < 40  # by far less than a stop may take on a node that answers
            assert stop.code == NodeError.exit_code, stop.output
            named = [expand(text) for text in re.findall(r"^  (\S+): ", stop.output, re.MULTILINE)]
            assert {name for names in named for name in names} >= SILENT, stop.output
            assert scale.simulated()["running"] == len(SILENT)
        finally:
            os.kill(scale.supervisor(), signal.SIGKILL)  # it would try the silent nodes for a minute
