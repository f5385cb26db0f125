"""orch logs RUN -i FILE and orch stop RUN -i FILE: runs whose records are on another machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.grounds.cli import Orch
from tests.grounds.inventories import write_inventory
from tests.grounds.sshd import Farm
from tests.until import until

UNKNOWN_RUN = "farm-20260102-030405-0abc"
COUNT = 'i=0; until [ -e "$ORCH_RUN_DIR/enough" ]; do i=$((i+1)); echo "line $i"; sleep 0.02; done'


@pytest.fixture
def here(farm: Farm, tmp_path: Path) -> Orch:
    """The launching machine: orch beside an inventory.yaml of three nodes with one rank each."""
    farm.inventory(tmp_path, nodes=3)
    return Orch(tmp_path)


@pytest.fixture
def elsewhere(here: Orch) -> Orch:
    """Another machine: the same inventory and no records."""
    folder = here.cwd / "elsewhere"
    folder.mkdir()
    (folder / "inventory.yaml").write_bytes((here.cwd / "inventory.yaml").read_bytes())
    return Orch(folder)


def _detached(here: Orch, script: str, *options: str) -> str:
    return here("ssh-launch", "--detach", *options, "--", "sh", "-c", script).stdout.strip()


def _done(here: Orch, script: str = 'echo "out of $RANK"', *options: str) -> str:
    here("ssh-launch", *options, "--", "sh", "-c", script)
    return str(here.records()[-1]["id"])


def _written(here: Orch, run: str) -> dict[str, list[str]]:
    """Node -> the lines of the node's rank."""
    files = [file for folder in here.node_folders(run) for file in folder.glob("rank-*.out")]
    return {file.parent.name: file.read_text("utf-8").splitlines() for file in files}


def _printed(text: str) -> dict[str, list[str]]:
    found = re.findall(r"^\[(n\d):\d\] (.*)$", text, re.MULTILINE)
    return {node: [line for name, line in found if name == node] for node in sorted({node for node, _ in found})}


def _diagnosed(here: Orch, run: str) -> dict[str, Any] | None:
    """The failure in the record of a run, once it is diagnosed."""
    failure: dict[str, Any] | None = next(record["failure"] for record in here.records() if record["id"] == run)
    return failure if failure and failure["is_diagnosed"] else None


