"""Steps and tools that hang, crash or print garbage: the reason is in `missing`, and the other steps are not affected."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from orchestrator.node.probe.source import Source
from orchestrator.node.probe.steps import run_groups
from orchestrator.node.vendor.tool import NOT_FOUND
from tests.until import until


def _hang(_source: Source) -> None:
    signal.pause()


def _crash(_source: Source) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _refuse(_source: Source) -> None:
    raise PermissionError(13, "Permission denied", "/sys/x")


@pytest.mark.processes
def test_a_step_that_hangs_or_crashes_is_missing_and_the_others_are_not() -> None:
    begun = time.monotonic()
    results = run_groups(
        [
            ({"before": lambda _: 1, "hang": _hang, "after": lambda _: 2}, 0.2),
            ({"crash": _crash}, 5.0),
            ({"refused": _refuse, "next": lambda _: {"a": [None]}}, 5.0),
        ],
        Source(),
    )
    assert time.monotonic() - begun < 60
    assert {name: result.get("value") for name, result in results.items() if "value" in result} == {
        "before": 1,
        "next": {"a": [None]},
    }
    missing = {key: why for result in results.values() for key, why in result["missing"].items()}
    assert missing == {
        "hang": "no answer in 0.2 s",
        "after": "no answer in 0.2 s",
        "crash": f"ended by signal {int(signal.SIGKILL)}",
        "refused": "PermissionError: /sys/x: Permission denied",
    }


@pytest.mark.processes
def test_programs_of_a_step_end_with_it(tmp_path: Path) -> None:
    tool = _tool(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/pid; exec sleep 1000")
    run_groups([({"tool": lambda source: source.output([tool], 60.0)}, 0.3)], Source())
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), awaited="the end of the tool's child")


def _is_zombie(pid: int) -> bool:
    return ") Z " in Path(f"/proc/{pid}/stat").read_text()


def _tool(folder: Path, script: str) -> str:
    file = folder / "usr" / "bin" / "tool"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("exec sleep 1000", "no answer in 0.2 s"),
        ("exec >&- 2>&-; exec sleep 1000", "no answer in 0.2 s"),
        ("echo out; echo err >&2; exit 9", "exit code 9: err"),
        ("exit 3", "exit code 3: no message"),
        ("kill -9 $$", "ended by signal 9: no message"),
    ],
)
def test_a_tool_that_fails_has_a_reason(tmp_path: Path, script: str, error: str) -> None:
    _tool(tmp_path, script)
    source = Source(str(tmp_path))
    assert source.output(["tool", "--query=x"], 0.2) is None
    (tool,) = source.tools
    assert (tool["name"], tool["error"]) == ("tool --query", error)


def test_too_much_output_is_refused(tmp_path: Path) -> None:
    _tool(tmp_path, "exec head -c 10000000 /dev/zero")
    assert Source(str(tmp_path)).run(["tool"], 10.0) == (None, "printed more than 4 MiB")


def test_output_of_a_tool_is_text_in_the_c_locale(tmp_path: Path) -> None:
    _tool(tmp_path, r'printf "$LC_ALL \377 %s" "$1"')
    assert Source(str(tmp_path)).run(["tool", "℃"], 10.0) == ("C \ufffd ℃", None)


def test_a_tool_that_is_missing_or_no_program_has_a_reason(tmp_path: Path) -> None:
    source = Source(str(tmp_path))
    assert source.run(["tool"], 1.0) == (None, NOT_FOUND)
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "tool").write_bytes(b"\x7fELF garbage")
    assert source.run(["tool"], 1.0) == (None, NOT_FOUND)
    (tmp_path / "usr" / "bin" / "tool").chmod(0o755)
    assert source.run(["tool"], 1.0) == (None, "Exec format error")
