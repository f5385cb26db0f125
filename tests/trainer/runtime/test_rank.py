"""The rank's variables, its progress file, and the verdict on the ranks."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.until import until
from trainer.errors import UserError
from trainer.runtime.progress import Progress
from trainer.runtime.rank import Rank
from trainer.runtime.rendezvous import verdict_of
from trainer.text import fold


def _orch(run_dir: Path, **more: str) -> dict[str, str]:
    base = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "ORCH_RUN_DIR": str(run_dir)}
    return {**base, "ORCH_NODE": "n1", "ORCH_ATTEMPT": "1", **more}


def test_process_without_a_launcher_needs_no_variables() -> None:
    rank = Rank.from_env({})
    assert (rank.global_rank, rank.world_size, rank.launched, rank.run_dir, rank.progress_dir) == (
        0,
        1,
        False,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("changed", "part"),
    [({"RANK": "x"}, "RANK='x'"), ({"LOCAL_RANK": ""}, "LOCAL_RANK=''"), ({"RANK": "2"}, "not below WORLD_SIZE=2")],
)
def test_wrong_launch_variables_are_named(tmp_path: Path, changed: dict[str, str], part: str) -> None:
    with pytest.raises(UserError, match="WORLD_SIZE") as caught:
        Rank.from_env({**_orch(tmp_path), **changed})
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("more", "is_retry"),
    [({}, False), ({"ORCH_ATTEMPT": "2"}, True), ({"TORCHELASTIC_RESTART_COUNT": "1"}, True)],
)
def test_later_attempts_are_retries(tmp_path: Path, more: dict[str, str], is_retry: bool) -> None:
    assert Rank.from_env(_orch(tmp_path, **more)).is_retry is is_retry


def test_progress_file_is_where_the_agent_reads_it_and_keeps_extra_values(tmp_path: Path) -> None:
    progress = Progress(Rank.from_env(_orch(tmp_path)), steps=9)
    progress.write("init", 0, ready="2/2 ranks ready")
    progress.write("step", 4)
    path = tmp_path / "attempt-1" / "n1" / "progress" / "1.json"
    record = json.loads(path.read_text())
    assert {**record, "time": 0} == {"step": 4, "steps": 9, "phase": "step", "time": 0, "ready": "2/2 ranks ready"}
    assert [entry.name for entry in path.parent.iterdir()] == ["1.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_progress_file_has_the_time_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 50.0, 52.0])
    monkeypatch.setattr("trainer.runtime.progress.time.monotonic", lambda: next(times))
    progress = Progress(Rank.from_env(_orch(tmp_path)), steps=9)
    assert progress.eta_s(0) is None
    for step in range(3):  # the first one compiles
        progress.write("step", step)
    record = json.loads((tmp_path / "attempt-1" / "n1" / "progress" / "1.json").read_text())
    assert (record["step_s"], record["eta_s"]) == (2.0, 14.0)
    assert progress.eta_s(9) == 0.0


def test_progress_that_cannot_be_written_warns_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "attempt-1").write_text("a file where a folder must be")
    progress = Progress(Rank.from_env(_orch(tmp_path)), steps=9)
    progress.write("init", 0)
    progress.write("step", 1)
    assert capsys.readouterr().err.count("WARNING: rank 1: no more progress is written") == 1


def test_newest_of_many_steps_is_written_by_a_thread_and_other_phases_at_once(tmp_path: Path) -> None:
    progress = Progress(Rank.from_env(_orch(tmp_path)), steps=9, in_background=True)
    path = tmp_path / "attempt-1" / "n1" / "progress" / "1.json"

    def written() -> tuple[str, int]:
        record = json.loads(path.read_text())
        return record["phase"], record["step"]

    progress.write("init", 0)
    for step in range(5):
        progress.write("step", step)
        assert written()[0] == "step"
    inode = path.stat().st_ino
    until(lambda: written() == ("step", 4), awaited="the newest step in the file")
    assert path.stat().st_ino != inode
    progress.write("step", 5)
    progress.write("save", 6)
    assert written() == ("save", 6)


def test_outside_orch_no_progress_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Progress(Rank.from_env({}), steps=9).write("init", 0)
    assert list(tmp_path.iterdir()) == []


def _report(
    problem: str = "", value: str = "cpu", node: str = "", *, device: str = "", machine: str = "a"
) -> dict[str, str]:
    return {"problem": problem, "value": value, "node": node, "device": device, "machine": machine}


@pytest.mark.parametrize(
    ("reports", "missing", "problem"),
    [
        ([_report(), _report(), _report()], "", ""),
        ([_report(), None, _report()], "2/3 ranks ready after 5 s; missing: rank 1", ""),
        ([_report(), None, None], "1/3 ranks ready after 5 s; missing: rank 1-2", ""),
        ([_report(), _report("no card", "", "n7"), _report()], "", "rank 1: no card (on n7)"),
        ([_report(), _report("no card"), None], "", "rank 1: no card"),
        ([_report(value="cuda"), _report(), _report()], "", "cuda on rank 0; cpu on rank 1-2"),
        ([_report(device="C=0 x"), _report(device="C=1 y"), _report(device="C=0 x", machine="b")], "", ""),
        ([_report(device="C=0 x"), _report(device="C=0 y"), _report(), _report()], "", ""),
        (
            [_report(node="n0", device="C=0 x")] * 2,
            "",
            "rank 0-1 (on n0) see one device only, C=0, and cannot share it: ",
        ),
    ],
)
def test_missing_failed_and_differing_ranks_are_named(
    reports: list[dict[str, str] | None], missing: str, problem: str
) -> None:
    present = {rank: report for rank, report in enumerate(reports) if report is not None}
    verdict = verdict_of(present, len(reports), 5.0)
    assert missing in verdict["missing"]
    assert problem in verdict["problem"]
    assert bool(verdict["missing"]) == bool(missing)
    assert bool(verdict["problem"]) == bool(problem)


@pytest.mark.parametrize(("ranks", "text"), [([0], "0"), ([0, 1, 2], "0-2"), ([0, 2, 3, 7], "0,2-3,7"), ([], "")])
def test_consecutive_ranks_are_folded(ranks: list[int], text: str) -> None:
    assert fold(ranks) == text
