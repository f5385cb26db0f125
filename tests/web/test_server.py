"""The server of `orch web`: for one browser on this machine, GET alone; text of runs is data on every page."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import app
from orchestrator.cli.failure import failure_lines
from orchestrator.cli.overview_text import values
from orchestrator.cli.top_frame import COLUMNS, rows
from orchestrator.errors import UsageError
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.records.store import Store
from orchestrator.run import Failure, RunRecord, RunState
from orchestrator.web.feeds import Reading, Source
from orchestrator.web.files import FILES, PAGE, page_file, whole_page
from orchestrator.web.run_page import LogFilter, Wording
from orchestrator.web.server import WebServer, _log_filter
from tests.until import until

RUN = "a-20261129-101500-0abc"
SCRIPT = "</script><script>alert(1)</script>"
WORDING = Wording(values, rows, tuple(COLUMNS), failure_lines)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A server for one run, whose launch has failed."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    now = datetime(2026, 11, 29, 10, 15, tzinfo=timezone.utc).isoformat()
    failure = Failure(FailureClass.CONFIG, Retry.NEVER, is_diagnosed=True, cause=SCRIPT, confidence="high")
    record = RunRecord(RUN, "ssh", RunState.FAILED, now, {}, {}, {}, {}, ended=now, message=SCRIPT, failure=failure)
    Store(tmp_path).create(RunRecord.from_json({**record.to_json(), "note": SCRIPT}))
    made = WebServer(Store(tmp_path), WORDING)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.close()
    thread.join()


def _request(
    server: WebServer, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers={name.capitalize(): value for name, value in headers.items()})
    return connection.getresponse(), connection


def _get(server: WebServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, Mapping[str, str]]:
    answer, connection = _request(server, path, method, **headers)
    try:
        return answer.status, answer.read().decode(), dict(answer.headers)
    finally:
        connection.close()


def _cookie(server: WebServer) -> str:
    _, _, headers = _get(server, f"/?token={server.access.token}")
    return headers["Set-Cookie"].partition(";")[0]


def _events(server: WebServer, path: str, cookie: str) -> Iterator[tuple[str, Any]]:
    """The server-sent events of a page, until it ends them."""
    answer, connection = _request(server, path, cookie=cookie)
    assert answer.headers["Content-Type"] == "text/event-stream"
    name = ""
    try:
        while line := answer.readline().decode().rstrip("\n") or " ":
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))
                if name == "end":
                    return
    finally:
        connection.close()


def test_token_is_exchanged_once_for_a_cookie(server: WebServer) -> None:
    path = f"/run/{RUN}"
    assert re.fullmatch(rf"http://127\.0\.0\.1:{server.server_port}{path}\?token=[\w-]{{43}}", server.url(path))
    for wrong in ("", "x", server.access.token[:-1], f"{server.access.token}x", "%C3%A9"):
        status, text, headers = _get(server, f"{path}?token={wrong}")
        assert (status, "Set-Cookie" in headers) == (403, False)
        assert "orch web has printed" in text
    status, text, headers = _get(server, f"{path}?token={server.access.token}")
    assert status == 200
    assert f'content="0;url={path}"' in text
    cookie, *flags = headers["Set-Cookie"].split("; ")
    assert cookie.startswith(f"orch-web-{server.server_port}=")
    assert sorted(flags) == ["HttpOnly", "Path=/", "SameSite=Strict"]
    assert _get(server, f"{path}?token={server.access.token}")[0] == 403  # as of a second browser
    assert _get(server, path, cookie=cookie)[0] == 200
    assert _get(server, f"{path}?token=x", cookie=cookie)[0] == 200  # the same browser, which loads the URL again


@pytest.mark.parametrize("path", ["/", f"/run/{RUN}", "/app.js", "/events/runs", f"/events/run/{RUN}", "/compare"])
def test_nothing_is_served_without_the_cookie(server: WebServer, path: str) -> None:
    name = server.cookie
    for cookie in ("", f"{name}=", f"{name}=x", f"{name}={server.access.token}", "=;;", f'{name}="x'):
        status, text, _ = _get(server, path, cookie=cookie)
        assert (status, RUN in text) == (403, False), cookie


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:9000", 200),  # of a port that ssh -L forwards
        ("localhost:80", 200),
        ("[::1]:80", 200),
        ("[::1]", 200),
        ("evil.example", 421),
        ("evil.example:80", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost:80:80", 421),
        ("localhost@evil.example", 421),
        ("", 421),
    ],
)
def test_host_names_of_other_sites_are_refused(server: WebServer, host: str, status: int) -> None:
    cookie = _cookie(server)
    assert _get(server, "/", cookie=cookie, host=host)[0] == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "MKCOL"])
def test_get_alone_is_answered(server: WebServer, method: str) -> None:
    status, _, _ = _get(server, "/", method, cookie=_cookie(server))
    assert status == (501 if method == "MKCOL" else 405)


def test_pages_load_nothing_from_elsewhere_and_are_small(server: WebServer) -> None:
    cookie, size = _cookie(server), 0
    for path in ("/", *FILES):
        status, text, headers = _get(server, path, cookie=cookie)
        assert status == 200
        size += len(text.encode())
        assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", text)
    assert size < 100_000


@pytest.mark.parametrize(
    "path",
    ["/favicon.ico", "/events/", "/events/run/", "/events/run/../x", "/events/run/b-20261129-101500-0abc", "/static/x"],
)
def test_unknown_pages_are_not_found(server: WebServer, path: str) -> None:
    assert _get(server, path, cookie=_cookie(server))[0] == 404


def test_run_that_failed_to_start_is_shown_and_ends(server: WebServer) -> None:
    cookie = _cookie(server)
    shown = dict(_events(server, f"/events/run/{RUN}", cookie))
    assert set(shown) == {"record", "overview", "curves", "log", "end"}
    assert (shown["record"]["state"], shown["record"]["note"]) == ("FAILED", SCRIPT)
    assert any(SCRIPT in line for line in shown["record"]["diagnosis"])
    assert shown["overview"]["verdict"] == f"failed after 0s: {SCRIPT}"
    assert shown["log"]["lines"] == []
    [listed] = next(value for name, value in _events(server, "/events/runs", cookie) if name == "runs")["runs"]
    assert (listed["id"], listed["verdict"], listed["step"]) == (RUN, f"failed after 0s: {SCRIPT}", None)


def test_viewers_get_only_what_has_changed(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three viewers of one feed: each value once, and one reading for all."""
    value, readings = {"n": 0}, [0]

    def read() -> Reading:
        readings[0] += 1
        return Reading(dict(value), is_final=value["n"] == 2)

    monkeypatch.setattr(server, "viewed", lambda *_: {"a": ("a", lambda: Source(read, 0.01))})
    cookie = _cookie(server)
    got: list[list[Any]] = [[], [], []]
    viewers = [
        threading.Thread(target=lambda each=each: each.extend(_events(server, "/events/x", cookie))) for each in got
    ]
    for viewer in viewers:
        viewer.start()
    until(lambda: server.feeds._feeds and server.feeds._feeds["a"].viewers == 3, awaited="the viewers")
    for number in (1, 2):
        count = readings[0]
        until(lambda: readings[0] > count + 3 or number == 2, awaited="more readings")
        value["n"] = number
        until(lambda: json.loads(server.feeds._feeds["a"].text or "{}") == value, awaited="the value")
    for viewer in viewers:
        viewer.join()
    # a viewer may have begun after a change, but none gets a value twice
    for each in got:
        assert each[-2:] == [("a", {"n": 2}), ("end", {})]
        assert len({value["n"] for name, value in each if name == "a"}) == len(each) - 1


