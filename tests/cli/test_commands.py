"""The commands on runs of this machine: their output, their records and their limits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.until import until

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


@pytest.fixture
def orch(tmp_path: Path) -> Orch:
    """orch with an inventory of two local nodes; the agent of the second starts when the file `.gate` appears."""
    slow = tmp_path / ".slow-python"
    slow.write_text(SLOW.replace("GATE", str(tmp_path / ".gate")).replace("PYTHON", sys.executable))
    slow.chmod(0o755)
    text = INVENTORY.replace("WORKDIR", str(tmp_path / ".work")).replace("PYTHON", str(slow))
    (tmp_path / "inventory.yaml").write_text(text)
    return Orch(tmp_path)


def _open_gate(orch: Orch) -> None:
    (orch.cwd / ".gate").touch()


def _done(orch: Orch, *program: str) -> str:
    _open_gate(orch)
    orch("ssh-launch", "--", *program)
    return str(orch.status()["id"])


def test_status_and_logs_do_not_change_a_launch_in_progress(orch: Orch) -> None:
    """One agent runs, the other has not started: neither `status` nor `logs -f` reports a lost run."""
    with orch.start("ssh-launch", "--", "echo", "hi") as launch:
        until(lambda: list(orch.cwd.glob(".work/runs/*/attempt-1/n0/agent.json")), awaited="the first agent")
        assert orch.status()["state"] == "STARTING"
        with orch.start("logs", "--follow") as follower:
            assert orch.status()["state"] == "STARTING"
            _open_gate(orch)
            out, _ = launch.communicate(timeout=60)
            followed, errors = follower.communicate(timeout=60)
    assert (launch.returncode, follower.returncode) == (0, 0), errors
    assert "[n1:1] hi" in out
    assert "[n1:-]" not in out  # it is done, so nothing but routine events
    assert "[n1:1] hi" in followed
    assert orch.status()["state"] == "DONE"


@pytest.mark.parametrize("end", ["done", "stopped"])
def test_supervisor_log_of_an_ordinary_run_is_empty(orch: Orch, end: str) -> None:
    _open_gate(orch)
    seconds = "1" if end == "done" else "1000"
    run = orch("ssh-launch", "--detach", "--", "sleep", seconds).stdout.strip()
    until(lambda: orch.supervisor(run), awaited="the supervisor")
    if end == "stopped":
        _status_warns_of_idle_cards(orch, run)
        orch("stop", run)
    until(lambda: not orch.supervisors(), awaited="the supervisor to end")
    assert orch.status(run)["state"] == end.upper()
    assert (orch.home / "runs" / run / "supervisor.log").read_text("utf-8") == ""


def _status_warns_of_idle_cards(orch: Orch, run: str) -> None:
    """The agent's report is written by the test, as this machine has no cards."""
    cards = {"time": 1.0, "tool": "nvidia-smi", "error": "", "cards": [], "idle": [1], "expected": 2, "used": 1}
    (orch.cwd / ".work" / "runs" / run / "attempt-1" / "n0" / "cards.json").write_text(json.dumps(cards))
    assert "n0: 1 of 2 cards idle (nvidia-smi shows 0 % on 1" in orch("status", run).stderr
    status = orch.status(run)
    assert [node["agent"]["binding"]["cpus"] for node in status["nodes"]] == [[], []]  # this machine has no cards
    [finding] = status["findings"]
    assert (finding["check"], finding["nodes"], finding["severity"]) == ("idle-cards", ["n0"], "WARN")


def test_launch_that_was_killed_is_lost_until_it_is_stopped(orch: Orch) -> None:
    with orch.start("ssh-launch", "--", "sleep", "1000") as launch:
        until(lambda: list(orch.cwd.glob(".work/runs/*/attempt-1/n0/agent.json")), awaited="the first agent")
        os.kill(orch.supervisors()[0], signal.SIGKILL)
        launch.communicate()
    status = json.loads(orch("status", "--json", code=5).stdout)
    assert status["state"] == "LOST"
    assert "no trace of the run on n1" in status["message"]
    orch("stop")
    assert orch.status()["state"] == "STOPPED"


def test_run_after_two_dashes_is_selected(orch: Orch) -> None:
    first = _done(orch, "echo", "first")
    _done(orch, "echo", "second")
    assert "first" in orch("logs", "--", first).stdout
    orch("stop", "--", "nope", code=2)


@pytest.mark.parametrize("program", [[], [""]])
def test_nothing_after_two_dashes_does_not_start_the_trainer(orch: Orch, program: list[str]) -> None:
    assert "there is no program after --" in orch("ssh-launch", "--", *program, code=2).stderr


def test_tail_counts_lines_without_a_newline_too(orch: Orch) -> None:
    _done(orch, "printf", "one\\ntwo")
    assert len(orch("logs", "--tail", "1").stdout.splitlines()) == 1
    assert orch("logs", "--tail", "0").stdout == ""
    assert orch("logs", "--rank", "0", "--tail", "2").stdout == "[n0:0] one\n[n0:0] two\n"


