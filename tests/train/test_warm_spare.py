"""A spare node takes part without an import: its rank is forked from a process that has waited there since the training began."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from orchestrator.node.run.run_folder import STANDBY_RECORD
from tests.grounds import held_task
from tests.grounds.cli import Orch
from tests.grounds.metrics import step_numbers
from tests.grounds.sshd import Farm
from tests.train.conftest import DEADLINE_S, HELD
from tests.until import until

pytestmark = [pytest.mark.train, pytest.mark.slow]


@pytest.mark.extended
def test_spare_node_replaces_another_one_without_an_import_and_all_that_waits_ends_with_the_run(
    farm: Farm, tmp_path: Path
) -> None:
    """Rank 1 is killed, and its node replaced, as the nodes share the folder of the run. The other spare node waits to the end."""
    grounds = tmp_path / "tests" / "grounds"
    grounds.mkdir(parents=True)
    shutil.copy(held_task.__file__, grounds)
    inventory = farm.inventory(tmp_path, nodes=4, shared=True, env={"OMP_NUM_THREADS": "1"})
    yaml = YAML()
    values = yaml.load(inventory)
    for node in values["nodes"][2:]:
        node["tags"] = ["spare"]
    yaml.dump(values, inventory)
    orch, folder = Orch(tmp_path), farm.home / secrets.token_hex(4)
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    held = held_task.hold(folder / "out")
    os.chown(held.parent, farm.home.stat().st_uid, -1)
    words = (*HELD, "steps=6", "save_steps=2", f"out={held.parent}")
    with orch.start("ssh-launch", "--max-retries", "1", "-j", "2x1", *words) as launch:
        until((held.parent / "step_2").exists, deadline_s=DEADLINE_S, awaited="the first checkpoint")
        (record,) = orch.records()
        attempt = orch.node_folder(record["id"], "n0").parent
        standbys = [attempt / node / STANDBY_RECORD for node in ("n2", "n3")]
        until(lambda: all(map(_is_ready, standbys)), deadline_s=DEADLINE_S, awaited="the imports on the spare nodes")
        os.kill(orch.rank_pid(record["id"], "n1", 1), signal.SIGKILL)
        held.unlink()
        out, errors = launch.communicate(timeout=DEADLINE_S)
    assert launch.returncode == 0, errors
    assert re.search(r"^\[n0:0\].*resuming from .*, step 2$", out, re.MULTILINE), out
    assert "n2 replaces n1" in out
    assert "[n2:-] the ranks are forked from a process that has imported the trainer" in out
    assert [step for step, *_ in step_numbers(held.parent)] == list(range(1, 7))
    assert orch.processes_of(record["id"]) == []
    assert not any("orch-" in command for command in farm.processes().values())


def _is_ready(record: Path) -> bool:
    return record.exists() and bool(json.loads(record.read_text()).get("ready"))
