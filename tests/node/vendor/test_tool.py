"""The run of a vendor's tool: its deadline, its limit on output, and its errors."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.node.vendor import tool
from orchestrator.node.vendor.tool import run_tool
from tests.until import until


def test_output_of_a_tool_that_succeeds_is_returned_in_the_language_of_the_parsers() -> None:
    assert run_tool(["sh", "-c", "echo $LC_ALL; echo more >&2"], 10) == ("C\nmore\n", "")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo no driver; exit 9", "sh: exit code 9: no driver"),
        ("kill -SEGV $$", "sh: was ended by signal 11"),
        ("while :; do echo 0123456789; done", f"sh printed more than {tool.OUTPUT_BYTES} bytes"),
    ],
)
def test_error_of_a_tool_is_one_sentence(script: str, error: str) -> None:
    assert run_tool(["sh", "-c", script], 10)[1] == error


def test_missing_tool_is_an_error() -> None:
    assert run_tool(["no-such-tool", "-q"], 10) == ("", "no-such-tool: not found")


def test_tool_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    begun = time.monotonic()
    _, error = run_tool(["sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/child; wait"], 0.2)
    assert error == "sh gave no answer in 0.2 s"
    assert time.monotonic() - begun < 5
    child = int((tmp_path / "child").read_text())
    until(lambda: not _is_running(child), awaited="the end of the tool's child")


def _is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
