"""The trainer on doubles of GCU cards (tests/doubles): the numbers of the CPU, by the calls that the card needs."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.grounds.cli import Orch
from tests.grounds.gcu import calls_of, environment
from tests.grounds.metrics import step_numbers
from tests.grounds.ports import free_ports
from tests.grounds.t20 import t20_python
from tests.train.conftest import DEADLINE_S, TINY, StartRanks, Warm, clean_environment
from tests.train.test_scripts import MMENGINE
from tests.until import until

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]

DEVICE = {"t20": "xla", "s60": "gcu"}
WORDS = ("steps=6", "save_steps=3", "accumulation=2", "log_steps=1")


@pytest.mark.parametrize(
    ("generation", "precision"),
    [("t20", "fp32"), ("s60", "fp16"), pytest.param("s60", "fp32", marks=pytest.mark.extended)],
)
def test_trains_and_resumes_with_the_numbers_of_the_cpu(
    start_ranks: StartRanks, tmp_path: Path, generation: str, precision: str
) -> None:
    words = (*WORDS, f"precision={precision}")
    calls, cpu, uninterrupted, resumed = (tmp_path / name for name in ("calls", "cpu", "uninterrupted", "resumed"))
    calls.mkdir()
    env = environment(generation, calls)
    started = [
        start_ranks(*words, f"out={cpu}"),
        start_ranks(*words, f"out={uninterrupted}", "device=gcu", env=env),
    ]
    assert [rank.wait() for ranks in started for rank in ranks] == [0] * 4, started[1][0].err
    on_card, device = started[1], DEVICE[generation]
    assert f"2/2 ranks ready, backend eccl, device {device}\n" in on_card[0].out
    assert f"rank 1 ready, device {device}:1\n" in on_card[1].out
    assert step_numbers(uninterrupted) == step_numbers(cpu)
    for rank in (0, 1):
        stepped = ["optimizer_step ASYNC"] * 6 if generation == "t20" else []
        assert [call for call in calls_of(calls, rank) if call != "destroy_process_group"] == [
            f"set_device {rank}",
            "init_process_group eccl 60",
            f"DistributedDataParallel [{rank}] {device}:{rank}",
            *stepped,
        ]
    resumed.mkdir()
    shutil.copytree(uninterrupted / "step_3", resumed / "step_3")
    restarted = start_ranks(*words, f"out={resumed}", "device=auto", env=env)
    assert [rank.wait() for rank in restarted] == [0, 0], restarted[0].err
    assert f"resuming from {resumed / 'step_3'}, step 3" in restarted[0].out
    assert step_numbers(resumed) == step_numbers(cpu)[3:]
    assert (resumed / "step_6" / "r00000.safetensors").read_bytes() == (
        uninterrupted / "step_6" / "r00000.safetensors"
    ).read_bytes()


DROPPING = """
import signal
import sys
import torch
from trainer.errors import UserError
from trainer.tasks import Task

class Numbers:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() and "torch_gcu" in sys.modules:
            raise UserError("this worker was forked from a process that drives a card")
        if signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            raise UserError("the process that makes batches ends at SIGTERM")
        return torch.full((4,), index / 64)

class Dropping(Task):
    def build_model(self):
        return torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(), torch.nn.Linear(64, 1))
    def build_data(self, split):
        return Numbers() if split == "train" else None
    def loss(self, model, batch):
        if signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            raise UserError("the rank ends at SIGTERM")
        return model(batch).square().mean()