def test_output_of_a_rank_is_printed_before_its_exit(orch: Orch) -> None:
    _open_gate(orch)
    quiet = orch("ssh-launch", "--quiet", "--", "echo", "last line")
    assert (sorted(quiet.stdout.splitlines()), quiet.stderr) == (["[n0:0] last line", "[n1:1] last line"], "")
    texts = [line["text"] for line in orch.lines("--node", "n0")]
    assert texts.index("last line") < next(k for k, text in enumerate(texts) if "exited with code 0" in text)
    assert orch("logs", "--node", "n0").stdout == "[n0:0] last line\n"
    folded, unfolded = {"[n[0-1]:*] last line"}, {"[n0:0] last line", "[n1:1] last line"}  # if one node was much slower
    assert set(orch("logs", "--fold").stdout.splitlines()) in (folded, unfolded)
    watched = orch("ssh-launch", "--quiet", "--fold", "--", "echo", "last line").stdout
    assert set(watched.splitlines()) in (folded, unfolded)
    assert "exclude each other" in orch("logs", "--fold", "--json", code=2).stderr
    assert "exited with code 0" in orch("logs", "--node", "n0", "--stream", "event").stdout


def test_ranks_that_the_run_does_not_have_are_refused_at_once(orch: Orch) -> None:
    _done(orch, "true")
    for ranks in ("0-99999999999", "2", "1-0"):
        assert "the run has ranks 0 to 1" in orch("logs", "--rank", ranks, code=2).stderr


def test_program_of_a_node_that_fails_ends_the_run_and_is_named_with_its_last_lines(orch: Orch) -> None:
    """A process that the program started, as torchrun starts ranks, ends with it."""
    _open_gate(orch)
    script = "sleep 1000 & [ $NODE_RANK = 1 ] && { echo lost >&2; exit 3; }; wait"
    run = orch("ssh-launch", "--detach", "--per-node", "--", "sh", "-c", script).stdout.strip()
    until(lambda: orch.recorded(run) == "FAILED", awaited="the supervisor's verdict")
    status = orch.status()
    assert [node["finished"]["state"] for node in status["nodes"]] == ["STOPPED", "FAILED"]
    assert (status["exit"]["rank"], status["exit"]["code"], status["exit"]["lines"]) == (None, 3, ["lost"])
    assert "first failure: the program on n1 exited 3" in orch("status", code=1).stdout


def test_damaged_records_are_named_and_other_runs_are_listed(orch: Orch) -> None:
    broken = _done(orch, "true")
    whole = _done(orch, "true")
    (orch.home / "runs" / broken / "run.json").write_text("{")
    listed = orch("list")
    assert whole in listed.stdout
    assert "run.json cannot be read" in listed.stderr
    (orch.home / "runs" / whole / "plan" / "plan.json").write_text("{}")
    for command in ("status", "logs", "stop"):
        assert "plan.json cannot be read" in orch(command, whole, code=2).stderr


def test_argument_that_is_not_text_arrives_byte_for_byte(orch: Orch) -> None:
    _open_gate(orch)
    (orch.cwd / "show.py").write_text("import os, sys; print(os.fsencode(sys.argv[1]))")
    orch("ssh-launch", "--", "show.py", "\udcff\udcfe x")
    assert "[n0:0] b'\\xff\\xfe x'" in orch("logs").stdout


def test_program_runs_in_the_folder_it_was_started_in_even_if_that_is_empty_also_when_rerun_elsewhere(
    orch: Orch,
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=orch.cwd, check=True)
    (orch.cwd / "up.py").write_text("import os; print(os.path.basename(os.getcwd()))")
    (orch.cwd / "empty").mkdir()
    inner = Orch(orch.cwd / "empty", env={"ORCH_INVENTORY": str(orch.cwd / "inventory.yaml")})
    _open_gate(orch)
    assert "[n0:0] empty" in inner("ssh-launch", "--", "../up.py").stdout
    elsewhere = Orch(orch.cwd, env={"ORCH_HOME": str(inner.home)})
    assert elsewhere("rerun", "--nodes", "n0", "latest").stdout == "[n0:0] empty\n"
    assert json.loads(elsewhere("status", "--json").stdout)["rerun_of"] is not None


def test_files_of_a_run_are_copied_from_the_nodes_that_have_them(orch: Orch) -> None:
    write = "[ $RANK = 1 ] || { mkdir -p res/deep; echo m >res/deep/model; ln -s deep res/link; ln -s /etc res/out; }"
    _done(orch, "sh", "-c", write)
    shared = orch("cp", ":./res", "fetched")
    assert shared.stdout == "fetched/res\n"
    assert "n0: out is not copied: an absolute link, one that leads out of" in shared.stderr
    assert (orch.cwd / "fetched" / "res" / "link" / "model").read_text() == "m\n"
    assert sorted(orch("cp", "latest:DONE", "fetched").stdout.splitlines()) == ["fetched/n0/DONE", "fetched/n1/DONE"]
    assert orch("cp", "latest:rank-1.out", "fetched").stdout == "fetched/rank-1.out\n"
    assert "fetched/res exists" in orch("cp", "latest:res", "fetched", code=2).stderr
    assert "no node of run" in orch("cp", "--node", "n0", "latest:rank-1.out", code=2).stderr
    assert "leads out of the run's folder" in orch("cp", "latest:res/out/passwd", code=4).stderr
    assert "leads out of the run's folder" in orch("cp", "latest:../x", code=2).stderr
    assert "is not RUN:PATH" in orch("cp", "latest", code=2).stderr
    assert sorted(path.name for path in (orch.cwd / "fetched").iterdir()) == ["n0", "n1", "rank-1.out", "res"]


