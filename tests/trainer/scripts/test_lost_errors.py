"""The error of a rank that was started by hand is noted, unless the rank is none of a process group."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.scripts.lost_errors import begin, note


@pytest.mark.parametrize(("error", "is_joined", "noted"), [(ValueError("bad"), True, True), (ValueError("bad"), False, False), (None, True, False)])  # fmt: skip
def test_error_of_a_joined_rank_is_noted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception | None, *, is_joined: bool, noted: bool
) -> None:
    file = _rank(monkeypatch, tmp_path, is_joined=is_joined)
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    note()
    assert file.exists() is noted
    if noted:
        assert json.loads(file.read_text()) == {"rank": "3", "error": "ValueError: bad"}
        monkeypatch.setattr(sys, "last_value", None)
        note()  # a later process of the rank has not failed
        assert not file.exists()


@pytest.mark.parametrize(
    ("code", "error"), [(1, "sys.exit(1)"), ("no data", "sys.exit('no data')"), (0, ""), (None, "")]
)
def test_rank_that_has_begun_is_noted_unless_it_ends_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: object, error: str
) -> None:
    """By then the process group may have been destroyed."""
    file = _rank(monkeypatch, tmp_path, is_joined=True)
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    registered: list[Callable[[], object]] = []
    monkeypatch.setattr("atexit.register", lambda function, *args: registered.append(partial(function, *args)))
    begin(lambda: code)
    assert json.loads(file.read_text()) == {"rank": "3", "error": None}  # all that a signal leaves
    _rank(monkeypatch, tmp_path, is_joined=False)
    [at_exit] = registered
    at_exit()
    assert (json.loads(file.read_text())["error"] if file.exists() else "") == error


@pytest.mark.parametrize(("variable", "is_joined"), [("TORCHELASTIC_RUN_ID", True), ("OTHER", False)])
def test_rank_of_torchrun_or_without_a_group_notes_no_begin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, *, is_joined: bool
) -> None:
    file = _rank(monkeypatch, tmp_path, is_joined=is_joined)
    monkeypatch.setenv(variable, "1")
    begin(lambda: None)
    assert not file.exists()


def _rank(monkeypatch: pytest.MonkeyPatch, folder: Path, *, is_joined: bool) -> Path:
    """Set the environment of rank 3, and return the path of the note."""
    file = folder / "attempt-1" / "n0" / "error" / "lost-3.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    variables = {"RANK": "3", "PET_NNODES": "1", "ORCH_RUN_DIR": str(folder), "ORCH_ATTEMPT": "1", "ORCH_NODE": "n0"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: is_joined)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=group))
    return file
