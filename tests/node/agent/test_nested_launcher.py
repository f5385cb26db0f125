"""A launcher such as torchrun that every rank starts is noticed; one that a single rank starts belongs to the program."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.node.agent.nested_launcher import LauncherSearch
from orchestrator.node.run.job import Job
from orchestrator.node.run.ownership import proc_strings
from tests.node.agent.test_agent_ground import Ground, ground
from tests.until import until

__all__ = ["ground"]

Start = Callable[[str], int]


@pytest.fixture
def torchrun(tmp_path: Path) -> Path:
    """A program that is called torchrun, and sleeps."""
    return Path(shutil.copy(shutil.which("sleep") or "", tmp_path / "torchrun"))


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a shell with a child in this session, as ranks are in their agent's, and return the shell's pid once the child runs."""
    with ExitStack() as stack:

        def start_shell(command: str) -> int:
            argv = ["/bin/sh", "-c", f"{command} & echo $!; wait"]
            shell = stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
            assert shell.stdout is not None
            child = int(shell.stdout.readline())
            stack.callback(_kill_children, shell.pid)
            until(lambda: proc_strings(child, "cmdline")[-2:] == ["100", ""], awaited="the child")
            return shell.pid

        yield start_shell


def _kill_children(pid: int) -> None:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)


def _search(*, ranks: list[int], node_rank: int = 0, master: str = "") -> LauncherSearch:
    fields = {"args": ["train.sh"], "python": False, "cwd": None, "pythonpath": None}
    job = Job(
        node="n0", node_rank=node_rank, run_id="r", attempt=1, run_dir="", bundle_dir="", nodes=None, addresses=[], ranks=ranks,
        program=fields, grace_s=1.0,
    )  # fmt: skip
    search = LauncherSearch(job)
    search.master = master
    return search


def test_launcher_is_found_only_if_every_rank_has_started_one(start: Start, torchrun: Path) -> None:
    both, without = [start(f"{torchrun} 100"), start(f"{torchrun} 100")], start("sleep 100")
    assert _search(ranks=[2]).found_in_ranks(both) == "torchrun"
    assert _search(ranks=[2]).found_in_ranks([both[0], without]) is None
    assert _search(ranks=[2]).found_in_ranks(both[:1]) is None  # the other rank has ended
    assert _search(ranks=[1, 1]).found_in_ranks(both[:1]) == "torchrun"


def test_launcher_that_starts_torchrun_is_not_one_until_it_does(start: Start, tmp_path: Path) -> None:
    """LLaMA-Factory with a single device trains in its own process, as a rank."""
    script = tmp_path / "llamafactory-cli"
    script.write_text("import time\ntime.sleep(100)\n")
    assert _search(ranks=[1, 1]).found_in_ranks([start(f"{sys.executable} {script} train 100")]) is None


