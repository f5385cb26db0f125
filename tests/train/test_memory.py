"""States kept in memory (memory_steps): real ranks that are killed, and continue in another attempt without a checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.node import memory_folder
from tests.grounds import held_task
from tests.grounds.checkpoints import flip
from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm
from tests.train.conftest import DEADLINE_S, HELD, Rank, StartRanks
from tests.until import until

pytestmark = pytest.mark.train

NODES = ("a", "b")
WORDS = ("steps=20", "save_steps=100000", "log_steps=1")
KEPT = "memory_steps=12"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, named for this test."""
    folder = Path("/dev/shm") / f"test-{os.getpid()}-{tmp_path.name}"
    folder.mkdir(mode=0o700)
    yield folder
    shutil.rmtree(folder)


class Run:
    """Attempts of one run with a rank on each of two nodes, as orch's agents start them."""

    def __init__(self, start_ranks: StartRanks, folder: Path, memory: Path) -> None:
        self.start_ranks, self.folder, self.memory, self.attempt = start_ranks, folder, memory, 0

    def start(self, *words: str, nodes: Sequence[str] = NODES) -> list[Rank]:
        self.attempt += 1
        for node in dict.fromkeys(nodes):
            (self.folder / "run" / f"attempt-{self.attempt}" / node / "progress").mkdir(parents=True, mode=0o700)
        envs = [
            {
                "ORCH_RUN_DIR": str(self.folder / "run"),
                "ORCH_ATTEMPT": str(self.attempt),
                "ORCH_NODE": node,
                "ORCH_MEMORY_DIR": str(self.memory / node),
            }
            for node in nodes
        ]
        return self.start_ranks(*WORDS, KEPT, *words, f"out={self.folder / 'out'}", env_of=envs, base=HELD)

    def killed(self, *words: str, nodes: Sequence[str] = NODES) -> None:
        """Run an attempt that is held after step 12, and kill it once it has kept the state of that step."""
        held = _hold(self.folder / "out")
        ranks = self.start(*words, nodes=nodes)
        self.until_kept(ranks, 12, nodes)
        for rank in ranks:
            rank.process.kill()
        for rank in ranks:
            rank.wait()
        held.unlink()

    def until_kept(self, ranks: Sequence[Rank], step: int, nodes: Sequence[str]) -> None:
        """Wait until every rank has kept the state of the step, and the other node has a copy of it."""

        def has_kept() -> bool:
            assert all(rank.process.poll() is None for rank in ranks), "".join(rank.err for rank in ranks)
            return all(records_of(self.memory / node, rank, step) for node in nodes for rank in range(len(ranks)))

        until(has_kept, deadline_s=DEADLINE_S, awaited=f"the state of step {step} in memory")


def _hold(out: Path) -> Path:
    """Have training wait after step 12, as if there were a checkpoint."""
    held = held_task.hold(out, steps=12)
    (out / "step_held").mkdir()
    (out / "step_held" / "manifest.json").touch()
    (out / "metrics.jsonl").touch()
    return held


def records_of(folder: Path, rank: int, step: int) -> list[Path]:
    """The records of a rank's state in a node's folder."""
    found = []
    for path in folder.glob(f"r{rank:05d}-?.json"):
        with contextlib.suppress(FileNotFoundError):  # it is removed before another state is kept
            found += [path] if json.loads(path.read_text())["step"] == step else []
    return found


def _result(folder: Path) -> bytes:
    return (folder / "step_20" / "state.pt").read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        ("strategy=ddp",),
        ("strategy=fsdp2",),
        pytest.param(("strategy=fsdp2", "fsdp.replicas=2"), marks=pytest.mark.slow),
    ],
)
def test_killed_ranks_continue_from_memory_and_read_no_checkpoint(
    start_ranks: StartRanks, tmp_path: Path, memory: Path, words: Sequence[str]
) -> None:
    whole = start_ranks(*WORDS, *words, f"out={tmp_path / 'whole'}", base=HELD)
    run = Run(start_ranks, tmp_path, memory)
    run.killed(*words)
    second = run.start(*words)
    assert [rank.wait() for rank in (*whole, *second)] == [0, 0, 0, 0], second[0].err
    assert "\nresuming from memory, step 12\n" in second[0].out
    assert "step=12 " not in second[0].out
    assert _result(tmp_path / "out") == _result(tmp_path / "whole")


