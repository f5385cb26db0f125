"""The summary of `orch gc`."""

from __future__ import annotations

from typing import cast

import pytest

from orchestrator.cli import gc
from orchestrator.usecases.runs.gc import GarbageBody, Limits, SiteGarbage


def _entry(action: str, size: int) -> GarbageBody:
    return cast(
        "GarbageBody", {"kind": "bundle", "name": "b", "bytes": size, "age_s": 1.0, "action": action, "why": ""}
    )


def test_size_of_what_is_too_young_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    site = SiteGarbage("n0", entries=[_entry("remove", 1000), _entry("young", 10**9), _entry("young", 7 * 10**8)])
    gc._report([site], Limits(86400.0, *(False, True)), 1)
    assert "1.0 kB would be freed; 2 younger than 1d left alone (1.7 GB); working" in capsys.readouterr().err
