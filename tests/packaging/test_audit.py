"""scripts/audit.py with pip-audit and an advisory service on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.grounds import components
from tests.grounds.ports import free_ports
from tests.paths import ROOT

pytestmark = pytest.mark.processes
PINS = "# pinned\nclick==8.5.1\nparamiko==5.1.0\n"
ADVISORY = {
    "id": "PYSEC-2026-1",
    "affected": [
        {
            "package": {"name": "paramiko", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "5.1.1"}]}],
        }
    ],
}


class Service(BaseHTTPRequestHandler):
    """A double of OSV; `affected` is the package with an advisory."""

    affected = ""

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_affected = query["package"]["name"] == self.affected
        answer = json.dumps({"vulns": [ADVISORY]} if is_affected else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name in the base class
        """Keep the test's output free of requests."""


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()


def audit(folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    components.module("pip_audit")
    (folder / "pins.txt").write_text(PINS)
    argv = [sys.executable, str(ROOT / "scripts" / "audit.py"), "pins.txt", "--vulnerability-service=osv"]
    return subprocess.run([*argv, f"--osv-url={url}"], cwd=folder, capture_output=True, text=True, check=False)


def test_version_with_an_advisory_is_named_and_fails(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "affected", "paramiko")
    done = audit(tmp_path, url)
    assert (done.returncode, done.stderr) == (1, "audit: paramiko 5.1.0: PYSEC-2026-1, fixed in 5.1.1\n")
    assert done.stdout == "audit: 2 of 2 versions of pins.txt checked, 1 affected\n"


def test_versions_without_advisories_pass(tmp_path: Path, url: str) -> None:
    done = audit(tmp_path, url)
    assert (done.returncode, done.stdout) == (0, "audit: 2 of 2 versions of pins.txt checked, 0 affected\n")


def test_unreachable_advisory_service_fails_nothing_and_is_reported(tmp_path: Path) -> None:
    done = audit(tmp_path, f"http://127.0.0.1:{free_ports(1)[0]}/v1/query")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no advisory service answered; the versions of pins.txt are NOT checked" in done.stdout
