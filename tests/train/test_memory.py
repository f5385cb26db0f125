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
from functools import partial
from pathlib import Path

import pytest

from orchestrator.node.run import memory_folder
from tests.grounds import held_task
from tests.grounds.checkpoints import flip
from tests.grounds.cli import Orch
from tests.grounds.hosts import Hosts
from tests.grounds.metrics import step_numbers
from tests.grounds.sshd import Farm
from tests.train.conftest import DEADLINE_S, HELD, Rank, StartRanks
from tests.until import until

pytestmark = pytest.mark.train

NODES = ("a", "b")
WORDS = ("steps=20", "save_steps=100000", "log_steps=1")
KEPT = "memory_steps=12"
PROGRESS = Path("progress", "1.json")
NODE_ENV = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


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


def _hold(out: Path, *, steps: int = 12) -> Path:
    """Have training wait after that step, as if there were a checkpoint."""
    held = held_task.hold(out, steps=steps)
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
    return (folder / "step_20" / "r00000.safetensors").read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        ("strategy=ddp",),
        pytest.param(("strategy=fsdp2",), marks=pytest.mark.extended),
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


@pytest.mark.extended
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


@pytest.mark.extended
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


class OrchRun:
    """A run of the held task under orch, with a rank on each of two nodes, which keeps every step in memory and saves nothing before the last."""

    def __init__(self, orch: Orch, site: Path, shared: Path, uid: int) -> None:
        """Make the folder `shared`, which all nodes see, for the account `uid`, and the code in `site`."""
        self.orch, self.out, self.uid, self.id = orch, shared / "out", uid, ""
        self.text = shared / "text.txt"
        (site / "tests" / "grounds").mkdir(parents=True)
        shutil.copy(held_task.__file__, site / "tests" / "grounds")
        shared.mkdir()
        shared.chmod(0o777)
        self.text.write_text(Path(__file__).read_text() * 9)
        self.held = _hold(self.out, steps=0)
        for path in (self.out, *self.out.rglob("*")):
            os.chown(path, uid, -1)

    @property
    def words(self) -> tuple[str, ...]:
        return (*HELD, *WORDS, "memory_steps=1", f"data.paths={self.text}", f"out={self.out}")

    def folder(self, node: str) -> Path:
        """The states in the memory of a node, on the node."""
        return Path(memory_folder.ROOT, f"orch-{self.uid}-{self.id}.{node}")

    def await_start(self) -> None:
        (record,) = until(self.orch.records, deadline_s=DEADLINE_S, awaited="the run")
        self.id = record["id"]

    def train(self, folders: Sequence[Path], progress: Path) -> int:
        """
        Let it make some steps, and return the last one once its state is kept.

        Args:
            folders: of the states, in the memory of both nodes.
            progress: of a rank, which reports in a later step, and up to a second later, that it has kept something.
        """
        last = 0
        for _ in range(3):
            held_task.allow(self.held, steps=last + 1)
            last = until(
                partial(self._kept_after, last, folders), deadline_s=DEADLINE_S, awaited=f"step {last + 1} in memory"
            )
        until(lambda: json.loads(progress.read_text())["saved"], deadline_s=DEADLINE_S, awaited="the report of it")
        return last

    def _kept_after(self, step: int, folders: Sequence[Path]) -> int | None:
        """The last recorded step, once it is a later one, and both nodes have the parts of both ranks."""
        last = max((number for number, *_ in step_numbers(self.out)), default=0)
        has_all = all(records_of(folder, rank, last) for folder in folders for rank in (0, 1))
        return last if last > step and has_all else None


@pytest.mark.extended
@pytest.mark.slow
def test_run_whose_rank_is_killed_continues_from_memory_which_is_removed_at_its_end(tmp_path: Path, farm: Farm) -> None:
    """Under orch, over ssh: nothing was saved but in memory, and no whole step is lost."""
    site = tmp_path / "site"
    run = OrchRun(Orch(site), site, farm.home / secrets.token_hex(4), farm.home.stat().st_uid)
    farm.inventory(site, nodes=2, env=NODE_ENV)
    with run.orch.start("ssh-launch", "--max-retries", "1", *run.words) as launch:
        run.await_start()
        kept = [run.folder(node) for node in ("n0", "n1")]
        last = run.train(kept, run.orch.node_folder(run.id, "n1") / PROGRESS)
        os.kill(run.orch.rank_pid(run.id, "n1", 1), signal.SIGKILL)
        run.held.unlink()
        out, errors = launch.communicate(timeout=DEADLINE_S)
    assert launch.returncode == 0, errors
    assert re.search(rf"^\[n0:0\].*resuming from memory, step {last}$", out, re.MULTILINE)
    assert [step for step, *_ in step_numbers(run.out)] == list(range(1, 21))
    assert not any(path.exists() for path in kept)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_run_whose_node_is_lost_continues_on_a_spare_from_the_copies_of_its_neighbour(
    start_ranks: StartRanks, tmp_path: Path, hosts: Hosts
) -> None:
    """The host is gone with all states in its memory. Nothing was saved but in memory, and no whole step is lost."""
    site = tmp_path / "site"
    run = OrchRun(hosts.orch(site), site, hosts.folder / secrets.token_hex(4), hosts.uid)
    hosts.inventory(site, spares=["h2"], env=NODE_ENV)
    options = ("--max-retries", "1", "--isolation-timeout", "5s")
    with run.orch.start("ssh-launch", *options, *run.words) as launch:
        run.await_start()
        folders = [Path(f"/proc/{host.pid}/root{run.folder(host.name)}") for host in hosts.hosts[:2]]
        last = run.train(folders, hosts[1].path(run.orch.node_folder(run.id, "h1") / PROGRESS))
        hosts[1].kill()
        run.held.unlink()
        out, errors = launch.communicate(timeout=DEADLINE_S)
    assert launch.returncode == 0, errors
    resumed = rf"^\[h0:0\].*resuming from memory, step {last}, of rank 1 from copies on other nodes$"
    assert re.search(resumed, out, re.MULTILINE), out
    assert "[h2:1]" in out or "h2" in errors
    words = (*WORDS, f"data.paths={run.text}", f"out={tmp_path / 'whole'}")
    assert [rank.wait() for rank in start_ranks(*words, base=HELD)] == [0, 0]
    assert step_numbers(run.out) == step_numbers(tmp_path / "whole")
    assert _result(run.out) == _result(tmp_path / "whole")
