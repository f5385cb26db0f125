"""F8: orch is killed with -9 in each phase of a launch; its run is known all the same, and nothing is ever launched twice."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm
from tests.until import until

PUSHED_BYTES = 2 << 20
# The Python of n1. In its stage it says so and waits for the gate: as the endpoint before it answers (connect), in the
# middle of what it is sent (push), or as the agent before it comes up (start).
STAGED = """#!{python}
import os, sys, time

def wait():
    open("{folder}/reached", "w").close()
    while not os.path.exists("{folder}/gate"):
        time.sleep(0.02)

is_agent = any(word.endswith("__main__.py") for word in sys.argv)
if "{stage}" == ("start" if is_agent else "connect"):
    wait()
if "{stage}" == "push" and not is_agent:
    out, into = os.pipe()
    if os.fork() == 0:
        os.close(out)
        seen = 0
        while True:
            data = os.read(0, 65536)
            seen += len(data)
            if seen > {pushed} // 2:
                wait()
            if not data:
                os._exit(0)
            while data:
                data = data[os.write(into, data):]
    os.close(into)
    os.dup2(out, 0)
    os.close(out)
os.execv("{python}", ["{python}", *sys.argv[1:]])
"""
PROGRAM = 'echo "$ORCH_NODE" >> "$ORCH_RUN_DIR/../../../started"; echo up; exec sleep 1000'
STAGES = ["connect", "push", "start", "follow"]
NEVER_STARTED = "no trace of the run on n[0-1]: never started"


def _killed_in(stage: str, farm: Farm, tmp_path: Path) -> tuple[Orch, str]:
    """A launch on n0 and n1 that was killed in that phase; what it was at on n1 goes on by itself."""
    place = farm.home / f"staged-{secrets.token_hex(4)}"
    place.mkdir()
    place.chmod(0o777)
    python = place / "python"
    python.write_text(STAGED.format(python=farm.python, folder=place, stage=stage, pushed=PUSHED_BYTES), "utf-8")
    python.chmod(0o755)
    inventory = farm.inventory(tmp_path, nodes=2)
    inventory.write_text(inventory.read_text("utf-8").replace("name: n1", f"name: n1\n  python: {python}"), "utf-8")
    (tmp_path / "weights.bin").write_bytes(secrets.token_bytes(PUSHED_BYTES))
    (tmp_path / "program.sh").write_text(PROGRAM)
    orch = Orch(tmp_path)
    with orch.start("ssh-launch", "--", "sh", "./program.sh") as launch:
        if stage == "follow":
            assert launch.stdout is not None
            for _ in range(2):
                until(lambda: "] up" in launch.stdout.readline(), what="a rank")  # type: ignore[union-attr]
        else:
            until((place / "reached").exists, what=f"the stage {stage}")
        [record] = orch.records()
        run = str(record["id"])
        until((orch.home / "runs" / run / "plan" / "plan.json").exists, what="the plan")
        launch.kill()
        launch.communicate(timeout=30)
    (place / "gate").touch()
    return orch, run


def _starts(orch: Orch, run: str) -> list[str]:
    """The node of every rank that ever ran, once a start."""
    file = orch.node_folder(run, "n0").parents[4] / "started"
    return sorted(file.read_text("utf-8").splitlines()) if file.exists() else []


def _check_nothing_is_left(orch: Orch, farm: Farm, run: str) -> None:
    assert orch.processes_of(run) == []
    until(lambda: not farm.processes(), what="orch's own connections to end", deadline_s=40)
    assert [one["id"] for one in orch.records()] == [run]


@pytest.mark.parametrize("stage", STAGES)
def test_run_whose_launch_was_killed_in_any_phase_can_be_asked_after_and_stopped(
    stage: str, farm: Farm, tmp_path: Path
) -> None:
    orch, run = _killed_in(stage, farm, tmp_path)
    if stage in ("connect", "push"):
        assert NEVER_STARTED in orch("status", run, code=5).stdout
    else:
        until(lambda: _starts(orch, run) == ["n0", "n1"], what="the ranks, which nobody has to wait for")
        assert orch.status(run)["state"] == "RUNNING"
    orch("stop", run)
    assert orch.status(run)["state"] == "STOPPED"
    assert _starts(orch, run) == ([] if stage in ("connect", "push") else ["n0", "n1"])
    _check_nothing_is_left(orch, farm, run)


@pytest.mark.parametrize("stage", STAGES)
def test_attach_takes_up_what_a_killed_launch_had_started_and_launches_nothing(
    stage: str, farm: Farm, tmp_path: Path
) -> None:
    orch, run = _killed_in(stage, farm, tmp_path)
    if stage in ("connect", "push"):
        assert NEVER_STARTED in orch("attach", run, code=1).stderr
        assert _starts(orch, run) == []
    else:
        until(lambda: _starts(orch, run) == ["n0", "n1"], what="the ranks")
        agents = [orch.agent_pid(run, node) for node in ("n0", "n1")]
        orch("attach", "--detach", run, code=2 if stage == "follow" else 0)  # the supervisor was not killed
        assert "has a supervisor" in orch("attach", run, code=2).stderr
        assert orch.status(run)["state"] == "RUNNING"
        assert [orch.agent_pid(run, node) for node in ("n0", "n1")] == agents
        orch("stop", run)
        assert _starts(orch, run) == ["n0", "n1"]
    _check_nothing_is_left(orch, farm, run)
