"""orch list: which runs it selects, and how it prints them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

import pytest

from orchestrator.cli import app
from orchestrator.records.cache.entries import list_entries
from orchestrator.records.store import Store
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.durations import clock
from orchestrator.usecases.runs.refresh import may_be_alive

WORDS = "rank 3 on n1 exited 1: " + "a long message " * 20
NOTE = "warm-up halved\nand more"


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The output of `orch list` with these words, for three runs."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    now = datetime.now(timezone.utc)
    for minutes, name, state, tags in (
        (200, "a", RunState.DONE, ("base", "lr=3")),
        (100, "b", RunState.FAILED, ("base",)),
        (50, "c", RunState.RUNNING, ()),
    ):
        created = now - timedelta(minutes=minutes)
        ended = None if state is RunState.RUNNING else (created + timedelta(seconds=192)).isoformat()
        message = WORDS if state is RunState.FAILED else None
        note = NOTE if name == "a" else None
        run_id = f"{name}-{created:%Y%m%d-%H%M%S}-0abc"
        record = RunRecord(run_id, "ssh", state, created.isoformat(), {}, {}, {}, {}, ended=ended, message=message)
        Store(tmp_path).create(RunRecord.from_json({**record.to_json(), "note": note, "tags": tags}))

    def listed(*words: str) -> str:
        assert app.run(["list", *words]) == 0
        return capsys.readouterr().out

    return listed


def _names(text: str) -> str:
    return "".join(line[0] for line in text.splitlines()[1:])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), "abc"),
        (("--last", "2"), "bc"),
        (("--state", "failed"), "b"),
        (("--state", "DONE", "--state", "running"), "ac"),
        (("--tag", "base"), "ab"),
        (("--tag", "base", "--tag", "lr=3"), "a"),
        (("--tag", "base", "--last", "1"), "b"),
        (("--tag", "other"), ""),
    ],
)
def test_runs_are_selected_by_state_and_tags_then_by_number(
    listed: Callable[..., str], words: tuple[str, ...], names: str
) -> None:
    assert _names(listed(*words)) == names


def test_each_run_is_one_line_with_its_duration_and_the_newest_is_marked(listed: Callable[..., str]) -> None:
    header, done, failed, running = listed().splitlines()
    assert header.split() == ["RUN", "LAUNCHER", "STATE", "AGE", "TIME", "TAGS", "NOTE", "MESSAGE"]
    assert done.split()[2:7] == ["DONE", "3h20m", "3m12s", "base", "lr=3"]
    assert done.endswith("warm-up halved")
    assert failed.endswith(WORDS.rstrip())
    assert "(latest)" not in done + failed
    assert running.split()[1:] == ["(latest)", "ssh", "RUNNING", "50m00s", "50m00s"]


@pytest.mark.parametrize("columns", [80, 120])
def test_long_message_is_cut_to_the_terminal_and_no_id_is(
    listed: Callable[..., str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    ids = [record["id"] for record in json.loads(listed("--json"))]
    lines = listed("--state", "failed").splitlines()
    assert [len(line) for line in lines[1:]] == [columns]
    assert lines[1].endswith("…")
    assert ids[1] in lines[1]
    assert len(ids) == 3


def test_empty_list_is_reported_on_stderr(
    listed: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["list", "--tag", "other"]) == 0
    assert capsys.readouterr() == ("", "orch: none of the 3 runs is selected\n")
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "empty"))
    assert app.run(["list"]) == 0
    assert capsys.readouterr() == ("", "orch: no run is recorded here\n")
    assert listed("--json") == "[]\n"


def test_note_and_tags_are_in_the_json(listed: Callable[..., str]) -> None:
    first, *_ = json.loads(listed("--json"))
    assert (first["note"], first["tags"]) == (NOTE, ["base", "lr=3"])


@pytest.mark.parametrize(
    ("span_s", "text"), [(0, "0s"), (59.9, "59s"), (192, "3m12s"), (7500, "2h05m"), (273_600, "3d04h"), (-1, "0s")]
)
def test_span_has_its_two_largest_units(span_s: float, text: str) -> None:
    assert clock(span_s) == text


def test_folder_that_cannot_be_read_is_named_and_the_other_runs_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a launch with sudo."""
    uid = os.geteuid()
    with tempfile.TemporaryDirectory() as home:
        monkeypatch.setenv("ORCH_HOME", home)
        store = Store(Path(home))
        for run_id in ("a-20260101-000000-0abc", "b-20260101-000001-0abc"):
            store.create(RunRecord(run_id, "ssh", RunState.DONE, "", {}, {}, {}, {}))
        for path in (Path(home), *Path(home).rglob("*")):
            os.chown(path, uid or 12345, -1)
        (store.runs / "a-20260101-000000-0abc").chmod(0)
        os.seteuid(uid or 12345)  # root may read everything
        try:
            assert app.run(["list"]) == 0
        finally:
            os.seteuid(uid)
    shown = capsys.readouterr()
    assert "b-20260101-000001-0abc (latest)" in shown.out
    assert "a-20260101-000000-0abc/run.json cannot be read: Permission denied" in shown.err


