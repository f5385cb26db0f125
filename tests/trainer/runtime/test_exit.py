"""The exit of a failed rank, alone or with all others, and the errors of the ranks that it leaves in a collective."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.grounds.trainings import NO_PREEMPTION, TINY
from trainer import run_rank
from trainer.checkpoint.manager import Checkpoints
from trainer.config.config import TrainConfig
from trainer.config.load import load_config
from trainer.errors import StorageError, TrainerError, UserError, report, write_error_file
from trainer.runtime.exit import exit_on_unexpected_errors, limit
from trainer.runtime.rank import Rank
from trainer.runtime.rendezvous import Failure, Rendezvous
from trainer.runtime.watchdog import Watchdog
from trainer.train import Trainer

GLOO = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242")


class Ended(BaseException):
    """Raised instead of the exit of the process."""


@pytest.fixture(autouse=True)
def _exit_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(code: int) -> NoReturn:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setattr("faulthandler.enable", lambda: None)


def _env(rank: int, port: int, folder: Path) -> dict[str, str]:
    rank_env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**rank_env, **rendezvous, "TORCHELASTIC_ERROR_FILE": str(folder / f"{rank}.json")}


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture
def rendezvous(tmp_path: Path) -> list[Rendezvous]:
    """The rendezvous of two ranks in this process; rank 0 hosts the store."""
    port = _unused_port()
    envs = [_env(rank, port, tmp_path) for rank in (0, 1)]
    return [Rendezvous.open(Rank.from_env(env), env, 30.0) for env in envs]


def _recorded(folder: Path, rank: int) -> tuple[str, str]:
    message = json.loads((folder / f"{rank}.json").read_text())["message"]
    return message["message"], message["extraInfo"]["kind"]


class Session:
    """Rank 1 of 2, whose training raises an error; `calls` has its calls after that, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, error: TrainerError) -> None:
        self.folder, self.calls, self.uploaded = folder, list[object](), threading.Event()
        fails = SimpleNamespace(
            run=lambda: self._fail(error),
            batches=SimpleNamespace(close=lambda: self.calls.append("batches")),
            saver=SimpleNamespace(finish=lambda *, alone: self.calls.append("save alone" if alone else "save")),
            metrics=SimpleNamespace(close=self._report),
        )
        rendezvous = SimpleNamespace(report_failure=lambda failure: self.calls.append((failure, *_recorded(folder, 1))))
        accelerator = SimpleNamespace(name="cpu", precisions=lambda: ("fp32",))
        group = SimpleNamespace(
            close=self._leave, set_timeout=None, accelerator=accelerator, gather_bytes=lambda data: [data]
        )
        monkeypatch.setattr(run_rank, "Trainer", lambda *_: fails)
        monkeypatch.setattr(run_rank, "initialise", lambda *_, **__: group)
        monkeypatch.setattr(Rendezvous, "open", lambda *_: rendezvous)
        monkeypatch.setattr(run_rank, "CLOSE_S", 0.2)

    def run(self) -> None:
        run_rank.run_rank(TrainConfig(), _env(1, 1, self.folder), SimpleNamespace())  # type: ignore[arg-type]

    def _fail(self, error: TrainerError) -> NoReturn:
        raise error

    def _report(self, code: int) -> None:
        self.calls.append(("reporters", code))
        if not self.uploaded.wait(60):
            self.calls.append("waited for the upload")

    def _leave(self, code: int) -> NoReturn:
        self.calls.append(("group", code))
        raise Ended(code)


