"""The error of a rank that was started by hand is noted, unless the rank is none of a process group."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.scripts.lost_errors import note


@pytest.mark.parametrize(("error", "is_joined", "noted"), [(ValueError("bad"), True, True), (ValueError("bad"), False, False), (None, True, False)])  # fmt: skip
def test_error_of_a_joined_rank_is_noted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception | None, *, is_joined: bool, noted: bool
) -> None:
    folder = tmp_path / "attempt-1" / "n0" / "error"
    folder.mkdir(parents=True)
    for name, value in {"RANK": "3", "ORCH_RUN_DIR": str(tmp_path), "ORCH_ATTEMPT": "1", "ORCH_NODE": "n0"}.items():
        monkeypatch.setenv(name, value)
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: is_joined)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=group))
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    note()
    file = folder / "lost-3.json"
    assert file.exists() is noted
    if noted:
        assert json.loads(file.read_text()) == {"rank": "3", "error": "ValueError: bad"}
        monkeypatch.setattr(sys, "last_value", None)
        note()  # a later process of the rank has not failed
        assert not file.exists()
