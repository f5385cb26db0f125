"""A stand-in for srun that takes the rendezvous port between its choice and the start of the agents."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster

PORT_THIEF = """#!{python}
import os, pathlib, socket, subprocess, sys
if sys.argv[-1] != "run":  # not the agents
    os.execv({srun!r}, [{srun!r}, *sys.argv[1:]])
count = pathlib.Path({folder!r}, "thefts")
done = len(count.read_text()) if count.exists() else 0
found = sys.stdin.readline()
if done < {thefts}:
    count.write_text("x" * (done + 1))
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    thief.bind(("", int(found.split()[1])))
    thief.listen()
with subprocess.Popen([{srun!r}, *sys.argv[1:]], stdin=subprocess.PIPE, text=True) as srun:
    srun.stdin.write(found)
    srun.stdin.flush()
    sys.exit(srun.wait())
"""


def orch_with_taken_ports(cluster: Cluster, tmp_path: Path, thefts: int) -> Orch:
    """orch whose jobs lose their port between its choice and the start of the agents: another process listens on it."""
    srun = shutil.which("srun", path=cluster.env.get("PATH"))
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text(
        PORT_THIEF.format(python=sys.executable, folder=str(tmp_path), thefts=thefts, srun=srun)
    )
    (folder / "srun").chmod(0o700)
    path = f"{folder}:{cluster.env.get('PATH', os.environ['PATH'])}"
    cluster.inventory(tmp_path, devices=1)
    return Orch(tmp_path, env={**cluster.env, "PATH": path})
