"""The functions that answer the operations of an endpoint."""

from __future__ import annotations

import pytest

from orchestrator.node.endpoint.serve import Handlers
from orchestrator.node.endpoint.start import Starter
from orchestrator.node.protocol import operations


def test_each_operation_is_answered_by_the_function_of_its_name() -> None:
    handlers = Handlers(Starter(0o077), 0o077)
    names = [name for key, name in vars(operations).items() if key.isupper() and isinstance(name, str)]
    assert len(names) > 30
    assert [handlers.handler(name).__name__ for name in names] == names


def test_operation_of_another_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such request: 'fly'"):
        Handlers(Starter(0o077), 0o077).handler("fly")
