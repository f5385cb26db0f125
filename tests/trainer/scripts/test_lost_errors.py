"""The error of a rank that was started by hand is noted, unless the rank is none of a process group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.failure import lost_error
from tests.paths import ROOT

pytestmark = pytest.mark.processes

PROGRAM = """
import atexit, os, sys, types
import trainer.scripts.lost_errors as lost
lost.watch()
c10d = types.SimpleNamespace(init_process_group=lambda backend: None)
lost.watch_groups(c10d)
if {joins}:
    c10d.init_process_group("gloo")
{end}
"""


def _end(folder: Path, end: str, *, joins: bool = True, **more: str) -> object:
    """Run a program as rank 3 that ends so; return its noted error."""
    (folder / "attempt-1" / "n0" / "error").mkdir(parents=True, exist_ok=True)
    rank = {"RANK": "3", "PET_NNODES": "1", "ORCH_RUN_DIR": str(folder), "ORCH_ATTEMPT": "1", "ORCH_NODE": "n0"}
    env = {**os.environ, **rank, "PYTHONPATH": str(ROOT), **more}
    subprocess.run([sys.executable, "-c", PROGRAM.format(joins=joins, end=end)], env=env, check=False, timeout=60)
    return _note(folder).get("error")


def _note(folder: Path) -> dict[str, Any]:
    file = folder / "attempt-1" / "n0" / "error" / "lost-3.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("raise ValueError('bad')", "ValueError: bad"),
        ("raise ValueError('a\\nb') from KeyError('c')", "ValueError: a, after KeyError: 'c'"),
        ("a, b = OSError('a'), OSError('b'); a.__cause__, b.__cause__ = b, a\nraise a", "OSError: a, after OSError: b"),
        ("try: 1/0\nexcept OSError: pass", "ZeroDivisionError: division by zero"),
        ("try: 1/0\nexcept ArithmeticError: raise ImportError('x') from None", "ImportError: x"),
        ("sys.exit(2)", "exit code 2"),  # as a script that prints its errors itself, or the error of the rendezvous
        ("sys.exit('no data')", "no data"),
        ("sys.exit(0)", None),
        ("", None),
    ],
)
def test_error_of_a_joined_rank_is_noted(tmp_path: Path, end: str, error: str | None) -> None:
    assert _end(tmp_path, end) == error
    assert _end(tmp_path, "") is None, "a later process of the rank has not failed"


def test_rank_that_a_signal_ends_leaves_the_note_that_it_has_joined(tmp_path: Path) -> None:
    _end(tmp_path, "os.kill(os.getpid(), 9)")
    assert _note(tmp_path) == {"rank": "3", "error": None}
    _end(tmp_path, "")
    assert _note(tmp_path) == {}
    _end(tmp_path, "os.kill(os.getpid(), 9)", joins=False)
    assert _note(tmp_path) == {}


def test_error_before_a_rank_joined_a_group_counts_only_if_no_rank_of_the_node_joins_one(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    errors = tmp_path / "attempt-1" / "n0" / "error"

    def run(end: str) -> list[str]:
        joins = "joins" in end
        script.write_text(PROGRAM.format(joins=joins, end=end.replace("joins", "pass")))
        rank = {"RANK": "3", "PET_NNODES": "1", "ORCH_RUN_DIR": str(tmp_path), "ORCH_ATTEMPT": "1", "ORCH_NODE": "n0"}
        env = {**os.environ, **rank, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, str(script)], env=env, check=False, timeout=60, capture_output=True)
        return sorted(path.name for path in errors.iterdir())

    errors.mkdir(parents=True)
    assert run("import no_such_module") == ["unjoined-3.json"]
    assert "No module named 'no_such_module'" in lost_error(str(errors.parent))
    assert run("") == []
    assert run("import no_such_module") == ["unjoined-3.json"]
    (errors / "joined-0.json").touch()
    assert lost_error(str(errors.parent)) == "", "another rank has joined: this process may be a helper of the script"
    assert run("joins; import no_such_module") == ["joined-0.json", "joined-3.json", "lost-3.json", "unjoined-3.json"]
    assert lost_error(str(errors.parent)).startswith("rank 3 failed (ModuleNotFoundError: ")


CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5274. GLHF!"


@pytest.mark.parametrize(
    ("errors", "begin"),
    [
        ({0: CLOSED, 1: CLOSED, 2: "ValueError: bad"}, "rank 2 failed (ValueError: bad)"),
        ({0: CLOSED, 1: None, 2: CLOSED}, "rank 1 was ended by a signal or os._exit(), and others lost the connection"),
        ({1: "KeyError: 'a'", 0: "ValueError: later"}, "rank 1 failed (KeyError: 'a')"),
        ({1: CLOSED}, "rank 1 failed (RuntimeError: [gloo"),
        ({0: None}, ""),
    ],
)
def test_rank_that_lost_its_connection_is_not_named_before_the_one_that_failed(
    tmp_path: Path, errors: dict[int, str | None], begin: str
) -> None:
    (tmp_path / "error").mkdir()
    for moment, (rank, error) in enumerate(errors.items()):
        note = tmp_path / "error" / f"lost-{rank}.json"
        note.write_text(json.dumps({"rank": str(rank), "error": error}))
        os.utime(note, (moment, moment))
    assert lost_error(str(tmp_path)).startswith(begin)
    assert bool(begin) == bool(lost_error(str(tmp_path)))


def test_error_of_a_process_that_joined_no_group_or_that_torchrun_watches_is_not_noted(tmp_path: Path) -> None:
    assert _end(tmp_path, "sys.exit(1)", joins=False) is None
    assert _end(tmp_path, "sys.exit(1)", TORCHELASTIC_RUN_ID="r") is None
