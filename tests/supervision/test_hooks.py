"""Hooks are run when the state of a run changes, once for each state, by a real program and a real HTTP server."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestrator.failure_class import FailureClass, Retry
from orchestrator.inventory.hooks import Hook
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import Failure, Program, Request, RunRecord, RunState
from orchestrator.supervision.hooks import running_hooks
from orchestrator.supervision.restart import OnRecord
from tests.until import until
from tests.verdict.test_overview import node

PATH_OF_URL = "T0K3N"
RUN = "here-20260102-030405-0abc"


@contextmanager
def _server(*answers: int | str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server with these answers, statuses or addresses of redirects; yields its URL and the bodies that it gets."""
    bodies: list[dict[str, Any]] = []
    left = iter(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = next(left)
            assert self.headers["Content-Type"] == "application/json"
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answer if isinstance(answer, int) else 307)
            self.send_header("Location", str(answer))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hooks/{PATH_OF_URL}", bodies
        finally:
            server.shutdown()
            thread.join()


def _run(tmp_path: Path, *hooks: Hook) -> RunFolder:
    """The folder of a run with these hooks that has just started."""
    inventory = Inventory(name="here", nodes=(Node(name="n0"), Node(name="n1")), hooks=hooks)
    plan = make_plan(inventory, Request("ssh", Program("executable", ("true",))), run_id=RUN, bundle="b")
    folder = RunFolder(tmp_path / "run")
    folder.write(RunRecord(RUN, "ssh", RunState.STARTING, "", {}, {}, {}, {}, started=True, note="night"))
    folder.write_plan(plan)
    return folder


def _change(folder: RunFolder, on_record: OnRecord, state: RunState, **fields: Any) -> None:
    on_record(folder.change(lambda record: replace(record, state=state, **fields)), ())
    on_record(folder.read(), ())  # the next round of the supervisor


def _events(folder: RunFolder) -> list[str]:
    lines = (folder.path / "events.jsonl").read_text("utf-8").splitlines()
    return [f"{event['event']}: {event['text']}" for event in map(json.loads, lines)]


def test_command_gets_each_state_once_in_order_with_the_facts_of_the_run(tmp_path: Path) -> None:
    script = 'printf "%s %s %s\\n" "$ORCH_STATE" "$ORCH_ATTEMPT" "$ORCH_MESSAGE" >>"$1"; cat >>"$2"; echo >>"$2"; echo printed'
    shown, facts = tmp_path / "shown", tmp_path / "facts"
    hook = Hook(on=("STARTING", "RUNNING", "FAILED"), command=("sh", "-c", script, "hook", str(shown), str(facts)))
    folder = _run(tmp_path, hook)
    failure = Failure(FailureClass.NODE, Retry.ELSEWHERE, is_diagnosed=True, cause="a cable", remedy=("plug it in",))
    with running_hooks(folder, folder.read_plan().hooks) as on_record:
        on_record(folder.read(), ())
        _change(folder, on_record, RunState.RUNNING)
        _change(folder, on_record, RunState.STARTING, attempt=2)
    with running_hooks(folder, folder.read_plan().hooks) as on_record:  # of another owner, after `orch attach`
        on_record(folder.read(), ())
        _change(folder, on_record, RunState.FAILED, message="n1 is gone\nlast lines", failure=failure)
    assert shown.read_text().splitlines() == [
        f"STARTING 1 run {RUN} is STARTING",
        f"RUNNING 1 run {RUN} is RUNNING",
        f"STARTING 2 run {RUN} is STARTING, attempt 2",
        f"FAILED 2 run {RUN} is FAILED, attempt 2: n1 is gone",
    ]
    last = json.loads(facts.read_text().splitlines()[-1])
    assert (last["run"], last["state"], last["attempt"], last["nodes"]) == (RUN, "FAILED", 2, ["n0", "n1"])
    assert (last["message"], last["note"]) == ("n1 is gone\nlast lines", "night")
    assert (last["failure"]["kind"], last["failure"]["remedy"]) == ("node", ["plug it in"])
    assert folder.hook_log_file.read_text().splitlines() == ["printed"] * 4
    assert folder.hook_log_file.stat().st_mode & 0o777 == 0o600
    assert _events(folder)[-1] == "hook-ran: command sh: FAILED, attempt 2"


