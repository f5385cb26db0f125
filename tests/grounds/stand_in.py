"""
A stand-in for the agent that runs the program of a test of the endpoint, and the folders it runs in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from orchestrator.endpoint.client import Endpoint
from orchestrator.node.system.machine import boot_id, live_fields
from tests.until import until

# `ready` writes agent.json as the real agent does; the test's own program follows.
AGENT = """
import json, os, signal, subprocess, sys, time
def record(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return {"pid": pid, "start_time": int(fields[19])}
me = {**record(os.getpid()), "pgid": os.getpgid(0), "host_id": "h", "hostname": "x", "python": "3", "node": "n0",
      "boot_id": open("/proc/sys/kernel/random/boot_id").read().strip(), "node_rank": 0, "ranks": [0], "world_size": 1,
      "rendezvous": "127.0.0.1 1 h", "started": time.time(), "new": "key"}
def event(name, **more):
    with open("events.jsonl", "a") as file:
        file.write(json.dumps({"time": time.time(), "event": name, "text": "", **more}) + "\\n")
def rank(argv=("sleep", "1000"), **options):
    child = subprocess.Popen(argv, **{"start_new_session": True, **options})
    event("rank-started", rank=0, **record(child.pid))
    return child
def ready():
    open("agent.new", "w").write(json.dumps(me))
    os.rename("agent.new", "agent.json")
"""


class Ground:
    """An attempt's folder with the node folder n0, and the processes started there."""

    def __init__(self, attempt: Path) -> None:
        self.attempt = attempt
        self.folder = attempt / "n0"
        self.pids: list[int] = []
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, endpoint: Endpoint, program: str, *, wait_s: float = 20.0) -> int:
        files = [
            ("agent.py", AGENT + program, 0o600),
            ("node.sh", f"exec {sys.executable} {self.folder}/agent.py\n", 0o600),
        ]
        endpoint.put_files(str(self.folder), files)
        pid = endpoint.start(["/bin/sh", f"{self.folder}/node.sh"], str(self.folder), wait_s=wait_s).pid
        self.pids.append(pid)
        return pid

    def rank(self) -> int:
        """The pid of the rank that started last."""
        pid = until(lambda: [e["pid"] for e in self.events() if e["event"] == "rank-started"], awaited="a rank")[-1]
        self.pids.append(pid)
        return int(pid)

    def events(self) -> list[dict[str, Any]]:
        file = self.folder / "events.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def sleeper(self, **options: Any) -> subprocess.Popen[bytes]:  # Popen's own
        child = subprocess.Popen(["sleep", "1000"], **options)
        self.children.append(child)
        return child

    def write_record(self, pid: int, **changes: object) -> None:
        """Write an agent.json and a rank-started event that both name this process."""
        fields = live_fields(pid)
        assert fields is not None
        record = {"pid": pid, "start_time": int(fields[19]), "boot_id": boot_id(), **changes}
        names = ("host_id", "hostname", "python", "node", "rendezvous")
        rest = {**dict.fromkeys(names, ""), "pgid": pid, "node_rank": 0, "ranks": [0], "world_size": 1, "started": 0.0}
        self.folder.mkdir(exist_ok=True)
        (self.folder / "agent.json").write_text(json.dumps({**rest, **record}))
        event = {"event": "rank-started", "rank": 0, "pid": record["pid"], "start_time": record["start_time"]}
        (self.folder / "events.jsonl").write_text(json.dumps(event) + "\n")

    def end(self) -> None:
        """Kill all processes that were started here."""
        for pid in self.pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        for child in self.children:
            child.kill()
            child.wait()


def alive(pid: int) -> bool:
    return live_fields(pid) is not None
