"""The pages of `orch web` in Chromium: live, by keyboard, dark, on a phone, and without a request elsewhere."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_web import PROGRAM
from tests.cli.two_nodes import open_gate, two_nodes
from tests.grounds.browser import Browser, browser
from tests.grounds.cli import Orch

pytestmark = [pytest.mark.extended, pytest.mark.slow, pytest.mark.processes]

TEXT = "document.getElementById('main').innerText"
FOCUSED = "document.activeElement"


@pytest.fixture
def orch(tmp_path: Path) -> Orch:
    folder = tmp_path / "runs"
    folder.mkdir()
    return two_nodes(folder)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Browser]:
    """A page that has caused no error."""
    with browser(tmp_path / "browser") as page:
        yield page
        assert page.problems == []


def _require_phone_width(page: Browser) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    assert page.value("document.documentElement.scrollWidth") <= 390
    page.call("Emulation.clearDeviceMetricsOverride")


def _require_dark(page: Browser) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    ground, text = (
        sum(map(int, page.value(f"getComputedStyle(document.body).{name}").strip("rgb()").split(",")))
        for name in ("backgroundColor", "color")
    )
    assert ground < 200
    assert text > 500
    page.call("Emulation.setEmulatedMedia", features=[])


def _tab_to(page: Browser, condition: str) -> None:
    for _ in range(60):
        page.press("Tab")
        if page.value(condition):
            return
    pytest.fail(f"no element with {condition} gets the focus")


def test_live_run_and_its_end_by_keyboard_dark_and_on_a_phone(orch: Orch, page: Browser, tmp_path: Path) -> None:
    gate = orch.cwd / ".end"
    (orch.cwd / "train.py").write_text(PROGRAM.replace("GATE", repr(str(gate))))
    open_gate(orch)
    run = orch("ssh-launch", "--detach", "--no-check", "--", "train.py").stdout.strip()
    with orch.start("web", run) as server:
        assert server.stdout is not None
        page.open(server.stdout.readline().strip())
        page.wait(f"{TEXT}.includes('healthy')")
        page.wait("document.querySelector('figure svg path.mean')")
        page.wait(f"{TEXT}.includes('<script>alert(1)</script>')")
        assert page.value("document.getElementById('connection').textContent") == "live"
        assert "token" not in page.value("location.href")

        _tab_to(page, f"{FOCUSED}.matches('.skip')")
        page.press("Enter")
        assert page.value(f"{FOCUSED}.id") == "main"
        _tab_to(page, f"{FOCUSED}.matches('svg')")
        page.press("ArrowLeft")
        assert page.value(f"{FOCUSED}.querySelector('.cursor') !== null")
        _tab_to(page, f"{FOCUSED}.matches('button.open')")
        page.press("Space")
        assert page.value(f"{FOCUSED}.getAttribute('aria-expanded')") == "true"
        page.wait("document.querySelector('tr.part')")

        _require_phone_width(page)
        _require_dark(page)
        gate.touch()
        page.wait(f"{TEXT}.includes('done after')")
        assert page.value("document.title").startswith("DONE ")
        page.open(page.value("location.origin") + "/")
        page.wait(f"{TEXT}.includes({run!r})")
        _require_phone_width(page)
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    origins = {
        url.partition("://")[2].partition("/")[0].partition(":")[0] for url in page.requested if url.startswith("http")
    }
    assert origins == {"127.0.0.1"}
    assert all(url.startswith(("http://127.0.0.1:", "data:", "about:")) for url in page.requested)


def test_exported_page_needs_no_server_and_requests_nothing(orch: Orch, page: Browser, tmp_path: Path) -> None:
    open_gate(orch)
    orch("ssh-launch", "--no-check", "--quiet", "--", "sh", "-c", "echo hello; exit 3", code=1)
    file = tmp_path / "run.html"
    orch("web", "latest", "--export", str(file))
    page.open(f"file://{file}")
    page.wait(f"{TEXT}.includes('FAILED')")
    assert "hello" in page.value(TEXT)
    assert page.value("document.getElementById('connection').textContent").startswith("as of ")
    page.value("document.querySelector('input[name=text]').value = 'nothing has this text'")
    page.value("document.querySelector('section form').requestSubmit()")
    page.wait("document.querySelector('pre.log').textContent === 'no lines'")
    _require_phone_width(page)
    _require_dark(page)
    assert page.requested == [f"file://{file}"]
