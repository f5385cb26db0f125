"""orch ssh-launch on real sshd addresses: arguments, environment, logs, exit codes, and no process left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.grounds.cli import Orch
from tests.grounds.inventories import write_inventory
from tests.grounds.ports import free_ports
from tests.grounds.sshd import Farm
from tests.until import until

ECHO_ARGS = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['RANK'], os.environ['WORLD_SIZE']]))"


@pytest.fixture
def orch(farm: Farm, tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of two nodes with two ranks each."""
    farm.inventory(tmp_path, nodes=2, devices=2)
    return Orch(tmp_path)


def _nothing_runs(farm: Farm) -> bool:
    return not farm.processes()


def test_users_arguments_reach_every_rank_unchanged(orch: Orch, farm: Farm) -> None:
    (orch.cwd / "python_script.py").write_text(ECHO_ARGS)
    words = ["--n", "3", "a b$c", "-j", "--", "--nodes", "it's", ""]
    orch("ssh-launch", "--", "python_script.py", *words)
    printed = [json.loads(line["text"]) for line in orch.lines() if line["stream"] == "out"]
    assert sorted(printed, key=lambda entry: int(entry[1])) == [[words, str(rank), "4"] for rank in range(4)]
    copied = orch("cp", "latest:python_script.py", "fetched").stdout.splitlines()[0]
    assert (orch.cwd / copied).read_text("utf-8") == ECHO_ARGS
    until(lambda: _nothing_runs(farm), awaited="the agents to be gone")


def test_environment_value_arrives_byte_equal_and_is_per_node(farm: Farm, tmp_path: Path) -> None:
    value = 'a,b "c" $d\n\\ $(touch pwned) `id` \'é'
    inventory = farm.inventory(
        tmp_path, nodes=2, env={"X": value}, setup=["shown() { export SHOWN=1 X=setup; }", "shown"]
    )
    text = inventory.read_text("utf-8").replace("name: n1", "name: n1\n  env: {OWN: 'only, here'}")
    inventory.write_text(text, "utf-8")
    orch = Orch(tmp_path)
    (farm.home / ".bashrc").write_text(
        "export X=from-bashrc\n"
    )  # which `bash -c` reads if it believes that sshd started it
    show = "import os, sys; print(repr((os.environ['X'], os.environ.get('OWN'), os.environ['SHOWN'], os.environ.get('ORCH_SHARED_DIR'), os.path.dirname(sys.executable))))"
    orch("ssh-launch", "--", "bash", "-c", 'exec python3 -c "$0"', show)
    (farm.home / ".bashrc").unlink()
    printed = {line["node"]: line["text"] for line in orch.lines() if line["stream"] == "out"}
    folder = str(farm.python.parent)  # of the inventory's python, which is first on PATH
    assert printed == {
        "n0": repr((value, None, "1", None, folder)),
        "n1": repr((value, "only, here", "1", None, folder)),
    }
    assert not list(farm.home.rglob("pwned"))


def test_failing_line_of_setup_fails_the_launch_and_leaves_nothing(farm: Farm, tmp_path: Path) -> None:
    line = "[ -e $HOME/no-such-file ] || module load cuda"
    farm.inventory(tmp_path, nodes=2, setup=["true", line], env={"TOKEN": "hunter2"})
    orch = Orch(tmp_path)
    done = orch("ssh-launch", "--", "sleep", "1000", code=4)
    assert f"n1: setup: this line ended with 127: {line}" in done.stderr
    assert "module: command not found" in done.stderr
    assert "hunter2" not in done.stderr
    assert orch.status()["state"] == "FAILED"
    until(lambda: _nothing_runs(farm), awaited="the connections to end")


def test_addresses_may_come_from_ssh_config_alone(farm: Farm, tmp_path: Path) -> None:
    workdir = farm.home / "team of many" / "$USER"
    farm.inventory(tmp_path, nodes=["n2", "n0"], aliases=True, shared=True, defaults={"workdir": str(workdir)})
    orch = Orch(tmp_path)
    orch("ssh-launch", "--", "sh", "-c", 'echo "rank $RANK on $ORCH_NODE in $ORCH_RUN_DIR"')
    run = workdir.with_name(farm.user) / "runs" / str(orch.status()["id"])
    out = sorted(line["text"] for line in orch.lines() if line["stream"] == "out")
    assert out == [f"rank 0 on n2 in {run}", f"rank 1 on n0 in {run}"]
    assert [path.name for path in workdir.parent.iterdir()] == [farm.user]


