"""The throughput and the memory of `orch put`, to one node and to several, beside scp to one."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace
from tests.grounds.components import program
from tests.grounds.sshd import Farm, open_farm

FILE_MB, NODES = 1000, 4
RATE, MEMORY = "MB/s", "memory"
SCP, SINGLE, MANY = "scp, 1 node", "orch, 1 node", f"orch, {NODES} nodes"
_PROGRAMS = Path(__file__).parent / "programs"

DESCRIPTION = f"""\
A file of {FILE_MB} MB that cannot be compressed goes to new folders, which the nodes do not share: loopback addresses of one sshd, whose account may log
in from each to each. *{RATE}*: what has arrived on all nodes together, by the time of the command. *{MEMORY.capitalize()}*: the peak
resident set of the command's largest process. orch compares a SHA-256 of what was read and written, scp does not."""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    """The bytes that arrive by the time, and the memory of the sender."""
    file = workspace.folder / "weights.bin"
    with file.open("wb") as out:
        for _ in range(FILE_MB):
            out.write(os.urandom(1_000_000))
    with open_farm() as farm:
        _trust(farm)

        def timed(command: list[str], nodes: int) -> Mapping[str, float]:
            argv = [sys.executable, str(_PROGRAMS / "peak_memory.py"), *command]
            begun = time.monotonic()
            timing = time_job(Job([argv], cwd=workspace.folder, env=workspace.env), limit_s=600.0)
            elapsed_s = time.monotonic() - begun
            figures = json.loads(timing.output.decode().rpartition("figures ")[2])
            for work in farm.home.glob("[0-9a-f]" * 8):
                shutil.rmtree(work)
            return {RATE: FILE_MB * nodes / elapsed_s, MEMORY: float(figures["memory"])}

        def put(nodes: int) -> Callable[[], Mapping[str, float]]:
            def run() -> Mapping[str, float]:
                inventory = farm.inventory(workspace.folder, nodes=nodes)
                return timed([str(workspace.orch), "put", "-i", str(inventory), str(file)], nodes)

            return run

        def scp() -> Mapping[str, float]:
            target = farm.home / "00000000"
            target.mkdir()
            shutil.chown(target, farm.user)
            return timed([program("scp"), "-F", str(farm.ssh_config), str(file), f"n0:{target}/weights.bin"], 1)

        contestants = [Contestant(SCP, scp), Contestant(SINGLE, put(1)), Contestant(MANY, put(NODES))]
        series = run_rounds(contestants, repetitions=repetitions)
    targets = (Target(MANY, RATE, 0.8, SCP, least=True), Target(MANY, MEMORY, 1.2, SINGLE))
    return Measure(f"Sending {FILE_MB} MB", DESCRIPTION, SCP, (RATE, MEMORY), targets, series)


def _trust(farm: Farm) -> None:
    """Give the nodes' account a key and the host keys."""
    if not farm.is_own_account:
        return
    home = farm.home / ".ssh"
    home.mkdir(exist_ok=True)
    shutil.copyfile(farm.client_key, home / "id_ed25519")
    shutil.copyfile(farm.known_hosts, home / "known_hosts")
    for path in (home, *home.iterdir()):
        path.chmod(0o700 if path.is_dir() else 0o600)
        shutil.chown(path, farm.user)
