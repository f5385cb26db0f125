"""A launch that is held in one of its phases, so that something can happen to it in that very moment."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm
from tests.until import until

_PUSHED_BYTES = 2 << 20
# The Python of n1. In its stage it says so and waits for the gate: as the endpoint before it answers (connect), in the
# middle of what it is sent (push), as the agent before it comes up (start), or so, and with every later endpoint too (stuck).
_PYTHON = """#!{python}
import os, sys, time

def wait(name):
    open("{folder}/" + name, "w").close()
    while not os.path.exists("{folder}/gate"):
        time.sleep(0.02)

stage, is_agent = "{stage}", any(word.endswith("__main__.py") for word in sys.argv)
if (stage == "connect" and not is_agent) or (stage in ("start", "stuck") and is_agent):
    wait("reached")
if stage == "stuck" and not is_agent and os.path.exists("{folder}/reached"):
    wait("reached-again")
if stage == "push" and not is_agent:
    out, into = os.pipe()
    if os.fork() == 0:
        os.close(out)
        seen = 0
        while True:
            data = os.read(0, 65536)
            seen += len(data)
            if seen > {half}:
                wait("reached")
            if not data:
                os._exit(0)
            while data:
                data = data[os.write(into, data):]
    os.close(into)
    os.dup2(out, 0)
    os.close(out)
os.execv("{python}", ["{python}", *sys.argv[1:]])
"""
_PROGRAM = 'echo "$ORCH_NODE" >> "$ORCH_RUN_DIR/../../../started"; echo up; exec sleep 1000'


@dataclass(frozen=True, slots=True)
class HeldLaunch:
    """An `orch ssh-launch` on n0 and n1, one rank each, which n1 holds up in that phase; `follow`: it has come to its end."""

    orch: Orch
    run: str
    process: subprocess.Popen[str]
    _place: Path

    def let_go(self) -> None:
        """Have n1 go on."""
        (self._place / "gate").touch()

    def is_waiting_again(self) -> bool:
        """Whether n1 was connected to another time (stuck)."""
        return (self._place / "reached-again").exists()

    def starts(self) -> list[str]:
        """The node of every rank that ever ran, once a start."""
        file = self.orch.node_folder(self.run, "n0").parents[4] / "started"
        return sorted(file.read_text("utf-8").splitlines()) if file.exists() else []


@contextlib.contextmanager
def held_launch(phase: str, farm: Farm, folder: Path, *, env_file: str | None = None) -> Iterator[HeldLaunch]:
    """Launch, and wait until that phase is reached; orch runs in `folder`."""
    place = farm.home / f"held-{secrets.token_hex(4)}"
    place.mkdir()
    place.chmod(0o777)
    python = place / "python"
    text = _PYTHON.format(python=farm.python, folder=place, stage=phase, half=_PUSHED_BYTES // 2)
    python.write_text(text, "utf-8")
    python.chmod(0o755)
    inventory = farm.inventory(folder, nodes=2)
    secret = f"env_file: {env_file}\n" if env_file else ""
    text = inventory.read_text("utf-8").replace("name: n1", f"name: n1\n  python: {python}")
    inventory.write_text(secret + text, "utf-8")
    (folder / "weights.bin").write_bytes(secrets.token_bytes(_PUSHED_BYTES))
    (folder / "program.sh").write_text(_PROGRAM)
    orch = Orch(folder)
    with orch.start("ssh-launch", "--", "sh", "./program.sh") as process:
        assert process.stdout is not None
        for _ in range(2 if phase == "follow" else 0):
            until(lambda: "] up" in process.stdout.readline(), awaited="a rank")  # type: ignore[union-attr]
        until(lambda: phase == "follow" or (place / "reached").exists(), awaited=f"the phase {phase}", deadline_s=30)
        [run] = [str(record["id"]) for record in orch.records()]
        until((orch.home / "runs" / run / "plan" / "plan.json").exists, awaited="the plan")
        try:
            yield HeldLaunch(orch, run, process, place)
        finally:
            (place / "gate").touch()
            process.kill()
            process.communicate()
