"""The channel of a rank, as the rank and the node see it: two real ranks of gloo, of which one does not enter a collective."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.node.ranks.rank_channel import CHANNEL, query, rank_bodies
from orchestrator.verdict.positions import suspects
from tests.paths import ROOT
from tests.until import until
from trainer.runtime import channel
from trainer.runtime.channel import open_channel
from trainer.runtime.rank import Rank

if TYPE_CHECKING:
    from orchestrator.node.run.agent_files import RankBody

# Fork: torch is imported once.
RANKS = """
import os, sys
import torch
import torch.distributed as dist
from trainer.runtime.channel import open_channel
from trainer.runtime.rank import Rank

def read():
    sys.stdin.read()

rank = 0 if os.fork() else 1
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
open_channel(Rank.from_env(os.environ), lambda: ("step", 7))
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
for _ in range(3):
    dist.all_reduce(torch.ones(4))
if rank == 1:
    read()
dist.all_reduce(torch.ones(4))
"""


def _env(run: Path, rank: int = 0) -> dict[str, str]:
    launch = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    return {**launch, "ORCH_RUN_DIR": str(run), "ORCH_NODE": "n0", "ORCH_ATTEMPT": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A node folder whose path is longer than the path of a socket may be."""
    path = tmp_path / ("run" * 40) / "attempt-1" / "n0"
    (path / CHANNEL).mkdir(parents=True)
    return path


@pytest.fixture
def ranks(folder: Path, tmp_path: Path) -> Iterator[int]:
    """The pid of rank 0."""
    argv = [sys.executable, "-c", RANKS, str(tmp_path / "store")]
    env = {**os.environ, **_env(folder.parents[1]), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process.pid
        os.killpg(process.pid, signal.SIGKILL)


def _groups(bodies: dict[int, RankBody]) -> list[dict[str, Any]]:
    return [body["groups"] for body in bodies.values()]


@pytest.mark.processes
def test_the_rank_that_does_not_enter_a_collective_is_named_and_so_is_one_that_is_stopped(
    ranks: int, folder: Path
) -> None:
    waits = {"0": {"enqueued": 4, "completed": 3, "waits_for": "all_reduce [[4]]"}}
    expected = [waits, {"0": {"enqueued": 3, "completed": 3}}]

    def found() -> dict[int, RankBody] | None:
        bodies = rank_bodies(str(folder), range(2))
        return bodies if _groups(bodies) == expected and " in read" in bodies[1]["call"] else None

    bodies = until(
        found, deadline_s=120, awaited=lambda: f"a rank that waits, got {_groups(rank_bodies(str(folder), range(2)))}"
    )
    assert (bodies[0]["pid"], bodies[0]["phase"], bodies[0]["step"], bodies[0]["memory"]) == (ranks, "step", 7, None)
    assert re.fullmatch(r"all_reduce, from <string>:\d+ in <module>", bodies[0]["call"])
    late = suspects(bodies, {0: "n0", 1: "n1"})
    sentence = r"rank 1 on n1 not in all_reduce \[\[4\]\], for which rank 0 waits: at <string>:\d+ in read \(number 4 of group 0\)"
    assert re.fullmatch(sentence, late)
    os.kill(ranks, signal.SIGSTOP)
    stopped = until(
        lambda: suspects(rank_bodies(str(folder), range(2)), {0: "n0", 1: "n1"}).partition(": stopped")[0],
        awaited="the stop",
    )
    assert stopped == "rank 0 on n0"


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "orch channel"]


def test_the_socket_is_private_and_its_thread_takes_no_signal(folder: Path) -> None:
    """A signal is for the main thread, or for the one that waits for the warning of Slurm."""
    before = _threads()
    open_channel(Rank.from_env(_env(folder.parents[1])), lambda: ("init", 0))
    state = (folder / CHANNEL / "0").stat()
    assert (stat.S_ISSOCK(state.st_mode), stat.S_IMODE(state.st_mode)) == (True, 0o600)
    (thread,) = set(_threads()) - set(before)
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    blocked = int(re.findall(r"SigBlk:\s+(\w+)", status)[0], 16)
    assert all(blocked & 1 << number - 1 for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT))


def test_a_child_of_the_rank_does_not_take_its_channel_but_a_new_process_does(folder: Path) -> None:
    rank = Rank.from_env(_env(folder.parents[1]))
    with socket.socket(socket.AF_UNIX) as ended:  # as left by a process that was killed
        descriptor = os.open(folder / CHANNEL, os.O_RDONLY)
        ended.bind(f"/proc/self/fd/{descriptor}/0")
        os.close(descriptor)
    open_channel(rank, lambda: ("step", 1))
    open_channel(rank, lambda: ("step", 2))
    assert query(str(folder), [0, 1], [], 10.0) == {0: (os.getpid(), {"pid": os.getpid(), "phase": "step", "step": 1})}


def test_a_wrong_request_and_an_unknown_part_leave_the_channel_open(folder: Path) -> None:
    open_channel(Rank.from_env(_env(folder.parents[1])), lambda: ("step", 1))
    for wrong in (b"", b"{", b"[]", b'{"parts": 3}', b"\xff"):
        with socket.socket(socket.AF_UNIX) as client:
            descriptor = os.open(folder / CHANNEL, os.O_RDONLY)
            client.connect(f"/proc/self/fd/{descriptor}/0")
            os.close(descriptor)
            client.sendall(wrong)
    ((_, answer),) = query(str(folder), [0], ["future", "stacks"], 10.0).values()
    assert answer is not None
    assert (answer["future"], answer["errors"]) == (None, ["future: KeyError('future')"])
    assert "test_rank_channel.py" in answer["stacks"].rpartition("(most recent call first)")[2]


def test_without_the_folder_of_an_agent_there_is_no_channel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _threads()
    open_channel(Rank.from_env(_env(tmp_path)), lambda: ("step", 1))
    assert (capsys.readouterr().err, _threads()) == ("", before)
    (tmp_path / "attempt-1/n0").mkdir(parents=True)
    (tmp_path / "attempt-1/n0/channel").write_text("a file where a folder must be")
    open_channel(Rank.from_env(_env(tmp_path)), lambda: ("step", 1))
    assert capsys.readouterr().err.startswith("WARNING: rank 0 has no channel")


def test_groups_of_a_record_of_nccl_have_the_names_that_all_ranks_know() -> None:
    """A rank numbers its groups by itself; fields of torch 2.9 that are not read are left out."""
    entry = {
        "pg_id": 1,
        "process_group": ["5", "tp"],
        "collective_seq_id": 9,
        "is_p2p": False,
        "input_sizes": [[8, 2]],
        "retired": True,
    }
    record = {
        "entries": [
            {**entry, "profiling_name": "nccl:all_gather"},
            {**entry, "collective_seq_id": 10, "retired": False, "profiling_name": "nccl:all_reduce"},
        ],
        "pg_status": {
            "1": {"last_enqueued_collective": 10, "last_started_collective": 10, "last_completed_collective": 7}
        },
    }
    assert channel.groups(record) == {"5": {"enqueued": 10, "completed": 9, "waits_for": "all_reduce [[8, 2]]"}}