"""


@pytest.mark.extended
@pytest.mark.parametrize(("generation", "workers"), [("t20", 1), ("s60", 0)])
def test_dropout_on_a_card_resumes_bit_for_bit(
    start_ranks: StartRanks, tmp_path: Path, generation: str, workers: int
) -> None:
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0" / "dropping.py").write_text(DROPPING)
    base = (
        "task=dropping:Dropping",
        "steps=4",
        "save_steps=2",
        "log_steps=1",
        "device=gcu",
        "ddp_timeout=60",
        "report=",
    )
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    more: dict[str, Any] = {"world_size": 1, "env": environment(generation), "base": (*base, f"data.workers={workers}")}
    (rank,) = start_ranks(f"out={uninterrupted}", **more)
    assert rank.wait() == 0, rank.err
    resumed.mkdir()
    shutil.copytree(uninterrupted / "step_2", resumed / "step_2")
    (restarted,) = start_ranks(f"out={resumed}", **more)
    assert restarted.wait() == 0, restarted.err
    assert step_numbers(resumed) == step_numbers(uninterrupted)[2:]
    assert rank.err == restarted.err == ""


@pytest.mark.parametrize(
    ("generation", "more", "message"),
    [
        ("t20", {"GCU_DOUBLE_CARDS": "1"}, "rank 1: local rank 1 has no device: this node shows 1 (gcu-t2x)"),
        (
            "t20",
            {"GCU_DOUBLE_NO_ECCL": "1"},
            "cannot join the group (eccl): Distributed package doesn't have ECCL built in",
        ),
        ("s60", {"GCU_DOUBLE_CARDS": "0"}, "rank 0-1: device=gcu: torch_gcu finds no device"),
    ],
)
def test_error_of_a_card_ends_all_ranks_in_bounded_time(
    start_ranks: StartRanks, generation: str, more: dict[str, str], message: str
) -> None:
    began = time.monotonic()
    ranks = start_ranks("device=gcu", "ddp_timeout=600", env={**environment(generation), **more})
    assert all(rank.wait() in (1, 2) for rank in ranks)
    assert time.monotonic() - began < DEADLINE_S / 2  # far below any timeout
    assert message in ranks[0].err
    assert "Traceback" not in ranks[0].err


def test_bytes_are_sent_as_numbers_if_the_library_of_a_t20_does_not_carry_them(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    words = ("steps=2", "save_steps=1", f"out={tmp_path / 'out'}")
    ranks = start_ranks(*words, "device=gcu", env={**environment("t20"), "GCU_DOUBLE_NO_UINT8": "1"})
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].err
    assert len(step_numbers(tmp_path / "out")) == 2


def test_card_that_each_rank_sees_alone_is_refused_if_it_is_the_same_card(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    def start(out: str, *cards: str) -> list[str]:
        ranks = start_ranks(
            "device=gcu",
            "steps=2",
            f"out={tmp_path / out}",
            env=environment("s60"),
            env_of=[{"TOPS_VISIBLE_DEVICES": card} for card in cards],
        )
        return [f"{rank.wait()} {rank.out}{rank.err}" for rank in ranks]

    shared = start("shared", "3", "3")
    assert "2 error: rank 0-1 see one device only, TOPS_VISIBLE_DEVICES=3, and cannot share it: " in shared[0]
    different = start("different", "3", "5")
    assert [text[0] for text in different] == ["0", "0"], different
    assert "rank 1 ready, device gcu:0\n" in different[1]


def test_single_process_on_a_t20_steps_in_the_vendors_safe_mode(warm: Warm, tmp_path: Path) -> None:
    """As the vendor's scripts do without a process group."""
    env = {**clean_environment(), **environment("t20", tmp_path)}
    words = (*TINY, "steps=2", "device=gcu", f"out={tmp_path / 'out'}")
    output = [tmp_path / "stdout", tmp_path / "stderr"]
    assert warm(deepspeed=False).start(words, env=env, cwd=tmp_path, output=output).wait(DEADLINE_S) == 0, output
    assert calls_of(tmp_path, 0).count("optimizer_step SAFEASYNC") == 2


def test_fp16_is_refused_on_a_t20_with_the_vendors_scaler(start_ranks: StartRanks) -> None:
    (rank,) = start_ranks("device=gcu", "precision=fp16", world_size=1, env=environment("t20"))
    assert rank.wait() == 2
    assert "precision=fp16: the card has it, but torch_gcu's own GradScaler" in rank.err


def test_missing_rank_is_named_although_a_t20_has_its_own_store(start_ranks: StartRanks) -> None:
    (rank,) = start_ranks("device=gcu", "ddp_timeout=2", only=0, env=environment("t20"))
    assert rank.wait() == 1
    assert "1/2 ranks ready after 2 s; missing: rank 1" in rank.err


INVENTORY = """
name: here
accelerator: gcu
devices: 1
transport: local
env: {{OMP_NUM_THREADS: 1, PYTHONPATH: "{path}"}}
defaults: {{workdir: "{workdir}"}}
nodes: [{{name: "n[0-1]"}}]
"""
SHARED = ("--share",)  # other tests of this user run on doubles on this machine, too
UNCHECKED = ("--no-check", *SHARED)  # the doubles of torch_gcu have no cards, which the check would miss


@pytest.mark.extended
@pytest.mark.processes
def test_two_nodes_of_t20_train_under_orch(tmp_path: Path) -> None:
    path = environment("t20")["PYTHONPATH"]
    (tmp_path / "inventory.yaml").write_text(INVENTORY.format(path=path, workdir=tmp_path / "work"))
    orch = Orch(tmp_path)
    orch("ssh-launch", *UNCHECKED, "steps=3", "report=", "model.layers=1", "model.width=32", timeout_s=200)
    status = orch.status()
    assert status["state"] == "DONE"
    ready = [rank.get("ready") for node in status["nodes"] for rank in node["progress"].values()]
    assert "2/2 ranks ready, backend eccl, device xla" in ready
    assert status["summary"]["steps"] == 3


PLAIN = """
import os
import torch
import torch_gcu

card = int(os.environ["LOCAL_RANK"])
torch.gcu.set_device(card)
torch.distributed.init_process_group("eccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).to(f"gcu:{card}"), device_ids=[card])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4, device=f"gcu:{card}")).pow(2).mean().backward()
optimizer.step()
print("trained", torch.distributed.get_rank(), next(model.parameters()).device, flush=True)
os._exit(0)  # gloo sometimes aborts at the interpreter's exit, after all work is done
"""