def test_rank_that_fails_alone_reports_it_and_exits_without_its_group_or_an_upload(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(monkeypatch, tmp_path, UserError("token 4711"))
    with pytest.raises(Ended, match="2"):
        session.run()
    session.uploaded.set()
    failure = (Failure("token 4711", "config", 2), "token 4711", "config")
    assert session.calls == [failure, "save alone", ("reporters", 2)]  # the error file was written before the report
    assert capsys.readouterr().err == "rank 1: error: token 4711\n"


def test_agreed_error_is_in_every_ranks_error_file_and_all_exit_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(monkeypatch, tmp_path, StorageError.agreed("rank 0: disk full"))
    session.uploaded.set()
    with pytest.raises(Ended, match="1"):
        session.run()
    assert session.calls == ["batches", "save", ("reporters", 1), ("group", 1)]
    assert capsys.readouterr().err == ""
    assert _recorded(tmp_path, 1) == ("rank 0: disk full", "storage")


def test_each_part_of_the_start_has_the_whole_time_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One timer for all of it would fire in a healthy rank whose node then counts as hanging."""
    events: list[str] = []
    for owner, name in (
        (run_rank, "initialise"),
        (run_rank, "Trainer"),
        (Checkpoints, "resume"),
        (Trainer, "_begin"),
    ):
        original = getattr(owner, name)

        def recording(*args: Any, name: str = name, original: Any = original, **more: Any) -> Any:  # any function
            events.append(name)
            return original(*args, **more)

        monkeypatch.setattr(owner, name, recording)
    monkeypatch.setattr(Watchdog, "begin_phase", lambda _, phase: events.append(phase))
    config = load_config(words=[*TINY, "steps=1", f"out={tmp_path / 'out'}"])
    with pytest.raises(Ended, match="0"):
        run_rank.run_rank(config, {}, NO_PREEMPTION)
    parts = ["init", "initialise", "init", "Trainer", "init", "resume", "init", "_begin", "step"]
    assert events[: len(parts)] == parts


def test_unwritable_error_file_hides_no_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "missing" / "1.json"
    write_error_file({"RANK": "1", "TORCHELASTIC_ERROR_FILE": str(path)}, "disk full", kind="storage")
    assert capsys.readouterr().err == f"WARNING: rank 1: cannot write {path}: {os.strerror(errno.ENOENT)}\n"


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), text)


def test_log_on_a_full_disk_does_not_keep_a_rank_from_exiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise the interpreter would tear down a live process group."""
    monkeypatch.setattr(sys, "stderr", FullDisk())
    assert report(StorageError("disk full"), {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "0.json")}) == 1
    assert _recorded(tmp_path, 0) == ("disk full", "storage")
    exit_on_unexpected_errors()
    assert _raise_unexpected(1, ZeroDivisionError("by zero"), monkeypatch, tmp_path) == 1
    assert _recorded(tmp_path, 1) == ("ZeroDivisionError: by zero", "code")


@contextlib.contextmanager
def _in_thread(act: Any) -> Iterator[threading.Thread]:  # any function
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    yield thread
    thread.join(30)
    assert not thread.is_alive()


def test_ranks_meet_whose_torchruns_have_counted_their_restarts_differently(tmp_path: Path) -> None:
    port = _unused_port()
    envs = [{**_env(rank, port, tmp_path), "TORCHELASTIC_RESTART_COUNT": str(rank)} for rank in (0, 1)]
    first, second = (Rendezvous.open(Rank.from_env(env), env, 30.0) for env in envs)
    first.store.set("stage", "reached")
    second.store.wait(["stage"], timedelta(seconds=20))


@pytest.mark.parametrize(("attempt", "is_found"), [("2", True), ("1", False)])
def test_rank_of_an_earlier_attempt_is_not_found_by_the_next_one_at_the_same_port(
    tmp_path: Path, attempt: str, *, is_found: bool
) -> None:
    port = _unused_port()
    envs = [{**_env(rank, port, tmp_path), "ORCH_ATTEMPT": number} for rank, number in enumerate(("2", attempt))]
    first, second = (Rendezvous.open(Rank.from_env(env), env, 30.0) for env in envs)
    second.store.set("device/1", "ready")
    assert first.store.check(["device/1"]) is is_found


