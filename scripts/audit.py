"""
Compare the pinned versions of a file (default: constraints.txt) with the published advisories, by pip-audit.

Exit code 1: an advisory affects one of them. Without an answer (no network, an index without advisories) it prints a line and
exits 0, since `make check` has to pass without a network. Arguments after the file are options of pip-audit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIMIT_S = 60


def main(file: str = "constraints.txt", *options: str) -> int:
    pins = [line for line in Path(file).read_text("utf-8").splitlines() if "==" in line]
    # the first pin alone: if no advisory service answers, the others are not queried
    reports = audit(pins[:1], options) and audit(pins, options)
    if not reports:
        print(f"audit: no advisory service answered; the versions of {file} are NOT checked")
        return 0
    affected = [report for report in reports if report["vulns"]]
    for report in affected:
        for advisory in report["vulns"]:
            fixed = ", ".join(advisory["fix_versions"]) or "no version"
            print(f"audit: {report['name']} {report['version']}: {advisory['id']}, fixed in {fixed}", file=sys.stderr)
    print(f"audit: {len(reports)} of {len(pins)} versions of {file} checked, {len(affected)} affected")
    return 1 if affected else 0


def audit(pins: list[str], options: tuple[str, ...]) -> list[dict[str, Any]]:
    """The report of pip-audit on each version that the service knows; empty without an answer."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins))
        file.flush()
        argv = [
            sys.executable,
            "-m",
            "pip_audit",
            "--disable-pip",
            "--no-deps",
            "--progress-spinner=off",
            "--timeout=5",
        ]
        argv += ["--format=json", f"--requirement={file.name}", *options]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            reports: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
        except (subprocess.TimeoutExpired, ValueError):  # without a service it prints no JSON
            return []
    return [report for report in reports if "skip_reason" not in report]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