@contextlib.contextmanager
def _follow(elsewhere: Orch, run: str, *texts: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A follower, and its output up to the line that completes all texts."""
    with elsewhere.start("logs", "--follow", run, "-i", "inventory.yaml") as following:
        assert following.stdout is not None
        printed = ""
        while not all(text in printed for text in texts):
            line = following.stdout.readline()
            assert line, "the log ended"
            printed += line
        yield following, printed


def _rest(following: subprocess.Popen[str]) -> tuple[str, str]:
    assert following.stdout is not None
    assert following.stderr is not None
    return following.stdout.read(), following.stderr.read()  # communicate() leaves out what readline() has buffered


def _finish(here: Orch, run: str) -> None:
    for folder in here.node_folders(run):
        (folder.parents[1] / "enough").touch()


def test_log_of_a_finished_run_is_the_same_on_every_machine(here: Orch, elsewhere: Orch) -> None:
    run = _done(here)
    lines = elsewhere.lines(run, "-i", "inventory.yaml")
    assert lines == here.lines(run)
    assert {line["text"] for line in lines if line["stream"] == "out"} == {"out of 0", "out of 1", "out of 2"}
    assert not elsewhere.home.exists(), "reading a log writes no record"


def test_run_is_followed_to_its_end_on_another_machine(here: Orch, elsewhere: Orch) -> None:
    run = _detached(here, COUNT)
    with _follow(elsewhere, run, "[n0:0] line 9", "[n1:1] line 9", "[n2:2] line 9") as (following, text):
        _finish(here, run)
        rest, stderr = _rest(following)
    assert following.returncode == 0, stderr
    assert _printed(text + rest) == _written(here, run)
    assert f"run {run} is DONE" in stderr


def test_finished_run_is_followed_to_its_end_at_once(here: Orch, elsewhere: Orch) -> None:
    run = _done(here)
    assert f"run {run} is DONE" in elsewhere("logs", "-f", run, "-i", "inventory.yaml").stderr


def test_failed_run_is_followed_until_the_last_node_was_ended(here: Orch, elsewhere: Orch) -> None:
    """The first failure is not the end: the supervisor, of which this machine has no record, still ends the other nodes."""
    last = 'exec 2> /dev/null; trap "sleep 5; echo last word; exit 0" TERM; echo up; while true; do sleep 0.1; done'
    wait = 'until [ -e "$ORCH_RUN_DIR/enough" ]; do sleep 0.02; done'
    run = _detached(here, f'if [ "$RANK" = 1 ]; then echo up; {wait}; exit 3; fi; {last}')
    with _follow(elsewhere, run, "[n0:0] up", "[n1:1] up", "[n2:2] up") as (following, text):
        _finish(here, run)
        rest, stderr = _rest(following)
    assert _printed(text + rest) == _written(here, run)
    assert (text + rest).count("last word") == 2
    assert f"run {run} is FAILED" in stderr
    failure = until(lambda: _diagnosed(here, run), awaited="the diagnosis of the supervisor")
    assert (failure["kind"], failure["ranks"]) == ("code", [1])


def test_run_whose_agent_was_killed_has_ended_once_no_process_lives(here: Orch, elsewhere: Orch) -> None:
    run = _detached(here, "echo up; exec sleep 1000", "--nodes", "n1")
    with _follow(elsewhere, run, "[n1:0] up") as (following, _):
        here.kill_supervisor(run)
        agent = here.agent_pid(run, "n1")
        os.kill(here.parent_of(agent), signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it ends itself when its guard is gone
            os.kill(agent, signal.SIGKILL)
        _, stderr = _rest(following)
    assert f"run {run} is FAILED" in stderr


def test_nodes_of_the_inventory_without_the_run_are_ignored(here: Orch, elsewhere: Orch) -> None:
    run = _done(here, 'echo "out of $RANK"', "--nodes", "n1")
    done = elsewhere("logs", run, "-i", "inventory.yaml")
    assert _printed(done.stdout) == {"n1": ["out of 0"]}
    assert done.stderr == ""
    assert "its nodes: n1" in elsewhere("logs", run, "-i", "inventory.yaml", "--node", "n0", code=2).stderr


def test_nodes_that_share_a_folder_are_read_once_each(farm: Farm, here: Orch, elsewhere: Orch) -> None:
    farm.inventory(here.cwd, nodes=3, shared=True)
    (elsewhere.cwd / "inventory.yaml").write_bytes((here.cwd / "inventory.yaml").read_bytes())
    run = _done(here, 'echo "out of $RANK"', "--nodes", "n0,n2")
    done = elsewhere("logs", run, "-i", "inventory.yaml")
    assert _printed(done.stdout) == {"n0": ["out of 0"], "n2": ["out of 1"]}


def test_unknown_run_is_refused_naming_the_searched_folders(elsewhere: Orch) -> None:
    done = elsewhere("logs", UNKNOWN_RUN, "-i", "inventory.yaml", code=2)
    assert f"no node of inventory.yaml has a run {UNKNOWN_RUN}" in done.stderr
    assert re.search(r"looked for in /\S+/n0/runs and 2 more folders", done.stderr)


def test_inventory_that_lacks_a_node_of_the_run_is_refused(here: Orch, elsewhere: Orch) -> None:
    run = _done(here)
    fewer = (elsewhere.cwd / "inventory.yaml").read_text("utf-8").replace("name: n2", "name: other")
    (elsewhere.cwd / "inventory.yaml").write_text(fewer, "utf-8")
    assert f"run {run} is on n2 too" in elsewhere("logs", run, "-i", "inventory.yaml", code=2).stderr


def test_node_of_the_run_that_does_not_have_it_is_named(here: Orch, elsewhere: Orch) -> None:
    run = _done(here)
    text = (elsewhere.cwd / "inventory.yaml").read_text("utf-8")
    (elsewhere.cwd / "inventory.yaml").write_text(re.sub(r"/n1$", "/wrong", text, flags=re.MULTILINE), "utf-8")
    done = elsewhere("logs", run, "-i", "inventory.yaml")
    assert re.search(r"warning: n1 has no /\S+/wrong/runs/" + run, done.stderr)
    assert _printed(done.stdout) == {"n0": ["out of 0"], "n2": ["out of 2"]}


@pytest.mark.parametrize(
    "run", ["../x", "latest", "farm", "farm-20260102", f"../runs/{UNKNOWN_RUN}", f"{UNKNOWN_RUN}/..", ""]
)
def test_invalid_run_id_is_refused_before_any_connection(elsewhere: Orch, farm: Farm, run: str) -> None:
    with farm.counted() as connections:
        done = elsewhere("logs", run, "-i", "inventory.yaml", code=2)
        assert connections() == 0
    assert f"RUN is the complete id of a run; {run!r} is not" in done.stderr


def test_record_takes_precedence_over_an_inventory(here: Orch) -> None:
    run = _done(here)
    done = here("logs", run, "-i", "no-such-file.yaml")
    assert "is recorded here" in done.stderr
    assert done.stdout == here("logs", run).stdout


def test_run_without_a_record_is_refused_with_the_option_for_an_inventory(elsewhere: Orch) -> None:
    assert f"orch logs {UNKNOWN_RUN} -i FILE" in elsewhere("logs", UNKNOWN_RUN, code=2).stderr


def test_unreachable_node_is_an_error_only_if_it_has_the_run(here: Orch, elsewhere: Orch) -> None:
    everywhere, on_one = _done(here), _done(here, 'echo "out of $RANK"', "--nodes", "n0")
    file = elsewhere.cwd / "inventory.yaml"
    file.write_text(file.read_text("utf-8").replace("name: n2", "name: n2\n  port: 1"), "utf-8")
    assert _printed(elsewhere("logs", on_one, "-i", "inventory.yaml").stdout) == {"n0": ["out of 0"]}
    done = elsewhere("logs", everywhere, "-i", "inventory.yaml", code=4)
    assert _printed(done.stdout) == {"n0": ["out of 0"], "n1": ["out of 1"]}
    assert re.search(r"n2: .*\(1 of 3\)$", done.stderr, re.MULTILINE)
    done = elsewhere("logs", UNKNOWN_RUN, "-i", "inventory.yaml", code=4)
    assert re.search(r"n2: .*\(1 of 3\)$", done.stderr, re.MULTILINE)
    assert f"no other node of inventory.yaml has the run {UNKNOWN_RUN}" in done.stderr


def test_finished_run_is_followed_past_an_unreachable_node(here: Orch, elsewhere: Orch) -> None:
    run = _done(here)
    file = elsewhere.cwd / "inventory.yaml"
    file.write_text(file.read_text("utf-8").replace("name: n2", "name: n2\n  port: 1"), "utf-8")
    done = elsewhere("logs", "--follow", run, "-i", "inventory.yaml", code=4)
    assert _printed(done.stdout) == {"n0": ["out of 0"], "n1": ["out of 1"]}
    assert "gap: n2 cannot be read" in done.stdout


def test_log_ends_with_4_if_no_node_can_be_reached(here: Orch, elsewhere: Orch, farm: Farm) -> None:
    run = _done(here)
    with farm.down():
        assert "(3 of 3)" in elsewhere("logs", run, "-i", "inventory.yaml", code=4).stderr


def test_damaged_job_is_named(here: Orch, elsewhere: Orch) -> None:
    run = _done(here, 'echo "out of $RANK"', "--nodes", "n0")
    (here.node_folder(run, "n0").parent / "job.json").write_text("[]")
    done = elsewhere("logs", run, "-i", "inventory.yaml", code=4)
    assert re.search(r"n0: /\S+/runs/\S+: attempt-1/job.json is missing or damaged", done.stderr)


def test_cut_connections_lose_no_line_of_a_follower_on_another_machine(here: Orch, elsewhere: Orch, farm: Farm) -> None:
    run = _detached(here, COUNT)
    with _follow(elsewhere, run, "[n0:0] line 20", "[n2:2] line 20") as (following, text):
        farm.drop_connections()
        before = _written(here, run)
        until(
            lambda: all(len(lines) > len(before[node]) + 50 for node, lines in _written(here, run).items()),
            awaited="more lines",
        )
        _finish(here, run)
        rest, stderr = _rest(following)
    assert following.returncode == 0, stderr
    assert _printed(text + rest) == _written(here, run)


@pytest.mark.processes
def test_run_on_this_machine_is_found_and_stopped_without_a_record_too(tmp_path: Path) -> None:
    nodes = [{"name": name} for name in ("a", "b")]
    base = {"name": "machine", "accelerator": "cpu", "transport": "local", "nodes": nodes}
    write_inventory(tmp_path / "inventory.yaml", {**base, "defaults": {"workdir": str(tmp_path / "work")}}, {})
    here = Orch(tmp_path)
    here("ssh-launch", "--", "sh", "-c", 'echo "out of $RANK"')
    run = here.records()[-1]["id"]
    elsewhere = Orch(tmp_path, env={"ORCH_HOME": str(tmp_path / "elsewhere")})
    assert elsewhere.lines(run, "-i", "inventory.yaml") == here.lines(run)
    sleeper = here("ssh-launch", "--detach", "--", "sleep", "1000").stdout.strip()
    assert f"orch stop {sleeper} -i FILE" in elsewhere("stop", sleeper, code=2).stderr
    assert f"run {sleeper} is STOPPED" in elsewhere("stop", "-i", "inventory.yaml").stderr
    assert not here.processes_of(sleeper)
    assert "no run has a living process on the nodes" in elsewhere("stop", "-i", "inventory.yaml", code=2).stderr
