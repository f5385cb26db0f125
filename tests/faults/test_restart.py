"""A failed run over SSH is restarted by the process that owns it, if that may help."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from orchestrator.records.run_folder import RunFolder
from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm
from tests.until import until

DEADLINE_S = 120
SAVE = """\
folder=$ORCH_RUN_DIR/attempt-$ORCH_ATTEMPT/$ORCH_NODE/progress
save() {
    echo "{\\"step\\": $1, \\"phase\\": \\"step\\"}" >"$folder/new"
    mv "$folder/new" "$folder/$RANK.json"
}
"""


@pytest.fixture
def orch(farm: Farm, tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of two nodes with one rank each and work folders of their own."""
    command = ["sh", "-c", 'echo "$ORCH_STATE $ORCH_ATTEMPT" >>"$1"', "hook", str(tmp_path / "states")]
    hook = {"on": ["STARTING", "RUNNING", "DONE", "FAILED", "STOPPED"], "command": command}
    farm.inventory(tmp_path, restart={"max_retries": 3}, hooks=[hook])
    return Orch(tmp_path)


def _record(orch: Orch, run: str) -> dict[str, Any]:
    return RunFolder(orch.home / "runs" / run).read().to_json()


def _started(orch: Orch) -> str:
    """The id of the only run, once it has a plan; empty before."""
    return next((path.parent.parent.name for path in (orch.home / "runs").glob("*/plan/plan.json")), "")


def test_killed_rank_restarts_the_run_and_exit_code_93_ends_it(orch: Orch) -> None:
    script = f"""{SAVE}
        save "$((ORCH_ATTEMPT * 5))"
        echo "rank $RANK in attempt $ORCH_ATTEMPT, port $MASTER_PORT, pid $$"
        [ "$ORCH_ATTEMPT" = 2 ] && exit 93
        exec sleep 1000
    """
    with orch.start("ssh-launch", "--", "sh", "-c", script) as following:
        run = until(lambda: _started(orch), awaited="the plan", deadline_s=DEADLINE_S)
        until(lambda: orch.printed(run).count("in attempt 1") == 2, awaited="the ranks", deadline_s=DEADLINE_S)
        until(lambda: orch.recorded(run) == "RUNNING", awaited="the supervisor", deadline_s=DEADLINE_S)
        pids = [int(pid) for pid in re.findall(r"pid (\d+)$", orch.printed(run), re.MULTILINE)]
        os.kill(pids[1], signal.SIGKILL)
        out, err = following.communicate(timeout=DEADLINE_S)
    assert following.returncode == 93, err
    record = _record(orch, run)
    assert (record["state"], record["attempt"]) == ("FAILED", 2)
    assert record["message"].endswith("exited 93; not restarted: a rank exited with 93: a retry cannot help")
    assert "\nattempt 1 failed: rank " in orch("status", run, code=93).stdout
    [failed] = record["attempts"]
    assert (failed["attempt"], failed["saved"]) == (1, 5)
    assert "was killed by SIGKILL" in failed["decision"]
    assert failed["decision"].endswith("the newest saved step is 5")
    for text in (out, orch("logs", run).stdout):
        assert failed["decision"] in text
        ports = set(
            re.findall(r"in attempt (\d), port (\d+),", text)
        )  # in attempt 2, a rank may have been ended at its start
        assert sorted(attempt for attempt, _ in ports) == ["1", "2"]
        assert len({port for _, port in ports}) == 2
    owner = RunFolder(orch.home / "runs" / run)
    until(lambda: owner.supervisor() is None, awaited="the end of the hooks", deadline_s=DEADLINE_S)
    states = (orch.cwd / "states").read_text().splitlines()
    assert [state for state in states if state not in ("STARTING 1", "RUNNING 2")] == [
        "RUNNING 1",
        "STARTING 2",
        "FAILED 2",
    ]


@pytest.mark.extended
def test_run_ends_after_three_attempts_without_progress(orch: Orch) -> None:
    done = orch("ssh-launch", "--max-retries", "9", "-j", "1x1", "--", "sh", "-c", f"{SAVE} save 3; exit 7", code=1)
    [record] = orch.records()
    assert (record["state"], record["attempt"]) == ("FAILED", 4), done.stderr  # the first one made progress
    reason = "3 attempts in a row made no progress, so the run is not restarted: the newest saved step is 3"
    assert record["message"] == f"rank 0 on n0 exited 7; {reason}"


