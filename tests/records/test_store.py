"""The records of runs, and the store that finds them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunNotFound, UsageError
from orchestrator.plan.plan import LaunchPlan, NodePlan, Sweep, to_json
from orchestrator.records.files import write_file
from orchestrator.records.home import home
from orchestrator.records.run_folder import RunFolder, SupervisorProcess
from orchestrator.records.store import Store
from orchestrator.run import Program, RankExit, RunRecord, RunState
from orchestrator.transports.ssh.route import PlannedSsh


def _record(run_id: str, created: str = "2026-01-02T03:04:05+00:00") -> RunRecord:
    return RunRecord(run_id, "ssh", RunState.PENDING, created, {}, {}, {}, {})


def _with_unknown_fields(data: Any) -> Any:  # JSON of any kind
    """The data with an unknown field in each object, as another version may have stored it."""
    if isinstance(data, list):
        return [_with_unknown_fields(entry) for entry in data]
    if isinstance(data, dict):
        return {**{key: _with_unknown_fields(value) for key, value in data.items()}, "invented_later": 1}
    return data


def test_fields_of_another_version_are_ignored_in_every_object_and_kept_in_the_record(tmp_path: Path) -> None:
    record = replace(_record("a-20260102-030405-0abc"), exit=RankExit("n0", 3, None, "SIGKILL", "out of memory"))
    folder = Store(tmp_path).create(record)
    node = NodePlan("n0", "n0", 0, range(2), {}, None, None, "python3", "/w")
    ssh = {"config": None, "proxy_jump": None, "host_keys": "strict", "fanout": 64, "connect_timeout_s": 10.0}
    plan = LaunchPlan(
        *(record.id, 1, "ssh", "ssh", "a", (node,), 1, 2, False, Program("executable", ("x",)), None, "", ssh, {}),
        sweep=Sweep("s", (record.id,)),
    )
    for file, data in ((folder.record_file, record.to_json()), (folder.path / "plan" / "plan.json", to_json(plan))):
        write_file(file, json.dumps(_with_unknown_fields(data)))
    assert Store(tmp_path).all() == [folder]
    assert folder.update(message="changed").exit == record.exit
    assert json.loads(folder.record_file.read_text())["invented_later"] == 1
    restored = folder.read_plan()
    # `defaults` has variables by name, not fields
    stored = (replace(node, defaults={"invented_later": 1}),)  # type: ignore[dict-item]
    assert (restored.nodes, restored.program, restored.sweep) == (stored, plan.program, plan.sweep)
    assert PlannedSsh.of(restored.ssh) == PlannedSsh.of(ssh)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"id": "a', "is damaged: Unterminated string"),
        ("[]", "is damaged: not a JSON object"),
        (
            '{"id": "a", "versions": {"orch": "9.9"}}',
            "RunRecord has no code, created, .* written by orch 9.9, and this",
        ),
        (None, "No such file"),
    ],
)
def test_unreadable_record_is_reported_with_its_reason_and_the_next_step(
    tmp_path: Path, text: str | None, why: str
) -> None:
    folder = Store(tmp_path).create(_record("a-20260102-030405-0abc"))
    folder.record_file.unlink()
    if text is not None:
        folder.record_file.write_text(text)
    with pytest.raises(RunNotFound, match=why) as caught:
        folder.read()
    assert "orch stop a-20260102-030405-0abc -i INVENTORY" in caught.value.hint


def test_store_is_private_and_finds_by_id_prefix_name_and_latest(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    for run_id in ("a-20260102-030405-0abc", "a-b-20260102-030406-0abc", "a-20260102-030407-0abd"):
        store.create(_record(run_id))
    folder = store.find("a-20260102-030405-0abc")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.record_file.stat().st_mode) == 0o600
    assert store.find("a-b-2026").path.name == "a-b-20260102-030406-0abc"
    assert store.find("a").path.name == "a-20260102-030407-0abd"
    assert store.find("latest").path.name == "a-20260102-030407-0abd"
    with pytest.raises(RunNotFound, match="matches 2 runs"):
        store.find("a-20260102")
    with pytest.raises(RunNotFound, match="no run 'x'"):
        store.find("x")


def test_latest_of_runs_of_the_same_second_is_the_one_created_last(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create(_record("a-20260102-030405-ffff", "2026-01-02T03:04:05.100000+00:00"))
    store.create(_record("a-20260102-030405-0000", "2026-01-02T03:04:05.900000+00:00"))
    assert store.find("latest").path.name == "a-20260102-030405-0000"


def test_runs_of_different_seconds_are_found_and_ordered_without_reading_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    ids = ["b-20260102-030405-ffff", "a-20260102-030406-0000", "a-20260102-030407-0000"]
    for run_id in reversed(ids):
        store.create(_record(run_id))
    monkeypatch.setattr(RunFolder, "read", lambda _: pytest.fail("a record was read"))
    assert [folder.path.name for folder in store.all()] == ids
    assert [store.find(name).path.name for name in ("latest", "b", ids[1])] == [ids[2], ids[0], ids[1]]


def test_missing_run_error_names_the_command_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="no run in") as caught:
        Store(tmp_path).find("latest")
    assert "orch ssh-launch" in caught.value.hint


@pytest.mark.processes
def test_change_of_a_record_is_not_undone_by_another_process(tmp_path: Path) -> None:
    folder = Store(tmp_path).create(_record("a-20260102-030405-0abc"))
    program = (
        "import sys; from pathlib import Path; from orchestrator.records.run_folder import RunFolder\n"
        "for number in range(500): RunFolder(Path(sys.argv[1])).update(message=str(number))"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(folder.path)]) as process:
        number = 0
        while process.poll() is None:
            number += 1
            folder.update(slurm_job=str(number))
            assert folder.read().slurm_job == str(number)
    assert process.returncode == 0
    assert (folder.read().message, folder.read().slurm_job) == ("499", str(number))


def test_lock_of_a_stopped_process_delays_a_change_of_the_record_only_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.records.run_folder.RECORD_WAIT_S", 0.1)
    folder = Store(tmp_path).create(_record("a-20260102-030405-0abc"))
    with (folder.path / "run.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        folder.update(message="changed")
    assert folder.read().message == "changed"


def test_supervisor_is_known_by_its_lock(tmp_path: Path) -> None:
    folder = Store(tmp_path).create(_record("a-20260102-030405-0abc"))
    assert folder.supervisor() is None
    with folder.supervision() as is_ours:
        assert is_ours
        assert folder.supervisor() == SupervisorProcess(os.getpid(), socket.gethostname())
        assert str(folder.supervisor()) == f"pid {os.getpid()} on {socket.gethostname()}"
        (folder.path / "supervisor.lock").write_text("")
        assert str(folder.supervisor()) == "one that is starting"
    assert folder.supervisor() is None


def test_path_traversal_finds_no_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    store.create(_record("a-20260102-030405-0abc"))
    with pytest.raises(RunNotFound):
        store.find("../../etc")


def test_home_is_orch_home_or_in_the_users_home(tmp_path: Path) -> None:
    assert home({"ORCH_HOME": str(tmp_path)}) == tmp_path
    assert home({}) == Path.home() / ".orch"


def test_disk_without_file_locks_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre without `-o flock` (ENOSYS), NFS without lockd (ENOLCK)."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UsageError, match="has no file locks") as caught:
        Store(tmp_path).create(_record("a-20260102-030405-0abc"))
    assert "ORCH_HOME" in caught.value.hint
    assert not Store(tmp_path).all()


@pytest.mark.parametrize("sync", [True, False])
def test_record_is_flushed_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sync: bool
) -> None:
    flushed: list[tuple[str, str]] = []

    def fsync(descriptor: int) -> None:
        flushed.append((Path(f"/proc/self/fd/{descriptor}").read_text("utf-8"), target.read_text("utf-8")))

    target = tmp_path / "run.json"
    target.write_text("old")
    monkeypatch.setattr(os, "fsync", fsync)
    write_file(target, "new", sync=sync)
    assert flushed == [("new", "old")] * sync  # after the last byte, before the new name
    assert target.read_text("utf-8") == "new"