def test_what_is_wrong_is_reported_when_it_begins_and_when_it_is_over_also_by_another_owner(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    script = 'echo "$ORCH_CONDITION $ORCH_STATE $ORCH_MESSAGE" >>"$1"'
    command = ("sh", "-c", script, "hook", str(shown))
    folder = _run(tmp_path, Hook(on=("SLOW", "DIFFERS", "NOT_FINITE", "RESTARTED"), command=command))
    folder.update(state=RunState.RUNNING, reported_state="RUNNING 1")
    bad = node("n1", (1,), progress={1: {"step": 7, "loss": float("nan")}})
    with running_hooks(folder, folder.read_plan().hooks) as on_record:
        on_record(folder.read(), [node("n0", (0,)), bad])
        on_record(folder.read(), [node("n0", (0,)), bad])
    folder.update(slow="rank 1 is 2 s late")
    with running_hooks(folder, folder.read_plan().hooks) as on_record:  # of another owner
        on_record(folder.read(), [node("n0", (0,)), bad])
        on_record(folder.read(), [node("n0", (0,)), node("n1", (1,))])
        _change(folder, on_record, RunState.STARTING, attempt=2, slow=None)  # the attempt has failed
        on_record(folder.read(), [node("n0", (0,))])
    assert shown.read_text().splitlines() == [
        f"NOT_FINITE RUNNING run {RUN}: the loss is not finite: rank 1, step 7: nan",
        f"SLOW RUNNING run {RUN}: a rank is slow: rank 1 is 2 s late",
        f"NOT_FINITE RUNNING run {RUN}: no longer: the loss is not finite",
        f" STARTING run {RUN} is STARTING, attempt 2",
    ]


@pytest.mark.parametrize(("tags", "states"), [((), ["DONE"]), (("big", "night"), ["DONE"]), (("small",), [])])
def test_hook_with_tags_is_for_runs_with_one_of_them(tmp_path: Path, tags: tuple[str, ...], states: list[str]) -> None:
    shown = tmp_path / "shown"
    shown.touch()
    folder = _run(tmp_path, Hook(tags=tags, command=("sh", "-c", 'echo "$ORCH_STATE" >>"$1"', "hook", str(shown))))
    folder.update(tags=("night",))
    with running_hooks(folder, folder.read_plan().hooks) as on_record:
        _change(folder, on_record, RunState.DONE)
    assert shown.read_text().splitlines() == states


def test_hook_whose_result_cannot_be_recorded_is_run_for_the_next_state(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    folder = _run(
        tmp_path, Hook(command=("sh", "-c", 'echo "$ORCH_STATE" >>"$1"', "hook", str(shown)), on=("STARTING", "DONE"))
    )
    (folder.path / "events.jsonl").mkdir()
    with running_hooks(folder, folder.read_plan().hooks) as on_record:
        on_record(folder.read(), ())
        _change(folder, on_record, RunState.DONE)
    assert shown.read_text().splitlines() == ["STARTING", "DONE"]


@pytest.mark.parametrize(
    ("answers", "requests", "event"),
    [
        ((200,), 1, "hook-ran: webhook of $CHAT: DONE, attempt 1"),
        ((503, 429, 204), 3, "hook-ran: webhook of $CHAT: DONE, attempt 1"),
        ((500, 500, 500), 3, "hook-failed: webhook of $CHAT: DONE, attempt 1: HTTP status 500 in attempt 3, the last"),
        ((404,), 1, "hook-failed: webhook of $CHAT: DONE, attempt 1: HTTP status 404"),
        (("http://127.0.0.1:1/",), 1, "hook-failed: webhook of $CHAT: DONE, attempt 1: HTTP status 307"),
    ],
)
def test_webhook_is_retried_if_that_may_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: tuple[int | str, ...], requests: int, event: str
) -> None:
    monkeypatch.setattr("orchestrator.supervision.delivery.RETRIES_AFTER_S", (0.0, 0.0))
    with _server(*answers) as (url, bodies):
        monkeypatch.setenv("CHAT", url)
        folder = _run(tmp_path, Hook(webhook_variable="CHAT"))
        with running_hooks(folder, folder.read_plan().hooks) as on_record:
            _change(folder, on_record, RunState.DONE)
    assert [body["text"] for body in bodies] == [f"run {RUN} is DONE"] * requests
    assert _events(folder) == [event]
    _assert_secret_is_nowhere(folder)


def test_url_is_in_no_file_of_the_run_if_nothing_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.supervision.delivery.RETRIES_AFTER_S", ())
    with _server() as (url, _):
        pass
    (tmp_path / "url").write_text(url)
    (tmp_path / "url").chmod(0o600)
    folder = _run(tmp_path, Hook(webhook_file=str(tmp_path / "url")))
    with running_hooks(folder, folder.read_plan().hooks) as on_record:
        _change(folder, on_record, RunState.STOPPED)
    [event] = _events(folder)
    assert event.endswith("STOPPED, attempt 1: no answer: Connection refused in attempt 1, the last")
    _assert_secret_is_nowhere(folder)


def _assert_secret_is_nowhere(folder: RunFolder) -> None:
    for path in filter(Path.is_file, folder.path.rglob("*")):
        assert PATH_OF_URL not in path.read_text("utf-8"), path


def test_hook_that_hangs_delays_neither_the_supervision_nor_other_hooks_and_is_killed(tmp_path: Path) -> None:
    hanging = Hook(command=("sh", "-c", "sleep 1000 & echo $! $$; wait"), timeout_s=1.0)
    fast = Hook(command=("touch", str(tmp_path / "touched")))
    folder = _run(tmp_path, hanging, fast)
    with running_hooks(folder, folder.read_plan().hooks) as on_record:
        _change(folder, on_record, RunState.DONE)
        until(folder.hook_log_file.exists, awaited="the first hook")
    assert (tmp_path / "touched").exists()
    events = _events(folder)
    assert "hook-failed: command sh: DONE, attempt 1: it was killed after 1 s" in events
    assert "hook-ran: command touch: DONE, attempt 1" in events
    for pid in map(int, folder.hook_log_file.read_text().split()):
        until(lambda pid=pid: not _runs(pid), awaited=f"the end of {pid}")  # type: ignore[misc]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_sendmail_and_apprise_are_programs_that_get_the_text_as_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sendmail", "apprise"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\n{{ echo "$@"; cat; }} >{tmp_path}/{name}.got\nexit 75\n')
        program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("orchestrator.inventory.hooks.sys.executable", str(tmp_path / "python"))
    (tmp_path / "urls").write_text(f"json://127.0.0.1/{PATH_OF_URL}\n")
    (tmp_path / "urls").chmod(0o600)
    folder = _run(tmp_path, Hook(email=("me@example.org", "root")), Hook(apprise_file=str(tmp_path / "urls")))
    failure = Failure(FailureClass.NODE, Retry.ELSEWHERE, is_diagnosed=True, cause="a cable", remedy=("plug it in",))
    with running_hooks(folder, folder.read_plan().hooks) as on_record:
        _change(folder, on_record, RunState.FAILED, message="n1 is gone\nTo: you@example.org", failure=failure)
    message = (tmp_path / "sendmail.got").read_text()
    arguments, _, message = message.partition("\n")
    assert arguments == "-i -t"
    head, _, body = message.partition("\n\n")
    assert "To: me@example.org, root" in head.splitlines()
    assert f"Subject: [orch] run {RUN} is FAILED: n1 is gone" in head.replace("\n ", " ").splitlines()
    assert "you@example.org" not in head
    assert "cause: a cable\nremedy: plug it in\n" in body
    arguments, _, body = (tmp_path / "apprise.got").read_text().partition("\n")
    assert arguments == f"--config {tmp_path}/urls --title run {RUN} is FAILED: n1 is gone"
    assert "cause: a cable\n" in body
    assert max(_events(folder)).endswith(f"it exited with 75; see {folder.hook_log_file}")
