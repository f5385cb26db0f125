"""
Draw `orch top` and `orch web` of a live run on this machine: `make picture`.

    python scripts/record_run.py FOLDER

Writes FOLDER/top.svg and FOLDER/web.png. The run is one of the shared trainer, with its records in a temporary folder; it is stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record_terminal import SHOWN_HOME, UNSET, draw, record

RUN = "orch ssh-launch -i local --name small --detach steps=600 save_steps=50"
STEP = 150
WAIT_S = 600
WINDOW = "1000,610"
BROWSER = "chromium --headless --no-sandbox --disable-gpu --hide-scrollbars"


def wait_for_step(step: int, env: dict[str, str]) -> None:
    """Return when the newest run has made this step; exit if it ends before, or makes it too slowly."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        status = json.loads(
            subprocess.run(["orch", "status", "--json"], env=env, stdout=subprocess.PIPE, check=True).stdout
        )
        if ((status["overview"]["training"] or {}).get("step") or 0) >= step:
            return
        time.sleep(1)
    sys.exit(f"the run has not made step {step} in {WAIT_S} s")


def main() -> None:
    """Start a run, draw both pictures, and stop it."""
    pictures = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="orch-picture-") as name:
        home = Path(name).resolve()
        env = {name: value for name, value in os.environ.items() if name not in UNSET} | {"HOME": str(home)}
        subprocess.run(RUN.split(), cwd=home, env=env, stdout=subprocess.DEVNULL, check=True)
        try:
            wait_for_step(STEP, env)
            top = record("orch top --once", home)
            page = home / "page.html"
            subprocess.run(["orch", "web", "--export", page], env=env, check=True)
        finally:
            subprocess.run(["orch", "stop"], env=env, check=True)
        page.write_text(page.read_text("utf-8").replace(str(home), SHOWN_HOME), "utf-8")
        (pictures / "top.svg").write_text(draw(top, "orch top"), encoding="utf-8")
        screenshot = [
            f"--user-data-dir={home / 'browser'}",
            f"--window-size={WINDOW}",
            f"--screenshot={pictures / 'web.png'}",
        ]
        subprocess.run([*BROWSER.split(), *screenshot, page.as_uri()], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
