"""`orch web` of a run on this machine: live until it ends, the same as a file, and nothing is left after Ctrl-C."""

from __future__ import annotations

import http.client
import json
import signal
import stat
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cli.two_nodes import open_gate
from tests.grounds.cli import Orch
from tests.until import until

PROGRAM = """
import os, time
from orch_progress import report
print("<script>alert(1)</script>", flush=True)
step = 0
while not os.path.exists(GATE):
    time.sleep(0.05)
    step += 1
    report(step, steps=100_000, loss=2.5)
"""


class Page:
    """The newest values of a page, by server-sent events."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port)
        self.values: dict[str, Any] = {}
        with self._get(f"{parts.path}?{parts.query}") as answer:
            self._cookie = answer.headers["Set-Cookie"].partition(";")[0]
        self._events = self._read(f"/events{parts.path}")

    @contextmanager
    def _get(self, path: str, cookie: str = "") -> Iterator[http.client.HTTPResponse]:
        with closing(http.client.HTTPConnection(*self._address, timeout=60)) as connection:
            connection.request("GET", path, headers={"Cookie": cookie})
            with connection.getresponse() as answer:
                yield answer

    def _read(self, path: str) -> Generator[tuple[str, Any], None, None]:
        name = ""
        with self._get(path, self._cookie) as answer:
            while line := answer.readline().decode():
                if line.startswith("event: "):
                    name = line[7:].rstrip()
                elif line.startswith("data: "):
                    yield name, json.loads(line[6:])

    def close(self) -> None:
        """Leave the page."""
        self._events.close()

    def next(self) -> dict[str, Any]:
        """The values after the next event."""
        name, value = next(self._events)
        self.values[name] = value
        return self.values


def test_run_is_shown_live_and_after_its_end(orch: Orch, tmp_path: Path) -> None:
    gate = orch.cwd / ".end"
    (orch.cwd / "train.py").write_text(PROGRAM.replace("GATE", repr(str(gate))))
    open_gate(orch)
    run = orch("ssh-launch", "--detach", "--no-check", "--", "train.py").stdout.strip()
    with orch.start("web", run) as server, ExitStack() as stack:
        assert server.stdout is not None
        page = stack.enter_context(closing(Page(server.stdout.readline().strip())))
        until(lambda: page.next().get("overview", {}).get("verdict") == "healthy", awaited="the verdict")
        until(lambda: "loss" in page.next().get("curves", {}).get("curves", {}), awaited="a curve of what looks show")
        until(lambda: "log" in page.values or page.next() is None, awaited="the log")
        assert page.values["record"]["state"] == "RUNNING"
        assert {row["node"] for row in page.values["overview"]["rows"]} == {"n0", "n1"}
        assert dict(page.values["overview"]["values"])["step"].partition("/")[2].startswith("100000")
        gate.touch()
        until(lambda: "end" in page.next(), awaited="the end")
        assert page.values["record"]["state"] == "DONE"
        assert page.values["overview"]["verdict"].startswith("done after")
        texts = [text for *_, text in page.values["log"]["lines"]]
        assert texts.count("<script>alert(1)</script>") == 2
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, out, err.count("\n")) == (0, "", 1), err
    file = tmp_path / "run.html"
    orch("web", run, "--export", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text("utf-8")
    assert "done after" in text
    assert "<script>alert" not in text
