"""Byte code is only written where it cannot be cut off."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.node.system.byte_code import SPACE_BYTES, write_if_safe


@pytest.mark.parametrize(
    ("free", "limit", "is_written"),
    [
        (SPACE_BYTES, resource.RLIM_INFINITY, True),
        (SPACE_BYTES - 4096, resource.RLIM_INFINITY, False),
        (1 << 40, 1 << 40, False),
    ],
)
def test_none_is_written_on_a_disk_that_is_nearly_full_or_under_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, limit: int, *, is_written: bool
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", is_written)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free // 4096, f_frsize=4096))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    write_if_safe(str(tmp_path))
    assert sys.dont_write_bytecode is not is_written
