"""The probe of a node through its endpoint, and answers of a node that cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import NodeError
from orchestrator.node.facts import FORMAT, read_facts
from orchestrator.node.probe import collect
from orchestrator.transports.local import LocalTransport
from tests.grounds import nodes
from tests.paths import ROOT


def test_format_of_the_probe_is_that_of_the_facts() -> None:
    assert collect.FORMAT == FORMAT


@pytest.mark.parametrize("kind", nodes.KINDS)
def test_facts_of_every_kind_of_node_are_valid(kind: str) -> None:
    assert read_facts(json.loads(json.dumps(nodes.facts(kind)))) == nodes.facts(kind)


def _set(*path: object, value: object) -> Callable[[Any], None]:
    def change(facts: Any) -> None:  # read as JSON
        for key in path[:-1]:
            facts = facts[key]
        facts[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda facts: facts.clear(), "not the facts of a node"),
        (_set("format", value=2), "facts of format 2, and this version of orch reads format 1"),
        (lambda facts: facts.pop("hcas"), "facts.hcas is missing"),
        (lambda facts: facts["hcas"][0]["ports"][0].pop("state"), r"facts.hcas\[0\].ports\[0\].state is missing"),
        (_set("hcas", 0, "ports", 0, "rate", value="400"), "rate is '400', not a number"),
        (_set("cards", 3, "index", value=True), r"facts.cards\[3\].index is True, not an integer"),
        (_set("names", "resolved", "n0", value="10.0.0.1"), "facts.names.resolved.n0 is '10.0.0.1', not a list"),
        (_set("memory", value=None), "facts.memory is None, not an object"),
    ],
)
def test_facts_that_are_half_or_of_another_format_are_refused(change: Callable[[Any], None], message: str) -> None:
    facts = json.loads(json.dumps(nodes.facts("h800")))
    change(facts)
    with pytest.raises(ValueError, match=message):
        read_facts(facts)


@pytest.mark.parametrize("value", [None, [], "facts", 1, {"error": "x"}])
def test_values_that_are_no_facts_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not the facts of a node"):
        read_facts(value)


@pytest.mark.processes
def test_this_machine_is_probed_through_its_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print()\n")
    (tmp_path / ".profile").write_text("export NCCL_IB_TIMEOUT=18\n")  # not read for ranks without setup: lines
    monkeypatch.setenv("NCCL_IB_TIMEOUT", "22")
    monkeypatch.setenv("NCCL_API_KEY", "hidden")
    monkeypatch.setenv("HOME", str(tmp_path))
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        facts = endpoint.probe(
            ["localhost", "missing.invalid"], {"workdir": str(tmp_path / "new")}, str(tmp_path / "code")
        )
    assert facts["node"] == "n0"
    assert facts["software"]["python"] == "{}.{}.{}".format(*sys.version_info[:3])
    assert facts["software"]["packages"]["pytest"] == pytest.__version__
    assert facts["cpus"]["usable"] == len(os.sched_getaffinity(0))
    loopback = next(interface for interface in facts["interfaces"] if interface["name"] == "lo")
    assert {"address": "127.0.0.1", "prefix": 8} in loopback["addresses"]
    assert "127.0.0.1" in facts["names"]["resolved"]["localhost"]
    assert facts["names"]["resolved"]["missing.invalid"] == []
    assert facts["environment"]["NCCL_IB_TIMEOUT"] == "22"
    assert "NCCL_API_KEY" not in facts["environment"]
    disks = {disk["use"]: disk for disk in facts["disks"]}
    assert disks["workdir"]["writable"] is True
    assert disks["workdir"]["identity"] == disks["home"]["identity"]  # both are in the same folder, which exists
    assert facts["code"] is not None
    assert facts["code"]["digest"] is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == [".profile", "code"]


@pytest.mark.processes
def test_the_program_reads_a_machine_below_another_root(tmp_path: Path) -> None:
    """The same facts as without processes, by the tools of that machine; Slurm jobs start the program by its path."""
    machine = nodes.h800()
    machine.write(tmp_path)
    machine.write_tools(tmp_path / "usr" / "bin")
    argv = [
        sys.executable,
        "-S",
        str(ROOT / "orchestrator/node/probe/__main__.py"),
        "--root",
        str(tmp_path),
        '{"node": "n0"}',
    ]
    done = subprocess.run(argv, check=True, capture_output=True, timeout=60)
    facts = read_facts(json.loads(done.stdout))
    expected = nodes.facts("h800")
    for key in ("node", "cards", "hcas", "topology", "cpus", "memory", "limits"):
        assert facts[key] == expected[key]
    assert facts["names"]["hostname"] == "n0"
    assert [tool["error"] for tool in facts["tools"]] == [None] * 5


@pytest.mark.processes
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("echo Segmentation fault", "cannot be read: it printed 'Segmentation fault'"),
        ('printf \'orch-endpoint-f1b7c0d2 3.11\\n{"format": 1, "node\'', "cannot be read: it printed"),
        ("printf 'orch-endpoint-f1b7c0d2 3.11\\n{\"format\": 0}\\n'", "facts of format 0"),
        ("echo out of memory >&2; exit 9", "exit code 9: out of memory"),
    ],
)
def test_a_node_that_answers_half_is_an_error_in_words(tmp_path: Path, answer: str, message: str) -> None:
    """The Python of the node starts the endpoint, and breaks when the probe starts."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nif mkdir "{tmp_path}/started" 2>/dev/null; then exec {sys.executable} "$@"; fi\n{answer}\n'
    )
    python.chmod(0o755)
    with (
        Endpoint.connect(LocalTransport("n0"), str(python)) as endpoint,
        pytest.raises(NodeError, match=message),
    ):
        endpoint.probe([], {}, None)
