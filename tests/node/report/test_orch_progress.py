"""`from orch_progress import report` in the programs of users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.node.report import orch_progress
from orchestrator.node.report.orch_progress import EVERY_S, Reporter

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _variables(run: Path) -> dict[str, str]:
    return {"ORCH_RUN_DIR": str(run), "ORCH_ATTEMPT": "2", "ORCH_NODE": "n0", "RANK": "3"}


@pytest.fixture
def progress(tmp_path: Path) -> Path:
    """The progress file of the rank; the agent has made its folder."""
    folder = tmp_path / "attempt-2" / "n0" / "progress"
    folder.mkdir(parents=True)
    return folder / "3.json"


def _read(progress: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(progress.read_text("utf-8"))
    del found["time"]
    return found


def test_steps_are_written_once_per_second_and_anything_else_at_once(progress: Path, tmp_path: Path) -> None:
    clock, at_exit = Clock(), list["Callable[[], object]"]()
    report = Reporter(_variables(tmp_path), clock, at_exit.append).report
    report(1, steps=30, loss=2.5)
    first = {"step": 1, "phase": "step", "saved": None, "steps": 30, "loss": 2.5}
    assert _read(progress) == first
    report(2, loss=2.0)
    assert _read(progress) == first
    clock.now_s += EVERY_S
    report(3, loss=1.5)
    first["step_s"] = 1.0
    assert _read(progress) == {**first, "step": 3, "loss": 1.5}
    report(4, phase="save")
    assert _read(progress)["phase"] == "save"
    report(4, saved=4)
    assert _read(progress) == {**first, "step": 4, "loss": 1.5, "saved": 4, "step_s": 0.5}
    clock.now_s += 0.5
    report(6)
    [write_last] = at_exit
    write_last()
    assert _read(progress) == {
        **first,
        "step": 6,
        "loss": 1.5,
        "saved": 4,
        "step_s": 0.375,
    }  # 1.5 s for the steps 3 to 6
    report(6, done=True)
    assert _read(progress)["phase"] == "done"


def test_nothing_is_written_outside_orch(progress: Path, tmp_path: Path) -> None:
    for name in _variables(tmp_path):
        Reporter({**_variables(tmp_path), name: ""}).report(1)
    assert not progress.exists()


def test_full_disk_is_reported_once_and_does_not_end_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Reporter(_variables(tmp_path / "missing")).report
    report(1)
    report(2, saved=2)
    assert capsys.readouterr().err.count("WARNING: no more progress is reported to orch: ") == 1


@pytest.mark.processes
def test_module_is_found_by_its_folder_and_reports_for_its_rank(progress: Path, tmp_path: Path) -> None:
    environment = {**os.environ, **_variables(tmp_path), "PYTHONPATH": str(Path(orch_progress.__file__).parent)}
    script = "from orch_progress import report; report(7, saved=5); report(8)"
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert _read(progress) == {"step": 8, "phase": "step", "saved": 5}