def test_problem_of_one_rank_is_agreed_on_by_all_and_rank_0_exits_first(
    rendezvous: list[Rendezvous],
) -> None:
    caught: list[TrainerError] = []

    def rank_1() -> None:
        try:
            rendezvous[1].check_all("device", "no card", "")
        except UserError as exc:
            caught.append(exc)
        rendezvous[1].leave(after_rank_0=True)

    with _in_thread(rank_1) as thread:
        with pytest.raises(UserError, match=r"^rank 1: no card$") as raised:
            rendezvous[0].check_all("device", "", "cpu")
        thread.join(0.2)
        assert thread.is_alive()  # rank 0 may still have to write
        rendezvous[0].leave()
    assert [(str(error), error.is_agreed) for error in (raised.value, *caught)] == [("rank 1: no card", True)] * 2


def _raise_unexpected(rank: int, error: Exception, monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / f"{rank}.json"))
    with pytest.raises(Ended) as ended:
        sys.excepthook(type(error), error, None)
    code: int = ended.value.args[0]
    return code


def test_lost_connection_is_reported_with_the_error_of_the_peer(
    rendezvous: list[Rendezvous], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rendezvous[0].store.set("present", "[0, 1]")
    exit_on_unexpected_errors(rendezvous[1])
    assert _raise_unexpected(1, ZeroDivisionError("by zero"), monkeypatch, tmp_path) == 1
    assert capsys.readouterr().err == "ZeroDivisionError: by zero\n"
    exit_on_unexpected_errors(rendezvous[0])
    assert _raise_unexpected(0, GLOO, monkeypatch, tmp_path) == 1
    assert capsys.readouterr().err == "error: rank 1: ZeroDivisionError: by zero\n"
    assert _recorded(tmp_path, 0) == ("rank 1: ZeroDivisionError: by zero", "code")
    assert "Connection closed by peer" in (tmp_path / "0.json").read_text()

    rendezvous[1].report_failure(Failure("token 4711", "config", 2))
    assert _raise_unexpected(0, GLOO, monkeypatch, tmp_path) == 2
    assert capsys.readouterr().err == "error: rank 1: token 4711\n"


def test_lost_connection_without_a_reported_cause_keeps_its_traceback(
    rendezvous: list[Rendezvous], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainer.runtime.rendezvous.CAUSE_TIMEOUT_S", 0.1)
    exit_on_unexpected_errors(rendezvous[1])
    assert _raise_unexpected(1, GLOO, monkeypatch, tmp_path) == 1
    assert capsys.readouterr().err == f"RuntimeError: {GLOO}\n"
    assert _recorded(tmp_path, 1) == (f"RuntimeError: {GLOO}", "network")


def test_rank_that_lost_the_store_of_rank_0_refers_to_rank_0_in_one_line(
    rendezvous: list[Rendezvous], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch prints no location in its C++ code either."""
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)  # torch writes to the descriptor
    exit_on_unexpected_errors(replace(rendezvous[1], address=f"127.0.0.1:{_unused_port()}"))
    assert _raise_unexpected(1, GLOO, monkeypatch, tmp_path) == 1
    message = f"rank 0 has ended or is unreachable, see its last lines for the reason: RuntimeError: {GLOO}"
    assert _recorded(tmp_path, 1) == (message, "network")
    assert capfd.readouterr().err == f"rank 1: error: {message}\n"


def test_group_that_does_not_start_ends_the_rank_with_a_message_though_a_library_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rendezvous: list[Rendezvous]
) -> None:
    ended, codes = threading.Event(), list[int]()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    for key, value in _env(1, 1, tmp_path).items():
        monkeypatch.setenv(key, value)
    with limit(600.0, "not reached", rendezvous[1]):
        pass
    with limit(0.001, "the group did not start", rendezvous[1]):
        assert ended.wait(60)
    assert codes == [1]
    assert _recorded(tmp_path, 1) == ("the group did not start", "network")
    assert json.loads(rendezvous[0].store.get("failure"))["message"] == "rank 1: the group did not start"
