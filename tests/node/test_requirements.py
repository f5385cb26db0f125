"""The test of what a node lacks, by a real endpoint in each Python of the nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from orchestrator.endpoint.client import Endpoint
from orchestrator.node.requirements import problems
from orchestrator.transports.local import LocalTransport
from tests.node.agent.test_agent_ground import PYTHONS

if TYPE_CHECKING:
    from orchestrator.node.requirements import Request

pytestmark = pytest.mark.processes


@pytest.fixture(params=PYTHONS)
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    with Endpoint.connect(LocalTransport("n0"), request.param) as endpoint:
        yield endpoint


def test_all_that_fails_is_named_in_the_order_of_the_request(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "fine.py").write_text("")
    (tmp_path / "modules" / "broken.py").write_text("raise RuntimeError('no driver')\n")
    (tmp_path / "modules" / "killed.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nothing")
    required = {
        "paths": [str(tmp_path), str(tmp_path / "nothing"), str(link)],
        "imports": ["fine", "broken", "killed", "json"],
        "commands": ["test $WORD = 'a b'", 'test "$WORD" = "a b"', "echo one; echo two >&2; exit 3", "exit 4"],
    }
    env = {"PYTHONPATH": str(tmp_path / "modules"), "WORD": "a b"}
    found = endpoint.problems(required, env, (), each_s=30.0)
    assert [entry[:2] for entry in found] == [
        ("path", str(tmp_path / "nothing")),
        ("path", str(link)),
        ("import", "broken"),
        ("import", "killed"),
        ("command", "test $WORD = 'a b'"),
        ("command", "echo one; echo two >&2; exit 3"),
        ("command", "exit 4"),
    ]
    problems = [entry[2] for entry in found]
    assert problems[:4] == ["it does not exist", "this user may not read it", "RuntimeError: no driver", "signal 11"]
    assert problems[-2:] == ["two", "exit code 4"]


def test_lines_of_setup_run_before_modules_and_commands(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text("")
    setup = (f"export PYTHONPATH={tmp_path}", "export WORD='it is set'")
    required = {"imports": ["fine"], "commands": ['test "$WORD" = "it is set"']}
    assert endpoint.problems(required, {}, setup, each_s=30.0) == []


def test_module_that_hangs_is_ended(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(1000)\n")
    found = endpoint.problems({"imports": ["slow", "json"]}, {"PYTHONPATH": str(tmp_path)}, (), each_s=0.5)
    assert [entry for entry in found if entry[1] == "slow"] == [("import", "slow", "it has not ended within 0.5 s")]


@pytest.mark.parametrize(("python", "found"), [("python3", "printed by another Python"), (sys.executable, "")])
def test_modules_are_imported_by_the_python_of_the_ranks(tmp_path: Path, python: str, found: str) -> None:
    """With `python: python3`, that is the one which the lines of `setup` activate."""
    activated = tmp_path / "python3"
    activated.write_text("#!/bin/sh\necho printed by another Python; exit 1\n")
    activated.chmod(0o755)
    setup = [f"export PATH={tmp_path}:$PATH"]
    none: list[str] = []
    request = {
        "paths": none,
        "imports": ["json"],
        "commands": none,
        "env": {},
        "setup": setup,
        "python": python,
        "each_s": 30.0,
    }
    assert [problem for _, _, problem in problems(cast("Request", request))] == ([found] if found else [])
