"""The run of a vendor's tool: its deadline, its limit on output, and its errors."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.node.vendor.tool import run_tool
from tests.until import until


def test_output_of_a_tool_that_succeeds_is_returned_in_the_language_of_the_parsers() -> None:
    tool = run_tool(["sh", "-c", "echo $LC_ALL; echo more >&2"], 10)
    assert (tool.output, tool.errors, tool.error) == ("C\n", "more\n", "")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo no driver; exit 9", "exit code 9: no driver"),
        ("kill -SEGV $$", "ended by signal 11: no message"),
        ("yes 0123456789", "printed more than 4 MiB"),
    ],
)
def test_error_of_a_tool_is_one_sentence(script: str, error: str) -> None:
    assert run_tool(["sh", "-c", script], 10).error == error


def test_missing_tool_is_an_error() -> None:
    tool = run_tool(["no-such-tool", "-q"], 10)
    assert (tool.output, tool.error, tool.is_installed) == ("", "not found", False)


def test_tool_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    begun = time.monotonic()
    tool = run_tool(["sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/child; wait"], 0.2)
    assert tool.error == "no answer in 0.2 s"
    assert time.monotonic() - begun < 60
    child = int((tmp_path / "child").read_text())
    until(lambda: not _is_running(child), awaited="the end of the tool's child")


def _is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
