"""The HTTP server of `orch web`: on the loopback interface, for one browser, which proves itself by a cookie; GET alone."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

from orchestrator.errors import UsageError, os_error_text
from orchestrator.node.run.run_id import RUN_ID
from orchestrator.records.store import Store
from orchestrator.web.feeds import Feeds, Source, changes
from orchestrator.web.files import FILES, PAGE, page_file
from orchestrator.web.run_page import MOST_LINES, LogFilter, RunList, RunPage, Wording

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""The host names of requests, with any port, as through `ssh -L`: other names that lead here are attempts at DNS rebinding."""
QUIET_S = 15.0
REQUEST_S = 30.0  # for the header of a request, and for a viewer that takes no data
MOST_CONNECTIONS = 200
MOST_COMPARED = 4
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# A page, because the cookie is SameSite=Strict: a redirect of a link in another site's page would not send it.
_ENTER = '<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={}"><title>orch</title>'

Viewed: TypeAlias = Mapping[str, tuple[object, Callable[[], Source]]]


class Access:
    """The token in the printed URL, which is valid once, and the secret of the cookie that it is exchanged for."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self._secret = secrets.token_urlsafe(32)
        self._is_used = False
        self._lock = threading.Lock()

    def exchange(self, token: str) -> str | None:
        """The secret of the cookie for the token; None if the token is wrong, or was used."""
        with self._lock:
            if self._is_used or not _equal(token, self.token):
                return None
            self._is_used = True
            return self._secret

    def admits(self, secret: str) -> bool:
        return _equal(secret, self._secret)


class WebServer(ThreadingHTTPServer):
    """Serves the runs of one store."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, store: Store, wording: Wording, port: int = 0) -> None:
        """
        Listen on the loopback interface, on a free port by default.

        Raises:
            UsageError: the port cannot be used.
        """
        self.access, self.feeds = Access(), Feeds()
        self._store, self._wording = store, wording
        self._list = RunList()
        self._pages: dict[str, RunPage] = {}
        self._pages_lock = threading.Lock()
        self.slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as exc:
            text = f"--port {port}: {os_error_text(exc)}"
            raise UsageError(text, hint="without --port, a free one is taken") from exc

    @property
    def cookie(self) -> str:
        """The name of the cookie; cookies are shared by all ports of a host."""
        return f"orch-web-{self.server_port}"

    def url(self, path: str = "/") -> str:
        return f"http://{ADDRESS}:{self.server_port}{path}?token={self.access.token}"

    def close(self) -> None:
        """End the viewers and the connections to nodes."""
        self.feeds.close()
        self.server_close()

    def viewed(self, path: str, query: Mapping[str, list[str]]) -> Viewed | None:
        """The sources of the page at a path below /events/; None if there is no such page."""
        kind, _, name = path.partition("/")
        if kind == "runs" and not name:
            return {"runs": ("runs", self._list.source)}
        if kind == "compare" and not name:
            pages = {run: self._page(run) for run in dict.fromkeys(query.get("run", ())[:MOST_COMPARED])}
            return {f"curves {run}": (("curves", run), page.curves) for run, page in pages.items() if page is not None}
        page = self._page(name) if kind == "run" else None
        if page is None:
            return None
        wanted = _log_filter(query)
        return {
            "record": (("record", name), page.record),
            "overview": (("overview", name), page.overview),
            "curves": (("curves", name), page.curves),
            "log": (("log", name, wanted), lambda: page.log(wanted)),
        }

    def _page(self, run: str) -> RunPage | None:
        """The page of a run by its whole id; None if none is recorded."""
        if RUN_ID.fullmatch(run) is None:
            return None
        folder = self._store.folder(run)
        if not folder.record_file.is_file():
            return None
        with self._pages_lock:
            return self._pages.setdefault(run, RunPage(folder, self._wording))


class Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    server: WebServer
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_S
    server_version, sys_version = "orch", ""

    def handle(self) -> None:
        """Answer the requests of a connection, if there are not too many others."""
        if not self.server.slots.acquire(blocking=False):
            return
        try:
            with suppress(ConnectionError, TimeoutError):  # the browser has gone
                super().handle()
        finally:
            self.server.slots.release()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if not self._is_from_here():
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "this server has the names 127.0.0.1 and localhost alone")
        elif not self._is_admitted():
            self._admit(url.path, query.get("token", [""])[0])
        elif "token" in query:
            self._answer(HTTPStatus.OK, _ENTER.format(_safe_path(url.path)), "text/html")
        elif url.path.startswith("/events/"):
            self._stream(self.server.viewed(url.path.removeprefix("/events/"), query))
        elif url.path in FILES:
            name = FILES[url.path]
            self._answer(HTTPStatus.OK, page_file(name), "text/css" if name.endswith(".css") else "text/javascript")
        elif url.path in ("/", "/compare") or url.path.startswith("/run/"):
            self._answer(HTTPStatus.OK, page_file(PAGE), "text/html")
        else:
            self._answer(HTTPStatus.NOT_FOUND, "there is no such page")

    def _refuse(self) -> None:
        self.close_connection = True  # the body of the request is not read
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "GET alone", more={"Allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name of the base class
        """Print nothing."""

    def _is_from_here(self) -> bool:
        """True if the browser has the name of this machine for itself, so that no other site's page made the request."""
        host = self.headers.get("Host", "")
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
        return name in HOSTS and (not port or port.isdecimal())

    def _is_admitted(self) -> bool:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            return False
        return cookie is not None and self.server.access.admits(cookie.value)

    def _admit(self, path: str, token: str) -> None:
        secret = self.server.access.exchange(token)
        if secret is None:
            text = "open the URL that orch web has printed; it opens in one browser, once. Start orch web again for another one"
            self._answer(HTTPStatus.FORBIDDEN, text)
            return
        cookie = f"{self.server.cookie}={secret}; HttpOnly; SameSite=Strict; Path=/"
        self._answer(HTTPStatus.OK, _ENTER.format(_safe_path(path)), "text/html", more={"Set-Cookie": cookie})

    def _answer(
        self, status: HTTPStatus, body: str, type_: str = "text/plain", more: Mapping[str, str] | None = None
    ) -> None:
        data = body.encode()
        self.send_response(status)
        headers = {"Content-Type": f"{type_}; charset=utf-8", "Content-Length": str(len(data))}
        for name, value in {**HEADERS, **headers, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, viewed: Viewed | None) -> None:
        """Send the values of a page as server-sent events, at first and whenever they change; `end` after the last."""
        if viewed is None:
            self._answer(HTTPStatus.NOT_FOUND, "no such run is recorded here")
            return
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        for name, value in {**HEADERS, "Content-Type": "text/event-stream", "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        with self.server.feeds.viewing(viewed) as feeds:
            for change in changes(self.server.feeds, feeds, QUIET_S):
                self.wfile.write(b":\n\n" if change is None else _event(*change))
        self.wfile.write(_event("end", json.dumps({})))


def _event(name: str, text: str) -> bytes:
    return f"event: {name}\ndata: {text}\n\n".encode("utf-8", "backslashreplace")


def _equal(given: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


def _log_filter(query: Mapping[str, list[str]]) -> LogFilter:
    count, ranks, text = (query.get(name, [""])[0] for name in ("lines", "rank", "text"))
    lines = int(count) if count.isascii() and count.isdecimal() and len(count) < len(str(MOST_LINES)) + 1 else 0
    return LogFilter(min(MOST_LINES, lines) or LogFilter().count, ranks, text)


def _safe_path(path: str) -> str:
    """The path if it is that of a run's page, else that of the list: it becomes part of a page."""
    return path if path.startswith("/run/") and RUN_ID.fullmatch(path.removeprefix("/run/")) else "/"
