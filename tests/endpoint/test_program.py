"""The programs that are sent to a node."""

from __future__ import annotations

import marshal
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.endpoint.client import Endpoint, Heartbeat
from orchestrator.endpoint.program import probe_program, program
from orchestrator.transports.local import LocalTransport


@pytest.mark.parametrize("packed", [program, probe_program])
def test_every_module_is_sent_with_its_packages(packed: Callable[[], bytes]) -> None:
    texts = zlib.decompress(_parts(packed())[1])
    modules = marshal.loads(texts)  # noqa: S302  written here
    assert {name.rpartition(".")[0] for name in modules} - {""} <= modules.keys()


@pytest.mark.processes
def test_supervision_needs_no_module_that_is_sent_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacking and compiling the texts would take a fifth of the processor time of a start on every node."""
    text = _parts(program())[1]
    without_text = program().removesuffix(text) + bytes(len(text))
    monkeypatch.setattr("orchestrator.endpoint.connection.program", lambda: without_text)
    folder = tmp_path / "n0"
    folder.mkdir(0o700)
    (folder / "rank-0.out").write_text("hello\n")
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        observation, _ = endpoint.heartbeat(str(tmp_path), "n0", Heartbeat(None, (), wait_s=0.0))
        chunks, _ = endpoint.follow(str(tmp_path), ["n0"], {}, wait_s=0.0)
    assert observation.node == "n0"
    assert [chunk.data for chunk in chunks] == [b"hello\n"]


def _parts(packed: bytes) -> tuple[bytes, bytes]:
    """The modules as byte code, and as text."""
    length, _, rest = packed.partition(b"\n")
    _, _, data = rest[int(length) :].partition(b"\n")
    code_size = int(rest[int(length) :].split(maxsplit=2)[1])
    return data[:code_size], data[code_size:]