@pytest.mark.extended
@pytest.mark.processes
def test_script_of_plain_torch_trains_on_two_nodes_of_s60_under_orch(tmp_path: Path) -> None:
    path = environment("s60")["PYTHONPATH"]
    (tmp_path / "inventory.yaml").write_text(INVENTORY.format(path=path, workdir=tmp_path / ".work"))
    (tmp_path / "train.py").write_text(PLAIN)
    orch = Orch(tmp_path)
    orch("ssh-launch", *UNCHECKED, "--", "train.py", timeout_s=200)
    assert sorted(line["text"] for line in orch.lines("--grep", "^trained")) == [
        f"trained {rank} gcu:0" for rank in (0, 1)
    ]
    ready = [rank["ready"] for node in orch.status()["nodes"] for rank in node["progress"].values()]
    assert ready == ["2/2 ranks ready, backend eccl, device gcu"] * 2


@pytest.mark.processes
def test_node_without_the_accelerator_of_the_inventory_fails_the_run_and_does_not_train_on_the_cpu(
    tmp_path: Path,
) -> None:
    path = environment("none")["PYTHONPATH"]
    (tmp_path / "inventory.yaml").write_text(INVENTORY.format(path=path, workdir=tmp_path / "work"))
    orch = Orch(tmp_path)
    words = ("-j", "1x1", "steps=3", "report=", "model.layers=1", "model.width=32")
    assert "cards: n0: fewer cards (0) than ranks (1)" in orch("ssh-launch", *SHARED, *words, code=3).stderr
    orch("ssh-launch", *UNCHECKED, *words, code=1)
    error = orch.status()["exit"]["error"]
    assert "device=gcu: torch_gcu is not installed for this Python; install TopsRider" in error


@pytest.fixture
def python_of_t20() -> str:
    return t20_python()


@pytest.mark.extended
@pytest.mark.processes
def test_mmengine_trains_on_a_t20_and_a_group_of_the_scripts_own_is_named(tmp_path: Path, python_of_t20: str) -> None:
    """With the MMEngine, torch and Python of a T20: other versions of MMEngine refuse the double's tensors."""
    path = environment("t20")["PYTHONPATH"]
    inventory = INVENTORY.format(path=path, workdir=tmp_path / "work").replace("devices: 1", "devices: 2")
    inventory = inventory.replace("OMP_NUM_THREADS: 1", "OMP_NUM_THREADS: 1, LAUNCHER: pytorch")
    inventory = inventory.replace("defaults: {", f'defaults: {{python: "{python_of_t20}", ')
    (tmp_path / "inventory.yaml").write_text(inventory)
    (tmp_path / "train.py").write_text(MMENGINE)
    orch = Orch(tmp_path)
    orch("ssh-launch", *UNCHECKED, "--nodes", "n0", "--", "train.py", timeout_s=200)
    trained = sorted(line["text"] for line in orch.lines("--grep", "^(trained|collected)"))
    assert trained == [
        "collected [0, 1, 2, 3, 4, 5, 6, 7]",
        *(f"trained {rank} 2 2 MMDistributedDataParallel" for rank in (0, 1)),
    ]
    ready = [line["text"] for line in orch.lines("--grep", " ready, ")]
    assert sorted(ready) == ["2/2 ranks ready, backend eccl, device xla", "rank 1 ready, device xla:1"]
    orch("ssh-launch", *UNCHECKED, "--nodes", "n0", "--", "train.py", "--cured-of-s0", code=1, timeout_s=200)
    made = 1 + MMENGINE[: MMENGINE.index("torch.distributed.init_process_group")].count("\n")
    error = orch.status()["exit"]["error"]
    assert (
        f"this script has made its own gloo group at train.py:{made}, which holds the port of the rendezvous" in error
    )


@pytest.mark.processes
def test_t20_trains_on_its_own_python_and_torch(tmp_path: Path, python_of_t20: str) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    group_env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    env = {**clean_environment(), **group_env, **environment("t20", calls)}
    words = [*WORDS, "model.layers=1", "model.width=32", "report=", "ddp_timeout=60", "activation_checkpointing=true"]
    ranks = [
        subprocess.Popen(
            [python_of_t20, "-m", "trainer", *words, "device=gcu", f"out={tmp_path / 'out'}"],
            env={**env, "RANK": rank, "LOCAL_RANK": rank},
            cwd=tmp_path,
        )
        for rank in ("0", "1")
    ]
    assert [rank.wait(timeout=DEADLINE_S) for rank in ranks] == [0, 0]
    until((tmp_path / "out" / "step_6").is_dir, awaited="the last checkpoint")
    assert [step for step, *_ in step_numbers(tmp_path / "out")] == [1, 2, 3, 4, 5, 6]
    assert calls_of(calls, 1).count("optimizer_step ASYNC") == 6