def test_detach_prints_the_id_alone_and_logs_follow_to_the_end(orch: Orch) -> None:
    done = orch("ssh-launch", "--detach", "--", "sh", "-c", "for i in 1 2 3; do echo line $i; done; echo oops >&2")
    run_id = done.stdout.strip()
    assert run_id.startswith("farm-")
    assert len(done.stdout.splitlines()) == 1
    followed = orch("logs", "--follow", run_id).stdout.splitlines()
    assert sorted(line for line in followed if line.startswith("[n1:3]")) == [
        "[n1:3] line 1",
        "[n1:3] line 2",
        "[n1:3] line 3",
        "[n1:3] oops",
    ]
    assert orch.status(run_id)["state"] == "DONE"
    assert (
        orch("logs", run_id[:-2], "--rank", "2", "--grep", "line", "--tail", "2").stdout
        == "[n1:2] line 2\n[n1:2] line 3\n"
    )


def test_failing_rank_gives_code_1_and_names_rank_node_and_code(orch: Orch) -> None:
    lines = """
        [ "$RANK" = 0 ] && echo >made && echo >"$HOME/$ORCH_RUN_ID"
        [ "$RANK" = 3 ] || exec sleep 100
        until [ -e "$HOME/$ORCH_RUN_ID" ]; do sleep 0.1; done
        echo "FileNotFoundError: [Errno 2] No such file or directory: 'made'" >&2
        exit 7
    """
    done = orch("ssh-launch", "--", "sh", "-c", lines, code=1)
    cause = "FileNotFoundError: [Errno 2] No such file or directory: 'made'; n0 has that file, and n1 does not"
    assert f"rank 3 on n1 exited 7: {cause}" in done.stderr
    status = orch.status()
    assert (status["state"], status["exit"]["node"], status["exit"]["rank"], status["exit"]["code"]) == (
        "FAILED",
        "n1",
        3,
        7,
    )
    _, outcome, report = done.stderr.partition(f"run {status['id']} is FAILED")
    assert outcome
    expected = [
        "cause       the file 'made' does not exist on the node",
        "began on    rank 3 on n1",
        f"more        orch diagnose {status['id']}",
    ]
    assert set(expected) <= set(report.splitlines())
    assert (status["failure"]["kind"], status["failure"]["signature"]) == ("config", "file-not-found")
    found = json.loads(orch("diagnose", "--json").stdout)
    diagnosis = (
        found["signature"],
        found["ranks"],
        found["nodes"],
        found["proof"][0]["file"],
        found["proof"][0]["line"],
    )
    assert diagnosis == ("file-not-found", [3], ["n1"], "n1/rank-3.err", 1)
    assert found["unreachable"] is None


def test_failure_on_one_node_ends_the_others(orch: Orch, farm: Farm) -> None:
    orch("ssh-launch", "--", "sh", "-c", '[ "$RANK" = 3 ] && exit 7; exec sleep 1000', code=1)
    until(lambda: _nothing_runs(farm), awaited="every rank to end")


def test_head_ends_the_programs_of_the_other_nodes(farm: Farm, tmp_path: Path) -> None:
    farm.inventory(tmp_path, nodes=3)
    orch = Orch(tmp_path)
    lines = """
        mkdir -p "$HOME/$ORCH_RUN_ID" && cd "$HOME/$ORCH_RUN_ID"
        case $NODE_RANK in
            0) until [ -e n1 ] && [ -e n2 ]; do sleep 0.1; done ;;
            1) touch n1; exit 7 ;;
            *) touch n2; sleep 1000 ;;
        esac
    """
    orch("ssh-launch", "--per-node", "--until-head", "--", "sh", "-c", lines)
    assert orch.status()["state"] == "DONE"
    assert "exited with code 7; the run continues until the program of the first node ends" in orch("logs").stdout
    until(lambda: _nothing_runs(farm), awaited="the end of the others")
    refused = orch("ssh-launch", "--until-head", "--", "sh", "-c", lines, code=2)
    assert "--until-head is for programs that run once per node" in refused.stderr