def test_data_of_a_whole_page_cannot_become_markup() -> None:
    page = whole_page({"record": {"id": SCRIPT, "note": "<!--"}, "log": {"lines": [[0, "n0", 0, "out", SCRIPT]]}})
    assert page.count("<script") == 3 + page_file(PAGE).count("<script") - 2
    assert "alert(1)</script>" not in page
    data = re.search(r'<script type="application/json" id="values">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["record"]["id"] == SCRIPT
    assert "default-src 'none'; script-src 'sha256-" in page
    assert not re.findall(r"(?:src|href)=\"/(?!\")", page)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, LogFilter()),
        ({"lines": ["50"], "rank": ["0-3"], "text": ["a.b"]}, LogFilter(50, "0-3", "a.b")),
        ({"lines": ["99999999999999999999"]}, LogFilter()),
        ({"lines": ["9999"]}, LogFilter(1000)),
        ({"lines": ["-1"]}, LogFilter()),
        ({"lines": ["0"]}, LogFilter()),
        ({"lines": ["\u0661"]}, LogFilter()),
    ],
)
def test_filter_of_the_log(query: Mapping[str, list[str]], wanted: LogFilter) -> None:
    assert _log_filter(query) == wanted
    assert wanted.as_filter().pattern == (r"a\.b" if wanted.text else None)


def test_port_in_use_and_wrong_files_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--port {port}: .*in use"):
            WebServer(Store(tmp_path), WORDING, port)
    refused: Callable[..., str] = lambda *words: (app.run(["web", *words]), capsys.readouterr().err)[1]  # noqa: E731
    assert "is no folder" in refused("--export", str(tmp_path / "no" / "x.html"))
    assert "no regular file" in refused("--export", "/dev/null")
    assert "exclude each other" in refused("--export", "x.html", "--port", "1")
