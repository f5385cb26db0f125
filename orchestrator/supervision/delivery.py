"""Deliver one notification by one hook: start a program, or send an HTTP request. No text of this module contains a URL."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from orchestrator.errors import UsageError
from orchestrator.inventory.hooks import Hook
from orchestrator.supervision.notification import Notification
from orchestrator.version import __version__

RETRIES_AFTER_S = (2.0, 10.0)
_MAY_PASS = frozenset({408, 425, 429})  # of the statuses 400 to 499: a later request may be accepted


def deliver(hook: Hook, notification: Notification, log: Path) -> str:
    """
    Deliver the notification; return why that failed, or empty.

    Args:
        log: the file to which the output of a program is appended.
    """
    try:
        if hook.webhook_file is not None or hook.webhook_variable is not None:
            return _post(hook.url(os.environ), notification.json().encode(), hook.timeout_s)
        program = hook.program()
    except UsageError as error:
        return str(error)
    if hook.command is not None:
        argv, text = [program, *hook.command[1:]], notification.json().encode()
    elif hook.email is not None:
        argv, text = [program, "-i", "-t"], notification.email(hook.email)
    else:
        argv = [program, "--config", str(hook.apprise_file), "--title", notification.sentence[:200]]
        text = notification.text().encode("utf-8", "replace")
    try:
        with _append(log) as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **notification.variables()},
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        return f"it could not be started: {error}"
    return _finish(process, text, hook.timeout_s) or (
        f"it exited with {process.returncode}; see {log}" if process.returncode else ""
    )


def _finish(process: subprocess.Popen[bytes], text: bytes, timeout_s: float) -> str:
    """Pass `text` to a program and wait for its end; it is killed with its process group after the timeout."""
    try:
        process.communicate(text, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"it was killed after {timeout_s:g} s"
    return ""


def _append(log: Path) -> IO[bytes]:
    return open(log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def _post(url: str, body: bytes, timeout_s: float) -> str:
    """Send a request; a failure that may pass is followed by others."""
    failure = ""
    for attempt, wait_s in enumerate((0.0, *RETRIES_AFTER_S), 1):
        time.sleep(wait_s)
        failure, may_pass = _request(url, body, timeout_s)
        if not failure:
            return ""
        if not may_pass:
            return failure
        failure += f" in attempt {attempt}, the last"
    return failure


def _request(url: str, body: bytes, timeout_s: float) -> tuple[str, bool]:
    """Why one request failed, or empty, and whether another one may succeed."""
    headers = {"Content-Type": "application/json", "User-Agent": f"orch/{__version__}"}
    try:
        with _opener(url).open(Request(url, body, headers, method="POST"), timeout=timeout_s):  # noqa: S310  see Hook.url
            return "", False
    except HTTPError as error:
        error.close()
        return f"HTTP status {error.code}", error.code in _MAY_PASS or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        text = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
        return f"no answer: {text}", True


class _NoRedirect(HTTPRedirectHandler):
    """Takes a redirect as a failure: it could lead from https to http, and turns a POST into a GET."""

    def redirect_request(self, *_: object) -> None:
        return None


def _opener(url: str) -> OpenerDirector:
    """By the proxies of the environment, except for this machine itself."""
    is_here = urlsplit(url).scheme == "http"
    return build_opener(_NoRedirect, *([ProxyHandler({})] if is_here else []))