def test_elastic_run_begins_without_nodes_that_are_off_if_enough_are_left(farm: Farm, tmp_path: Path) -> None:
    inventory = farm.inventory(tmp_path, nodes=3)
    off = inventory.read_text("utf-8").replace("name: n0", f"name: n0\n  port: {free_ports(1)[0]}")
    inventory.write_text(off, "utf-8")
    orch = Orch(tmp_path)
    words = ("--max-retries", "1", "--", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE on $ORCH_NODE"')
    refused = orch("ssh-launch", "--elastic", "3:3", *words, code=4)
    assert "n0: " in refused.stderr
    launched = orch("ssh-launch", "--elastic", "2:3", *words)
    assert re.search(
        r"warning: n0 cannot be reached: .*; the run begins on 2 of 3 nodes \(--elastic\)", launched.stderr
    )
    printed = sorted(line["text"] for line in orch.lines() if line["stream"] == "out")
    assert printed == ["rank 0 of 2 on n1", "rank 1 of 2 on n2"]
    status = orch.status()
    assert (status["state"], [node["node"] for node in status["nodes"]]) == ("DONE", ["n1", "n2"])
    assert [record["node_count"] for record in orch.records() if record["state"] == "DONE"] == [2]


def test_memory_of_nodes_is_given_back_after_a_failure_that_no_attempt_follows(orch: Orch) -> None:
    lines = """
        mkdir -p "$ORCH_MEMORY_DIR" && touch "$ORCH_MEMORY_DIR/$RANK" && echo "kept $ORCH_MEMORY_DIR"
        [ "$RANK" = 3 ] || exec sleep 1000
        until [ -e "${ORCH_MEMORY_DIR%.*}.n0/0" ]; do sleep 0.1; done
        exit 7
    """
    orch("ssh-launch", "--", "sh", "-c", lines, code=1)
    kept = {line["text"].split()[1] for line in orch.lines() if line["text"].startswith("kept ")}
    assert {path.rpartition(".")[2] for path in kept} == {"n0", "n1"}
    assert not [path for path in kept if Path(path).exists()]


def test_rank_that_forbids_a_retry_ends_orch_with_93(orch: Orch) -> None:
    orch("ssh-launch", "--", "sh", "-c", "exit 93", code=93)


def test_run_ends_with_every_line_though_its_terminal_was_closed(orch: Orch, farm: Farm) -> None:
    """The job waits for a file that appears only after the watching orch was killed with its whole session."""
    gate = farm.home / "gate"
    script = f"echo before; while [ ! -e {gate} ]; do sleep 0.05; done; echo after"
    with orch.start("ssh-launch", "--", "sh", "-c", script) as watcher:
        assert watcher.stdout is not None
        until(lambda: "before" in watcher.stdout.readline(), awaited="the first line")  # type: ignore[union-attr]
        os.killpg(watcher.pid, signal.SIGKILL)
        watcher.communicate()
    gate.touch()
    until(lambda: orch.status()["state"] == "DONE", awaited="the run to be DONE")
    gate.unlink()
    out = [line["text"] for line in orch.lines() if line["stream"] == "out"]
    assert sorted(out) == ["after"] * 4 + ["before"] * 4


def test_ctrl_c_stops_watching_and_the_run_continues(orch: Orch, farm: Farm) -> None:
    with orch.start("ssh-launch", "--", "sh", "-c", "echo up; exec sleep 1000") as watcher:
        assert watcher.stdout is not None
        until(lambda: "up" in watcher.stdout.readline(), awaited="the first line")  # type: ignore[union-attr]
        os.killpg(watcher.pid, signal.SIGINT)
        _, stderr = watcher.communicate(timeout=30)
    assert watcher.returncode == 130
    assert "the run continues" in stderr
    assert "Traceback" not in stderr
    assert orch.status()["state"] == "RUNNING"
    orch("stop")
    assert orch.status()["state"] == "STOPPED"
    until(lambda: _nothing_runs(farm), awaited="every process of the run to be gone")


def test_stop_ends_one_run_and_leaves_the_other(orch: Orch) -> None:
    first = orch("ssh-launch", "--detach", "--", "sleep", "1000").stdout.strip()
    second = orch("ssh-launch", "--detach", "--", "sleep", "1000").stdout.strip()
    refusal = orch("stop", code=2).stderr
    assert "2 runs have not ended" in refusal
    assert "2 runs called farm have not ended" in orch("stop", "farm", code=2).stderr
    for run in (first, second):
        assert re.search(rf"^  orch stop {run}   \w+ING, n\[0-1\], started 20\d\d-", refusal, re.MULTILINE)
    orch("stop", first)
    assert orch.status(first)["state"] == "STOPPED"
    assert orch.status(second)["state"] == "RUNNING"
    assert f"run {first} is STOPPED (it had already ended)" in orch("stop", first).stderr
    listed = {run["id"]: run["state"] for run in json.loads(orch("list", "--json").stdout)}
    assert listed == {first: "STOPPED", second: "RUNNING"}
    (orch.home / "runs" / second / "run.json").write_text('{"id": "farm')
    done = orch("stop", second)
    assert "run.json cannot be read: it is damaged: Unterminated string" in done.stderr
    assert f"run {second} is STOPPED" in done.stderr
    assert not orch.processes_of(second)


def test_stopped_run_ends_a_watching_orch_with_6(orch: Orch) -> None:
    with orch.start("ssh-launch", "--", "sh", "-c", "echo up; exec sleep 1000") as watcher:
        assert watcher.stdout is not None
        until(lambda: "up" in watcher.stdout.readline(), awaited="the first line")  # type: ignore[union-attr]
        orch("stop")
        watcher.communicate(timeout=30)
    assert watcher.returncode == 6


def test_bundle_is_pushed_once(orch: Orch, farm: Farm) -> None:
    (orch.cwd / "x.py").write_text("print('one')")
    orch("ssh-launch", "--", "x.py")
    bundles = {path: path.stat().st_ino for path in farm.home.rglob("bundles/*")}
    orch("ssh-launch", "--", "x.py")
    assert {path: path.stat().st_ino for path in farm.home.rglob("bundles/*")} == bundles
    (orch.cwd / "x.py").write_text("print('two')")
    orch("ssh-launch", "--", "x.py")
    assert len(list(farm.home.rglob("bundles/*"))) == len(bundles) + 2


def test_file_of_rank_0_is_there_for_the_others_on_a_shared_workdir_and_never_in_the_bundle(
    farm: Farm, tmp_path: Path
) -> None:
    farm.inventory(tmp_path, nodes=2, shared=True)
    orch = Orch(tmp_path)
    write = '[ "$RANK" = 0 ] && echo "$PWD" >result.txt\n'
    read = 'until [ -s result.txt ]; do sleep 0.1; done; cat result.txt; echo "$ORCH_SHARED_DIR"'
    (tmp_path / "share.sh").write_text(write + read)
    orch("ssh-launch", "--", "sh", "share.sh")
    (code,) = (path.parent for path in farm.home.rglob("result.txt"))
    printed = sorted(line["text"] for line in orch.lines() if line["stream"] == "out")
    assert printed == [*[str(code)] * 2, *[str(code.parent / "shared")] * 2]


def test_nodes_files_are_private(orch: Orch, farm: Farm) -> None:
    before = set(farm.home.rglob("*"))
    orch("ssh-launch", "--", "echo", "hi")
    open_to_others = [
        path
        for path in set(farm.home.rglob("*")) - before
        if path.lstat().st_mode & 0o077 and not path.is_symlink() and "runs" in path.parts
    ]
    assert open_to_others == []


def test_json_lines_are_one_object_each(orch: Orch) -> None:
    orch("ssh-launch", "--", "echo", "hi")
    done = subprocess.run(
        [*orch.argv(["logs", "--json"])], cwd=orch.cwd, env=orch.environ(), check=True, capture_output=True, text=True
    )
    for text in done.stdout.splitlines():
        assert list(json.loads(text)) == ["time", "node", "rank", "stream", "text"]


def test_log_of_the_other_nodes_can_be_read_when_one_is_gone(orch: Orch) -> None:
    """The record holds the nodes' addresses; a closed port for one of them stands for its death."""
    orch("ssh-launch", "--", "echo", "hi")
    [plan] = orch.home.rglob("plan.json")
    stored = json.loads(plan.read_text("utf-8"))
    stored["nodes"][1]["port"] = 1
    plan.write_text(json.dumps(stored))
    done = orch("logs", code=4)
    assert "[n0:0] hi" in done.stdout
    assert "n1: " in done.stderr
    assert orch("logs", "--tail", "9", "--rank", "0").stdout == "[n0:0] hi\n"  # n1 is not needed
    assert orch("status").stdout.split()[1] == "DONE"


def test_more_nodes_than_the_limit_of_open_files(farm: Farm, tmp_path: Path) -> None:
    work = farm.home / "many"
    nodes = [
        {"name": f"m{index}", "address": address, "workdir": str(work / str(index))}
        for index, address in enumerate(farm.addresses(24))
    ]
    inventory = farm.inventory(tmp_path)
    write_inventory(inventory, {**YAML(typ="safe").load(inventory), "nodes": nodes}, {})
    orch = Orch(tmp_path, prefix=("sh", "-c", 'ulimit -Sn 20; exec "$@"', "sh"))
    orch("ssh-launch", "--", "sh", "-c", "echo up")
    assert sum(line["text"] == "up" for line in orch.lines()) == 24


def test_detached_launch_through_a_proxy_command_closes_the_pipe_of_its_errors(farm: Farm, tmp_path: Path) -> None:
    config = farm.write_ssh_config(tmp_path / "config", ProxyCommand=f"ssh -F {farm.ssh_config} -W %h:%p n3")
    farm.inventory(tmp_path, nodes=1, ssh={"config": str(config)})
    orch = Orch(tmp_path)
    run = orch("ssh-launch", "--detach", "--", "sleep", "1000", timeout_s=60).stdout.strip()
    orch("stop", run)
    until(lambda: orch.supervisor(run) is None, awaited="the supervisor to end")
