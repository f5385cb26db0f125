"""Fabric is imported without modules that it does not need, and everything that uses one of them gets the module itself."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from unittest import mock

import pytest

from orchestrator.transports.ssh.deferred_imports import MOCK, YAML, deferred_imports


@pytest.mark.processes
def test_ssh_transport_imports_no_library_for_tests_and_no_yaml() -> None:
    program = (
        "import sys; from types import SimpleNamespace; from orchestrator.endpoint.access import transport_factory;"
        "transport_factory('ssh', SimpleNamespace(fanout=1)); print(*sys.modules);"
        "from invoke.util import yaml; print(yaml.safe_load('a: [1]'), sys.modules['invoke.vendor.yaml'].__file__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules, used = done.stdout.splitlines()
    assert "fabric" in modules.split()
    assert not set(modules.split()).intersection({MOCK, YAML, "asyncio"})
    assert used.startswith("{'a': [1]} /")


def test_what_is_used_of_a_deferred_module_is_the_module_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MOCK)
    monkeypatch.setattr("unittest.mock", mock)  # which the import below replaces
    with deferred_imports():
        from unittest.mock import Mock  # noqa: PLC0415
    assert MOCK not in sys.modules
    assert Mock(return_value=3)() == 3
    assert sys.modules[MOCK].Mock


@pytest.mark.parametrize("name", [MOCK, YAML])
def test_module_that_is_imported_already_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    with deferred_imports():
        assert sys.modules[name] is module
    assert sys.modules[name] is module
