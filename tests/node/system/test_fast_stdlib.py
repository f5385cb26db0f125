"""Imports of an endpoint and an agent at their start, and the JSON that they read and write."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from orchestrator.node.system.fast_stdlib import dumps, loads
from tests.paths import ROOT

# Packages as an endpoint has them: without the code of orchestrator/__init__.py.
_IMPORTS = """
import sys
for name in ("orchestrator", "orchestrator.node", "orchestrator.node.endpoint", "orchestrator.node.agent"):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
import orchestrator.node.endpoint.serve, orchestrator.node.endpoint.fork, orchestrator.node.agent.guard
print(*sys.modules)
for text in ("", " ", "{", "[1,", '{"a" 1}', "1 2", "nul", b"\\xff", '"\\x01"', "{1:2}", '{"text": "cut'):
    try:
        sys.modules["orchestrator.node.system.fast_stdlib"].loads(text)
        sys.exit(f"{text!r} is taken for JSON")
    except ValueError:
        for name in [name for name in sys.modules if name.startswith("json")]:
            del sys.modules[name]
"""
_SLOW = {
    "collections",
    "contextlib",
    "enum",
    "functools",
    "json",
    "re",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "typing",
}


@pytest.mark.processes
def test_endpoint_and_agent_import_no_slow_module_at_their_start() -> None:
    """They would take as long as the start of Python, on every node of every launch. A text that is not JSON is an error all the same."""
    argv = [sys.executable, "-E", "-s", "-S", "-c", _IMPORTS, str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "orchestrator.node.agent.agent" in imported
    assert not imported & _SLOW


@pytest.mark.parametrize(
    "value",
    [
        None,
        -5,
        10**40,
        1e300,
        math.inf,
        'a\u00e4\ud800\U0001f600\n"\\',
        {},
        {"1": [2, {"a": None}], 3: (4,), None: 1, 2.5: [], True: False},
    ],
)
def test_json_is_that_of_the_standard_library(value: Any) -> None:  # any value
    text = json.dumps(value)
    assert dumps(value) == text
    assert loads(f" {text}\n") == loads(text.encode()) == json.loads(text)


@pytest.mark.parametrize("value", [object(), {(1,): 2}, {1}])
def test_value_that_json_does_not_have_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        dumps(value)
