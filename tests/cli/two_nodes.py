"""orch with two local nodes, the agent of one of which starts when a test lets it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.grounds.cli import Orch

INVENTORY = """
name: here
accelerator: cpu
devices: 1
transport: local
defaults: {workdir: WORKDIR}
nodes: [{name: n0}, {name: n1, python: PYTHON}]
"""
SLOW = """#!/bin/sh
case "$*" in *__main__.py*) while [ ! -e GATE ]; do sleep 0.05; done ;; esac
exec PYTHON "$@"
"""
LOADED = "import sys; from orchestrator.cli.app import main; main(); print(*sys.modules, file=sys.stderr)"
"""A program that runs a command line and prints the modules that it has imported."""
SLOW_MODULES = ("asyncio", "cryptography", "fabric", "jinja2", "paramiko", "pydantic", "rich", "ruamel", "submitit")


def two_nodes(folder: Path) -> Orch:
    """orch with an inventory of two local nodes; the agent of the second starts when the file `.gate` appears."""
    slow = folder / ".slow-python"
    slow.write_text(SLOW.replace("GATE", str(folder / ".gate")).replace("PYTHON", sys.executable))
    slow.chmod(0o755)
    text = INVENTORY.replace("WORKDIR", str(folder / ".work")).replace("PYTHON", str(slow))
    (folder / "inventory.yaml").write_text(text)
    return Orch(folder)


def open_gate(orch: Orch) -> None:
    (orch.cwd / ".gate").touch()


def finished_run(orch: Orch, *program: str) -> str:
    open_gate(orch)
    orch("ssh-launch", "--", *program)
    return str(orch.status()["id"])
