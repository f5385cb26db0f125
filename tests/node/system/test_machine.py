"""The identity of processes, on machines with and without /proc."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator.node.run.ownership import signal_exactly
from orchestrator.node.system import machine
from tests.until import until


@pytest.mark.processes
@pytest.mark.parametrize("has_proc", [True, False])
def test_process_is_identified_and_signalled_with_and_without_proc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_proc: bool
) -> None:
    """A Mac has no /proc; its ps takes the same options."""
    if not has_proc:
        monkeypatch.setattr(machine, "PROC", str(tmp_path))
    this_process = machine.process_record()
    assert machine.is_alive(this_process)
    assert not machine.is_alive({**this_process, "start_time": this_process["start_time"] - 60})
    with subprocess.Popen(["sleep", "100"]) as child:
        fields = machine.stat_fields(child.pid)
        assert fields is not None
        assert (int(fields[machine.PARENT]), int(fields[machine.GROUP])) == (os.getpid(), os.getpgid(0))
        key = (child.pid, int(fields[machine.START_TIME]))
        assert signal_exactly(key, signal.SIGSTOP)
        until(lambda: machine.is_stopped(child.pid), awaited="the process to be stopped")
        assert signal_exactly(key, signal.SIGKILL)
        until(lambda: machine.live_fields(child.pid) is None, awaited="the process to end")
        assert not signal_exactly(key, signal.SIGTERM)
    assert machine.stat_fields(child.pid) is None


@pytest.mark.processes
def test_name_of_a_process_does_not_change_its_fields(tmp_path: Path) -> None:
    program = shutil.copy(
        shutil.which("sleep") or "", tmp_path / "a) R 1 2 (b\xff".encode("latin-1").decode("utf-8", "surrogateescape")
    )
    with subprocess.Popen([program, "100"]) as child:
        try:
            fields = machine.stat_fields(child.pid)
        finally:
            child.kill()
    assert fields is not None
    assert int(fields[machine.PARENT]) == os.getpid()