@pytest.mark.parametrize(
    ("launcher", "state", "days", "is_queried"),
    [
        ("slurm", RunState.RUNNING, None, True),
        ("slurm", RunState.DONE, 0, False),
        ("slurm", RunState.LOST, 1, True),
        ("slurm", RunState.LOST, 30, False),
        ("ssh", RunState.LOST, 0, False),
    ],
)
def test_all_queries_slurm_about_a_lost_run_for_a_week(
    launcher: Literal["ssh", "slurm"], state: RunState, days: int | None, *, is_queried: bool
) -> None:
    ended = None if days is None else (datetime.now(timezone.utc) - timedelta(days=days)).isoformat()
    record = RunRecord("a-20260101-000000-0abc", launcher, state, "", {}, {}, {}, {}, ended=ended)
    assert may_be_alive(record) is is_queried


COUNT_OPENED = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from orchestrator.cli import app
app.run(sys.argv[2:])
sys.stderr.write("opened: %d\\n" % sum(path.startswith(sys.argv[1]) for path in opened))
"""


def _opened(home: Path, *words: str) -> int:
    """How many files of the records a command opens."""
    command = [sys.executable, "-c", COUNT_OPENED, str(home), *words]
    done = subprocess.run(
        command, env={**os.environ, "ORCH_HOME": str(home)}, capture_output=True, text=True, check=True
    )
    return int(done.stderr.rpartition("opened: ")[2])


@pytest.mark.processes
def test_records_of_ended_runs_are_read_once_not_by_every_command(tmp_path: Path) -> None:
    store, runs = Store(tmp_path), 300
    store.path.mkdir(exist_ok=True)
    for number in range(runs):
        run_id = f"a-20260101-00{number // 60:02}{number % 60:02}-0abc"
        state = RunState.RUNNING if number == 100 else RunState.FAILED
        record = RunRecord(
            run_id, "ssh", state, f"{number:03}", {}, {}, {}, {}, message="first line\nsecond", tags=("t",)
        )
        (store.runs / run_id).mkdir(parents=True)
        (store.runs / run_id / "run.json").write_text(json.dumps(record.to_json()))
    before, damaged = list_entries(store)
    assert (len(before), damaged) == (runs, [])
    assert list_entries(store) == (before, [])
    assert (before[3][1].message, before[3][1].tags) == ("first line", ("t",))
    for words in (["list"], ["status", "nope"], ["status", "latest"]):
        # the kept entries, and files of runs that have not ended or are named
        assert _opened(tmp_path, *words) < 12, words
    (tmp_path / "ended-runs.json").write_text('{"version": 1, "runs": [["damaged"]]}')
    assert list_entries(store) == (before, [])
