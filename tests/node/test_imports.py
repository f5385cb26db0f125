"""The modules that an agent and a rendezvous load: each is read from a shared file system, on every node at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.node.agent.test_agent_ground import AGENT

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("operation", ["rendezvous", "run"])
def test_agent_and_rendezvous_do_not_load_the_modules_of_the_batch_script(operation: str) -> None:
    # Without site packages, which may load any module; `run` ends with the usage.
    argv = [sys.executable, "-S", "-X", "importtime", str(AGENT), operation]
    done = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "orchestrator.node.rendezvous" in loaded
    batch = {name for name in loaded if name.startswith("orchestrator.node.batch")}
    assert not batch | loaded & {"glob", "shutil"}
