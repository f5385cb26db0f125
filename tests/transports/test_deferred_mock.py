"""Fabric is imported without `unittest.mock`, and everything that uses the module gets the module itself."""

from __future__ import annotations

import subprocess
import sys
from unittest import mock

import pytest

from orchestrator.transports.ssh.deferred_mock import NAME, deferred_mock


@pytest.mark.processes
def test_ssh_transport_imports_no_library_for_tests() -> None:
    program = (
        "import sys; from types import SimpleNamespace; from orchestrator.endpoint.access import transport_factory;"
        "transport_factory('ssh', SimpleNamespace(fanout=1)); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "fabric" in loaded
    assert not loaded.intersection({"unittest.mock", "asyncio"})


def test_what_is_used_of_a_deferred_module_is_the_module_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, NAME)
    monkeypatch.setattr("unittest.mock", mock)  # which the import below replaces
    with deferred_mock():
        from unittest.mock import Mock  # noqa: PLC0415
    assert NAME not in sys.modules
    assert Mock(return_value=3)() == 3
    assert sys.modules[NAME].Mock


def test_module_that_is_imported_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, NAME, mock)
    with deferred_mock():
        assert sys.modules[NAME] is mock
