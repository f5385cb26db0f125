"""A launcher such as torchrun that every rank starts is noticed; one that a single rank starts belongs to the program."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.nested_launcher import LauncherSearch, command_line
from orchestrator.node.job import Job
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
    """Start a shell with a child, and return the shell's pid once the child runs."""
    with ExitStack() as stack:

        def start_shell(command: str) -> int:
            argv = ["/bin/sh", "-c", f"{command} & echo $!; wait"]
            shell = stack.enter_context(
                subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
            )
            stack.callback(subprocess.run, ["kill", "-KILL", "--", f"-{shell.pid}"], check=False)
            assert shell.stdout is not None
            child = int(shell.stdout.readline())
            until(lambda: command_line(child)[-1:] == ["100"], awaited="the child")
            return shell.pid

        yield start_shell


def _found(pids: list[int], *, ranks: list[int], **program: Any) -> str | None:  # noqa: ANN401  JSON
    fields = {"args": ["train.sh"], "python": False, "cwd": None, "pythonpath": None, **program}
    job = Job(
        node="n0", node_rank=0, run_id="r", attempt=1, run_dir="", bundle_dir="", nodes=None, addresses=[], ranks=ranks,
        program=fields, grace_s=1.0,
    )  # fmt: skip
    search = LauncherSearch(job)
    search.started_s -= 1.0  # the first search is due
    return search.found(pids)


def test_launcher_is_found_only_if_every_rank_has_started_one(start: Start, torchrun: Path) -> None:
    both, without = [start(f"{torchrun} 100"), start(f"{torchrun} 100")], start("sleep 100")
    assert _found(both, ranks=[2]) == "torchrun"
    assert _found([both[0], without], ranks=[2]) is None
    assert _found(both[:1], ranks=[1]) is None
    assert _found(both[:1], ranks=[1, 1]) == "torchrun"
    assert _found(both[:1], ranks=[2], per_node=True) is None


def test_one_launcher_per_node_that_joins_the_other_nodes_is_left_alone(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "torchrun"
    script.write_text("import time\ntime.sleep(100)\n")
    joining = start(f"{sys.executable} {script} --nnodes=2 100")
    assert _found([joining], ranks=[1, 1]) is None
    assert _found([joining], ranks=[1, 1, 1]) == "torchrun"


def test_run_whose_ranks_start_launchers_fails_with_the_line_to_type(ground: Ground, torchrun: Path) -> None:
    ground.job("sh", "-c", f"'{torchrun}' 100 & wait", ranks=[2], slurm=None)
    code, _ = ground.run()
    finished = ground.finished()
    assert (code, finished["state"], finished["no_retry"]) == (93, "FAILED", True)
    assert "each of the 2 ranks has started torchrun, which starts ranks itself" in finished["text"]
    assert "`orch ssh-launch … --per-node -- sh -c " in finished["text"]