def test_one_launcher_per_node_that_joins_the_other_nodes_is_left_alone(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "torchrun"
    script.write_text("import time\ntime.sleep(100)\n")
    joining = start(f"{sys.executable} {script} --nnodes=2 100")
    assert _search(ranks=[1, 1]).found_in_ranks([joining]) is None
    assert _search(ranks=[1, 1, 1]).found_in_ranks([joining]) == "torchrun"


def test_ranks_that_every_rank_starts_by_hand_are_found(start: Start) -> None:
    by_hand = "RANK=0 sleep 99 & RANK=1 sleep 99 & sleep 100"
    both, without = [start(by_hand), start(by_hand)], start("RANK=1 sleep 100")
    assert _search(ranks=[2]).hand_started(both) == "0, 1"
    assert _search(ranks=[2]).hand_started([both[0], without]) == ""
    assert _search(ranks=[2]).hand_started(both[:1]) == ""  # the other rank has ended


@pytest.mark.parametrize(
    ("command", "node_rank", "master", "found"),
    [
        ("{torchrun} --master_addr=127.0.0.1 --nnodes 2 100", 1, "10.0.0.1", "127.0.0.1"),
        ("{torchrun} --rdzv-endpoint localhost:29500 100", 1, "10.0.0.1", "localhost:29500"),
        ("MASTER_ADDR=localhost WORLD_SIZE=4 sleep 100", 1, "10.0.0.1", "localhost"),
        ("MASTER_ADDR=localhost WORLD_SIZE=2 sleep 100", 1, "10.0.0.1", ""),  # of this node alone
        ("{torchrun} --master_addr=127.0.0.1 --nnodes 1 100", 1, "10.0.0.1", ""),
        ("{torchrun} --master_addr=127.0.0.1 --nnodes 2 100", 0, "10.0.0.1", ""),  # rank 0 is here
        ("{torchrun} --master_addr=127.0.0.1 --nnodes 2 100", 1, "127.0.0.10", ""),  # all nodes are on one host
        ("{torchrun} --master_addr=10.0.0.1 --nnodes 2 100", 1, "10.0.0.1", ""),
    ],
)
def test_rank_0_is_not_looked_for_on_another_host(
    start: Start, tmp_path: Path, command: str, node_rank: int, master: str, found: str
) -> None:
    script = tmp_path / "torchrun"
    script.write_text("import time\ntime.sleep(100)\n")
    start(command.format(torchrun=f"{sys.executable} {script}"))
    assert _search(ranks=[2, 2], node_rank=node_rank, master=master).master_on_own_host() == found


def test_searches_are_due_in_the_first_minute_of_a_run_of_several_ranks() -> None:
    search, single = _search(ranks=[2]), _search(ranks=[1])
    assert not search.is_due()
    search.started_s -= 61
    single.started_s -= 61
    assert not single.is_due()
    assert 10 < sum(search.is_due() for _ in range(100)) < 30


@pytest.mark.parametrize(
    ("local", "ranks", "is_lone"), [("2", [2, 2], True), ("1", [2, 2], False), ("2", [2], False), ("2", [4, 2], False)]
)
def test_ranks_without_those_of_other_nodes_are_a_lone_world(
    start: Start, local: str, ranks: list[int], *, is_lone: bool
) -> None:
    """With 4 devices a launcher may start a world of 2 on purpose."""
    start(f"WORLD_SIZE=2 LOCAL_WORLD_SIZE={local} sleep 100")
    assert _search(ranks=ranks).is_lone_world() is is_lone


def test_lone_world_of_a_node_is_a_warning_in_the_log(ground: Ground) -> None:
    ranks = "for rank in 0 1; do WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 RANK=$rank sleep 1 & done; wait"
    ground.job("sh", "-c", ranks, ranks=[2, 2], program={"per_node": True})
    assert ground.run()[0] == 0
    [text] = [event["text"] for event in ground.events("note") if "warning" in event["text"]]
    assert "the ranks on n0 train without the other nodes (WORLD_SIZE=2, while the run has 4 ranks)" in text


def test_run_whose_ranks_start_launchers_fails_with_the_line_to_type(ground: Ground, torchrun: Path) -> None:
    ground.job("sh", "-c", f"'{torchrun}' 100 & wait", ranks=[2], slurm=None)
    code, _ = ground.run()
    finished = ground.finished()
    assert (code, finished["state"], finished["no_retry"]) == (93, "FAILED", True)
    assert "each of the 2 ranks has started torchrun, which starts ranks itself" in finished["text"]
    assert "`orch ssh-launch … --per-node -- sh -c " in finished["text"]


def test_run_whose_ranks_start_ranks_by_hand_fails_with_the_line_to_type(ground: Ground) -> None:
    ground.job("bash", "-c", "for rank in 0 1; do RANK=$rank sleep 100 & done; wait", ranks=[2])
    code, _ = ground.run()
    assert code == 93
    assert (
        "each of the 2 ranks has started the ranks 0, 1 itself; start the program once per node"
        in ground.finished()["text"]
    )


def test_node_that_waits_for_rank_0_on_itself_fails_the_run(ground: Ground) -> None:
    ground.job(
        "sh", "-c", "MASTER_ADDR=localhost WORLD_SIZE=4 RANK=2 sleep 100; :", ranks=[2, 2], program={"per_node": True}
    )
    code, _ = ground.run(1, rendezvous="10.0.0.1 29500 h")
    assert code == 93
    assert (
        "n1 looks for rank 0 at localhost, which is n1 itself, but rank 0 is on another node"
        in ground.finished(1)["text"]
    )


def test_rank_whose_failure_a_script_has_hidden_fails_the_run(ground: Ground) -> None:
    note = """echo '{"rank": "3", "error": "ValueError: bad"}' >error/lost-3.json"""
    ground.job("sh", "-c", f'cd "$ORCH_RUN_DIR/attempt-1/n0"; {note}', ranks=[4], program={"per_node": True})
    assert ground.run()[0] == 1
    assert "rank 3 failed (ValueError: bad), but the program ended with 0" in ground.finished()["text"]


def test_rank_that_a_signal_has_ended_behind_a_script_is_named(ground: Ground) -> None:
    """The run is done: the script may have ended the rank itself."""
    note = """echo '{"rank": "3", "error": null}' >error/lost-3.json"""
    ground.job("sh", "-c", f'cd "$ORCH_RUN_DIR/attempt-1/n0"; {note}', ranks=[4], program={"per_node": True})
    assert ground.run()[0] == 0
    assert any("warning: rank 3 was ended early" in event["text"] for event in ground.events("note"))
