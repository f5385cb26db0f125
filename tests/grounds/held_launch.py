"""A launch that is held in one phase, so that a test can cause a fault in exactly that phase."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.node.isolation import SUPERVISED
from orchestrator.node.run.ownership import LOADER
from orchestrator.node.system.machine import stat_fields
from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm
from tests.until import until

_PUSHED_BYTES = 2 << 20
# The Python of n1. In its stage it writes `reached` and waits for the gate: as the endpoint before it answers (connect), in the
# middle of a push (push), as the agent before it starts (start), or as the agent and as every later endpoint (stuck).
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
    wait("reconnected")
if stage == "push" and not is_agent:
    out, into = os.pipe()
    if os.fork() == 0:
        os.close(out)
        received = 0
        while True:
            data = os.read(0, 65536)
            received += len(data)
            if received > {half}:
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
    """An `orch ssh-launch` on n0, n1, …, one rank each, which n1 holds in that phase; in `follow` the launch is complete."""

    orch: Orch
    run: str
    process: subprocess.Popen[str]
    _folder: Path
    _farm: Farm

    def open_gate(self) -> None:
        """Open the gate for n1."""
        (self._folder / "gate").touch()

    def kill_owner(self) -> None:
        """Kill the process that launches and supervises the run, and wait for the end of the command."""
        [owner] = self.orch.supervisors()
        os.kill(owner, signal.SIGKILL)
        self.process.communicate(timeout=30)

    def has_heartbeats(self) -> bool:
        """True if the supervisor has sent a heartbeat to all nodes."""
        return all((folder / SUPERVISED).exists() for folder in self.orch.node_folders(self.run))

    def endpoints(self) -> list[int]:
        """The pids of the endpoints on all nodes."""
        loader = os.fsencode(LOADER)
        sessions = self._farm.connections()
        started = [pid for pid in self._farm.processes() if loader in _words(pid)]  # by sshd, or forked by an endpoint
        return [pid for pid in started if _parent(pid) in sessions]

    def is_reconnected(self) -> bool:
        """True if orch has connected to n1 a second time (stuck)."""
        return (self._folder / "reconnected").exists()

    def starts(self) -> list[str]:
        """The node of every rank that ever ran, one entry per start."""
        file = self.orch.node_folder(self.run, "n0").parents[4] / "started"
        return sorted(file.read_text("utf-8").splitlines()) if file.exists() else []


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _parent(pid: int) -> int | None:
    fields = stat_fields(pid)
    return None if fields is None else int(fields[1])


@contextlib.contextmanager
def held_launch(
    phase: str, farm: Farm, folder: Path, *, nodes: int = 2, env_file: str | None = None
) -> Iterator[HeldLaunch]:
    """Launch orch in `folder` and wait until it reaches that phase."""
    held = farm.home / f"held-{secrets.token_hex(4)}"
    held.mkdir()
    held.chmod(0o777)
    python = held / "python"
    text = _PYTHON.format(python=farm.python, folder=held, stage=phase, half=_PUSHED_BYTES // 2)
    python.write_text(text, "utf-8")
    python.chmod(0o755)
    inventory = farm.inventory(folder, nodes=nodes)
    secret = f"env_file: {env_file}\n" if env_file else ""
    text = inventory.read_text("utf-8").replace("name: n1", f"name: n1\n  python: {python}")
    inventory.write_text(secret + text, "utf-8")
    (folder / "weights.bin").write_bytes(secrets.token_bytes(_PUSHED_BYTES))
    (folder / "program.sh").write_text(_PROGRAM)
    orch = Orch(folder)
    with orch.start("ssh-launch", "--", "sh", "./program.sh") as process:
        assert process.stdout is not None
        for _ in range(nodes if phase == "follow" else 0):
            until(lambda: "] up" in process.stdout.readline(), awaited="a rank")  # type: ignore[union-attr]
        until(lambda: phase == "follow" or (held / "reached").exists(), awaited=f"the phase {phase}")
        [run] = [str(record["id"]) for record in orch.records()]
        until((orch.home / "runs" / run / "plan" / "plan.json").exists, awaited="the plan")
        try:
            yield HeldLaunch(orch, run, process, held, farm)
        finally:
            (held / "gate").touch()
            process.kill()
            process.communicate()
