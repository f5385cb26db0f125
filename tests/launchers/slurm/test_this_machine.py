"""A submission from this machine, with submitit and a program named sbatch that accepts every job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.processes

SUBMIT = """
import sys, threading
from pathlib import Path
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.slurm.this_machine import ThisMachine
from orchestrator.plan.files import sbatch_path
from orchestrator.plan.make import make_plan
from orchestrator.run import Program, Request

loads_in_main_thread = []
def record_import(event, args):
    if event == "import" and args[0].startswith("submitit"):
        loads_in_main_thread.append(threading.current_thread() is threading.main_thread())
sys.addaudithook(record_import)

inventory = Inventory(name="demo", nodes=(Node(name="n0", workdir=sys.argv[1]),))
request = Request("slurm", Program("trainer", ()))
plan = make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b")
script = Path(sbatch_path(plan))
script.parent.mkdir(parents=True)
script.write_text("#!/bin/sh\\n")
host = ThisMachine(plan.head)
host.require_sbatch()
print(host.submit(plan), set(loads_in_main_thread))
host.close()
"""


def test_submitit_is_loaded_by_one_thread_before_a_job_is_submitted(tmp_path: Path) -> None:
    """Its modules import each other: two threads that load them deadlock, and Python ends one of them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "srun"):
        program = folder / name
        program.write_text("#!/bin/sh\necho 7\n")
        program.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", SUBMIT, str(tmp_path / "work")],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "7 {False}\n", done.stderr