def test_homes_of_the_records_are_private_whatever_the_umask(orch: Orch) -> None:
    _done(orch, "true")
    assert {path.stat().st_mode & 0o777 for path in (orch.home, orch.home / "runs")} == {0o700}


def test_closed_or_ascii_output_prints_no_traceback(orch: Orch) -> None:
    _done(orch, "printf", "\\303\\251\\n")
    for command in ("list >&-", "logs >&-", "logs 2>&-", "logs >/dev/full"):
        words = f'"$0" -m orchestrator {command}'
        done = subprocess.run(
            ["sh", "-c", words, sys.executable],
            cwd=orch.cwd,
            env=orch.environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
    ascii_only = Orch(orch.cwd, env={"PYTHONIOENCODING": "ascii"})
    assert "\\xe9" in ascii_only("logs", "--rank", "0").stdout


def test_error_message_of_a_rank_neither_moves_the_cursor_nor_is_read_as_markup(orch: Orch) -> None:
    _open_gate(orch)
    message = r'{"message": "no [/data] [red]x \u001b]0;title\u0007"}'
    program = ("sh", "-c", 'printf %s "$1" > "$TORCHELASTIC_ERROR_FILE"; exit 1', "sh", message)
    followed = orch("ssh-launch", "--", *program, code=1)
    shown = [followed.stderr, orch("list").stdout, orch("status", code=1).stdout]
    for text in shown:
        assert r"no [/data] [red]x \x1b]0;title\x07" in text
        assert "\x1b" not in text


def test_status_shows_an_incomplete_progress_file_with_the_values_that_it_has(orch: Orch) -> None:
    inventory = orch.cwd / "inventory.yaml"
    inventory.write_text(inventory.read_text().partition("nodes:")[0] + 'nodes: [{name: "n[0-3]"}]')
    cells_of_file = {
        '{"step": 5}': "5",
        '{"phase": "step", "time": 0}': "step",
        '{"step": 5, "steps": 9, "phase": "eval", "time": "noon"}': "5/9  eval",
        '{"summary": "a word"}': "",
    }
    write = 'shift "$RANK"; printf %s "$1" > "$ORCH_RUN_DIR/attempt-1/$ORCH_NODE/progress/$RANK.json"'
    orch("ssh-launch", "--", "sh", "-c", write, "sh", *cells_of_file)
    rows = [line.split() for line in orch("status").stdout.splitlines() if line.strip().startswith("n")]
    for rank, (row, cells) in enumerate(zip(rows, cells_of_file.values(), strict=True)):
        expected = f"n{rank} {rank} DONE {cells}".split()
        assert row[: len(expected)] == expected


HEAVY = ("asyncio", "cryptography", "fabric", "jinja2", "paramiko", "pydantic", "rich", "ruamel", "submitit")
LOADED = "import sys; from orchestrator.cli.app import main; main(); print(*sys.modules, file=sys.stderr)"


def test_command_that_needs_no_inventory_imports_no_slow_module(orch: Orch) -> None:
    _done(orch, "true")
    for words in (["--help"], ["status", "--json"], ["logs"], ["stop"], ["list", "--json"]):
        argv = [sys.executable, "-c", LOADED, *words]
        done = subprocess.run(argv, cwd=orch.cwd, env=orch.environ(), capture_output=True, text=True, check=True)
        assert not {name.partition(".")[0] for name in done.stderr.split()}.intersection(HEAVY), words


@pytest.mark.processes
def test_launch_over_ssh_imports_no_launcher_of_slurm(orch: Orch) -> None:
    _open_gate(orch)
    argv = [sys.executable, "-c", LOADED, "ssh-launch", "--", "true"]
    done = subprocess.run(argv, cwd=orch.cwd, env=orch.environ(), capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in done.stderr.split()}.intersection(HEAVY)
    argv = [sys.executable, "-c", "import sys, orchestrator.usecases.owner.owner; print(*sys.modules)"]
    modules = set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    assert "orchestrator.launchers.direct" in modules
    assert not {f"orchestrator.launchers.slurm.{name}" for name in ("launcher", "host", "login_node")} & modules


@pytest.mark.processes
def test_ssh_transport_does_not_import_the_modules_that_check_an_inventory() -> None:
    program = (
        "import sys, orchestrator.supervision.supervisor, orchestrator.transports.ssh.transport; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "paramiko" in loaded
    assert not loaded.intersection({"pydantic", "ruamel.yaml", "jinja2", "rich", "orchestrator.inventory.model"})