def test_lost_node_continues_from_the_copies_of_another_node(
    start_ranks: StartRanks, tmp_path: Path, memory: Path
) -> None:
    whole = start_ranks(*WORDS, f"out={tmp_path / 'whole'}", base=HELD)
    run = Run(start_ranks, tmp_path, memory)
    run.killed()
    shutil.rmtree(memory / "b")
    second = run.start(nodes=("a", "c"))
    assert [rank.wait() for rank in (*whole, *second)] == [0, 0, 0, 0], second[0].err
    assert "resuming from memory, step 12, of rank 1 from copies on other nodes\n" in second[0].out
    assert _result(tmp_path / "out") == _result(tmp_path / "whole")


def test_damaged_state_is_replaced_by_the_copy(start_ranks: StartRanks, tmp_path: Path, memory: Path) -> None:
    run = Run(start_ranks, tmp_path, memory)
    run.killed()
    (record,) = records_of(memory / "b", 1, 12)
    name = record.with_suffix(".safetensors").name
    flip(memory / "b" / name)
    damage = f"{memory}/b/{name}: its hash does not match"
    second = run.start()
    assert [rank.wait() for rank in second] == [0, 0], second[0].err
    assert f"WARNING: a state in memory is damaged and not used: {damage}\n" in second[0].out
    assert "resuming from memory, step 12, of rank 1 from copies on other nodes\n" in second[0].out


@pytest.mark.slow
def test_part_that_cannot_be_moved_to_its_rank_leaves_the_state_out(
    start_ranks: StartRanks, tmp_path: Path, memory: Path
) -> None:
    run = Run(start_ranks, tmp_path, memory)
    run.killed()
    (copy,) = records_of(memory / "a", 1, 12)
    in_the_way = memory / "c" / copy.with_suffix(".safetensors").name
    in_the_way.mkdir(parents=True)
    in_the_way.parent.chmod(0o700)
    shutil.rmtree(memory / "b")
    shutil.rmtree(tmp_path / "out" / "step_held")
    second = run.start("memory_steps=1000", nodes=("a", "c"))
    assert [rank.wait() for rank in second] == [0, 0], second[0].err
    assert f"WARNING: a state in memory cannot be moved to its rank: {in_the_way}: Is a directory\n" in second[0].out
    assert "resuming" not in second[0].out


@pytest.mark.slow
def test_run_whose_rank_is_killed_continues_from_memory_which_is_removed_at_its_end(tmp_path: Path, farm: Farm) -> None:
    """Under orch, over ssh: nothing was saved but in memory."""
    site = tmp_path / "site"
    (site / "tests" / "grounds").mkdir(parents=True)
    shutil.copy(held_task.__file__, site / "tests" / "grounds")
    farm.inventory(site, nodes=2, env={"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"})
    orch, uid = Orch(site), farm.home.stat().st_uid
    folder = farm.home / secrets.token_hex(4)
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    held = _hold(folder / "out")
    for path in (folder / "out", *(folder / "out").rglob("*")):
        os.chown(path, uid, -1)
    text = folder / "text.txt"
    text.write_text(Path(__file__).read_text() * 9)
    words = (*WORDS, KEPT, f"data.paths={text}", f"out={folder / 'out'}")
    with orch.start("ssh-launch", "--max-retries", "1", *HELD, *words) as launch:
        (record,) = until(orch.records, deadline_s=DEADLINE_S, awaited="the run")
        kept = [Path(memory_folder.ROOT, f"orch-{uid}-{record['id']}.{node}") for node in ("n0", "n1")]
        until(
            lambda: all(records_of(path, rank, 12) for path in kept for rank in (0, 1)),
            deadline_s=DEADLINE_S,
            awaited="the state of step 12 in the memory of both nodes",
        )
        held_task.allow(held, steps=14)  # a rank reports in its next step what it has kept
        progress = orch.node_folder(record["id"], "n1") / "progress" / "1.json"
        until(lambda: '"saved": 12' in progress.read_text(), deadline_s=DEADLINE_S, awaited="the report of it")
        os.kill(orch.rank_pid(record["id"], "n1", 1), signal.SIGKILL)
        held.unlink()
        out, errors = launch.communicate(timeout=DEADLINE_S)
    assert launch.returncode == 0, errors
    assert re.search(r"^\[n0:0\].*resuming from memory, step 12$", out, re.MULTILINE)
    assert (folder / "out" / "step_20").exists()
    assert not any(path.exists() for path in kept)
