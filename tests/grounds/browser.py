"""A real browser without a screen: Chromium, driven by its DevTools protocol over two pipes."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.grounds.components import program
from tests.until import until

ANSWER_S = 60.0
KEYS: Mapping[str, Mapping[str, Any]] = {
    "Tab": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9},
    "Enter": {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    "Space": {"key": " ", "code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
    "ArrowLeft": {"key": "ArrowLeft", "code": "ArrowLeft", "windowsVirtualKeyCode": 37},
}
OPTIONS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
    "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


class Browser:
    """One page of a browser."""

    def __init__(self, requests: int, answers: int) -> None:
        """Attach to a new page; `requests` and `answers` are descriptors."""
        self._requests, self._answers, self._buffer, self._number, self._session = requests, answers, b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:  # of any command
        """The result of a command of the protocol; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        text = json.dumps(message | ({"sessionId": self._session} if self._session else {}))
        os.write(self._requests, text.encode() + b"\0")
        deadline_s = time.monotonic() + ANSWER_S
        while (answer := self._next(deadline_s)).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _next(self, deadline_s: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._answers, 1 << 16)
            assert part, "the browser has ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def open(self, url: str) -> None:
        """Load a page."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:  # of any expression
        """The value of an expression on the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true on the page."""
        until(
            # while another page is loaded, parts of it are missing
            lambda: self.value(f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"),
            awaited=lambda: f"{condition} in {self.value('document.body.innerText')}",
        )

    def press(self, key: str) -> None:
        """Press and release a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", **KEYS[key])
        self.call("Input.dispatchKeyEvent", type="keyUp", **KEYS[key])

    @property
    def requested(self) -> list[str]:
        """The URLs that pages have requested."""
        self.value("0")
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    @property
    def problems(self) -> list[str]:
        """The errors that pages have caused, such as exceptions and refusals of their policy."""
        self.value("0")
        errors = [event["params"] for event in self.events if event.get("method") == "Runtime.exceptionThrown"]
        logged = [event["params"]["entry"] for event in self.events if event.get("method") == "Log.entryAdded"]
        return [str(each) for each in (*errors, *(entry for entry in logged if entry["level"] == "error"))]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with its files in the folder; it ends with the context."""
    (from_test, to_browser), (from_browser, to_test) = os.pipe(), os.pipe()
    argv = [program("chromium"), *OPTIONS, f"--user-data-dir={folder}"]
    # the protocol's descriptors are 3 and 4
    command = ["bash", "-c", f'exec "$@" 3<&{from_test} 4>&{to_test}', "bash", *argv]
    with (folder.parent / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            pass_fds=(from_test, to_test),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(from_test)
    os.close(to_test)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        os.close(to_browser)
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_browser)