def test_run_with_a_new_supervisor_is_restarted_alike(farm: Farm, tmp_path: Path) -> None:
    """The code is that of the launch, and the secret, which is not recorded, is read again."""
    (tmp_path / "secret.env").write_text("HF_TOKEN=s3cret\n")
    (tmp_path / "secret.env").chmod(0o600)
    farm.inventory(tmp_path, defaults={"env_file": "secret.env", "env": {"GREETING": "it's"}})
    orch = Orch(tmp_path)
    (tmp_path / "run.sh").write_text(f"""{SAVE}
        save "$((ORCH_ATTEMPT * 5))"
        echo "rank $RANK in attempt $ORCH_ATTEMPT with $GREETING $HF_TOKEN"
        [ "$ORCH_ATTEMPT" = 2 ] && exit 93
        exec sleep 1000
    """)
    run = orch("ssh-launch", "--detach", "--max-retries", "3", "--", "sh", "run.sh").stdout.strip()
    until(lambda: orch.printed(run).count("in attempt 1") == 2, awaited="the ranks")
    orch.kill_supervisor(run)
    folder = RunFolder(orch.home / "runs" / run)
    kept = folder.bundle_file.rename(tmp_path / "kept")
    unable = orch("attach", "--detach", run)
    assert "the run is supervised, but not restarted if it fails: its code cannot be read" in unable.stderr
    orch.kill_supervisor(run)
    kept.rename(folder.bundle_file)
    (tmp_path / "run.sh").write_text("exit 1")
    with orch.start("attach", run) as following:
        until(lambda: orch.supervisor(run), awaited="the supervisor")
        os.kill(orch.rank_pid(run, "n1", 1), signal.SIGKILL)
        out, err = following.communicate(timeout=DEADLINE_S)
    assert following.returncode == 93, err
    assert (folder.read().attempt, folder.read().attempts[0]["saved"]) == (2, 5)
    assert "in attempt 2 with it's s3cret" in out
    until(lambda: orch.supervisor(run) is None, awaited="the end of the supervisor")
    assert not folder.bundle_file.exists()


@pytest.mark.extended
def test_log_follows_the_node_that_replaces_a_spare_one(farm: Farm, tmp_path: Path) -> None:
    """The first spare node does not see the folder of the run, which is known when the next attempt is recorded on it."""
    inventory = farm.inventory(tmp_path, shared=True, nodes=4)
    yaml, spare = YAML(), {"tags": ["spare"]}
    values = yaml.load(inventory)
    values["nodes"][2] |= {**spare, "workdir": str(farm.home / "elsewhere")}
    values["nodes"][3] |= spare
    yaml.dump(values, inventory)
    orch = Orch(tmp_path)
    script = f"""{SAVE}
        save "$((ORCH_ATTEMPT * 5))"
        echo "rank $RANK on $ORCH_NODE in attempt $ORCH_ATTEMPT"
        while [ "$RANK $ORCH_ATTEMPT" = "1 1" ] && ! [ -e ../fail ]; do sleep 0.1; done
        [ "$RANK $ORCH_ATTEMPT" = "1 1" ] && exit 7
        [ "$ORCH_ATTEMPT" = 2 ] || exec sleep 1000
    """
    options = ("--max-retries", "1", "-j", "2x1", "--skip", "shared")
    with orch.start("ssh-launch", *options, "--", "sh", "-c", script) as following:
        run = until(lambda: _started(orch), awaited="the plan", deadline_s=DEADLINE_S)
        until(lambda: orch.printed(run).count("in attempt 1") == 2, awaited="the ranks", deadline_s=DEADLINE_S)
        with orch.start("logs", "-f", run) as reading:
            (orch.node_folder(run, "n0").parents[1] / "fail").touch()
            texts = [process.communicate(timeout=DEADLINE_S) for process in (following, reading)]
    assert following.returncode == 0, texts
    plan = RunFolder(orch.home / "runs" / run).read_plan()
    assert [node.name for node in plan.nodes] == ["n0", "n3"]
    for out, _ in texts:
        assert "rank 1 on n3 in attempt 2" in out, texts
        assert "n2 cannot be read" not in out
