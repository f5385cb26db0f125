"""The programs that are sent to a node."""

from __future__ import annotations

import marshal
import zlib
from collections.abc import Callable

import pytest

from orchestrator.endpoint.program import probe_program, program


@pytest.mark.parametrize("packed", [program, probe_program])
def test_every_module_is_sent_with_its_packages(packed: Callable[[], bytes]) -> None:
    length, _, rest = packed().partition(b"\n")
    sizes, _, data = rest[int(length) :].partition(b"\n")
    _, code_size, text_size = sizes.split()
    texts = zlib.decompress(data[int(code_size) : int(code_size) + int(text_size)])
    modules = marshal.loads(texts)  # noqa: S302  written here
    assert {name.rpartition(".")[0] for name in modules} - {""} <= modules.keys()
