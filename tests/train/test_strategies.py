"""Every strategy on gloo: the losses of DDP, and a killed run over ssh repeats an uninterrupted one."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.node.run.run_folder import STANDBY_RECORD
from tests.grounds import components, held_task
from tests.grounds.checkpoints import flip
from tests.grounds.cli import Orch
from tests.grounds.metrics import StepNumbers, step_numbers
from tests.grounds.sshd import Farm
from tests.grounds.warm_gate import WARM_RANK, WarmGate, open_gate
from tests.grounds.warm_trainer import WarmTrainer
from tests.train.conftest import DEADLINE_S, HELD, StartRanks, Warm, codes, ranks_below
from tests.until import until

pytestmark = pytest.mark.train

# Clips at every step, so the norm has to be that of the whole model.
WORDS = ("steps=12", "save_steps=4", "accumulation=2", "optim.grad_clip=0.5")


@pytest.fixture(scope="module")
def under_ddp(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> StepNumbers:
    folder = tmp_path_factory.mktemp("ddp")
    with ranks_below(folder, warm) as start:
        assert codes(start(*WORDS, f"out={folder / 'out'}")) == [0, 0]
    return step_numbers(folder / "out")


@pytest.fixture
def gate(farm: Farm, warm: Warm) -> Iterator[WarmGate]:
    """The ranks of the farm's nodes are forked from the warm trainers."""

    def trainer_for(words: Sequence[str]) -> WarmTrainer:
        return warm(deepspeed=any(word.startswith("strategy=zero") for word in words))

    with open_gate(farm.folder / f"gate-{secrets.token_hex(4)}", trainer_for) as gate:
        yield gate


@pytest.fixture
def orch(farm: Farm, tmp_path: Path) -> Orch:
    """Two nodes with one rank each; the code in the bundle is two modules."""
    site = tmp_path / "site"
    grounds = site / "tests" / "grounds"
    grounds.mkdir(parents=True)
    shutil.copy(WARM_RANK, site)
    shutil.copy(held_task.__file__, grounds)
    farm.inventory(site, nodes=2, env={"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"})
    return Orch(site)


def _saved_state(checkpoint: Path) -> dict[str, bytes]:
    """The files with weights and moments."""
    state = (*checkpoint.glob("*.pt"), *checkpoint.glob("*.safetensors"))
    assert state
    return {path.name: path.read_bytes() for path in state}


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "resharded"), [("ddp", 0), ("zero1", 0), ("zero3", 3), ("fsdp2", 3)])
def test_killed_run_on_two_nodes_repeats_an_uninterrupted_one_bit_for_bit_and_ddp_nearly(
    start_ranks: StartRanks,
    tmp_path: Path,
    strategy: str,
    resharded: int,
    under_ddp: StepNumbers,
    gate: WarmGate,
    orch: Orch,
) -> None:
    """The uninterrupted run is without orch, the killed one over ssh."""
    if strategy.startswith("zero"):
        components.module("deepspeed")
    words = (*WORDS, f"strategy={strategy}", f"checkpoint={'sharded' if resharded else 'whole'}")
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    assert codes(start_ranks(*words, f"out={uninterrupted}", base=HELD)) == [0, 0]
    for found, expected in zip(step_numbers(uninterrupted), under_ddp, strict=True):
        assert found == pytest.approx(expected, rel=1e-4)
    launch = ("ssh-launch", "--bare", "--", WARM_RANK.name, str(gate.path), *HELD, *words, f"out={killed}")
    held = held_task.hold(killed)
    with orch.start(*launch) as first:
        until((killed / "step_4").exists, deadline_s=DEADLINE_S, awaited="the first checkpoint")
        gate.ranks["1"].kill()
        held.unlink()
        _, errors = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == 1
    assert "is FAILED" in errors  # by rank 1, or by rank 0, which loses its peer and may be as quick
    assert gate.ranks["1"].wait() == -signal.SIGKILL
    done = orch(*launch)
    assert "is DONE" in done.stderr
    assert re.search(r"^\[n0:0\].*resuming from .*, step 4$", done.stdout, re.MULTILINE)
    assert step_numbers(killed) == step_numbers(uninterrupted)
    assert _saved_state(killed / "step_12") == _saved_state(uninterrupted / "step_12")

    if not resharded:  # takes seconds for each strategy
        return
    third = start_ranks(*words, "steps=13", f"out={killed}", world_size=resharded, base=HELD)
    assert set(codes(third)) == {0}
    assert f"WARNING: the checkpoint was written by 2 ranks and is split over {resharded} now" in third[0].out
    *_, (_, before, *_), (step, loss, *_) = step_numbers(killed)
    assert step == 13
    assert loss == pytest.approx(before, abs=0.3)


@pytest.mark.extended
@pytest.mark.slow
def test_killed_run_of_the_shipped_trainer_on_two_nodes_repeats_an_uninterrupted_one_bit_for_bit(
    start_ranks: StartRanks, tmp_path: Path, farm: Farm, orch: Orch
) -> None:
    """It is restarted, from the processes that wait on the nodes. `python -m trainer` under the nodes' account imports DeepSpeed itself."""
    components.module("deepspeed")
    folder, uninterrupted = farm.home / secrets.token_hex(4), tmp_path / "uninterrupted"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    held = held_task.hold(folder / "out")
    os.chown(held.parent, farm.home.stat().st_uid, -1)
    killed, text = folder / "out", folder / "text.txt"
    text.write_text(Path(__file__).read_text() * 9)
    words = (*WORDS, "strategy=zero2", f"data.paths={text}")
    assert codes(start_ranks(*words, f"out={uninterrupted}", base=HELD)) == [0, 0]
    with orch.start("ssh-launch", "--max-retries", "1", *HELD, *words, f"out={killed}") as launch:
        until((killed / "step_4").exists, deadline_s=DEADLINE_S, awaited="the first checkpoint")
        (record,) = orch.records()
        standbys = [orch.node_folder(record["id"], node) / STANDBY_RECORD for node in ("n0", "n1")]
        until(lambda: all(map(_is_ready, standbys)), deadline_s=DEADLINE_S, awaited="the imports of the next attempt")
        os.kill(orch.rank_pid(record["id"], "n1", 1), signal.SIGKILL)
        held.unlink()
        out, errors = launch.communicate(timeout=DEADLINE_S)
    assert launch.returncode == 0, errors
    assert re.search(r"^\[n0:0\].*resuming from .*, step 4$", out, re.MULTILINE)
    for node in ("n0", "n1"):
        assert f"[{node}:-] the ranks are forked from a process that has imported the trainer" in out
    assert step_numbers(killed) == step_numbers(uninterrupted)
    assert _saved_state(killed / "step_12") == _saved_state(uninterrupted / "step_12")
    assert orch.processes_of(record["id"]) == []


def _is_ready(record: Path) -> bool:
    return record.exists() and bool(json.loads(record.read_text()).get("ready"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saved", "form", "resumed"),
    [
        ("ddp", "sharded", (("fsdp2", 4), ("zero3", 2), ("ddp", 1))),
        pytest.param("zero1", "sharded", (("zero0", 1),), marks=pytest.mark.extended),
        pytest.param("zero3", "sharded", (("fsdp2", 1),), marks=pytest.mark.extended),
        pytest.param("zero0", "whole", (("zero3", 1),), marks=pytest.mark.extended),
        ("fsdp2", "whole", (("zero2", 1),)),
    ],
)
def test_checkpoint_resumes_under_another_strategy_and_world_size(
    start_ranks: StartRanks, tmp_path: Path, saved: str, form: str, resumed: Sequence[tuple[str, int]]
) -> None:
    """With the micro batch that gives the same batches. The loss of step 4 depends on the loaded moments."""
    components.module("deepspeed")
    words = ("steps=4", "save_steps=2", f"checkpoint={form}")
    of_two = tmp_path / "two"
    assert codes(start_ranks(*words, f"strategy={saved}", f"out={of_two}")) == [0, 0]
    assert (of_two / "step_2" / "r00001.safetensors").exists() == (form == "sharded")
    for strategy, ranks in resumed:
        out = tmp_path / strategy
        shutil.copytree(of_two / "step_2", out / "step_2")
        out.chmod(0o700)
        batch = f"micro_batch={8 // ranks}"
        started = start_ranks(*words, f"strategy={strategy}", f"out={out}", batch, world_size=ranks)
        assert set(codes(started)) == {0}, started[0].err
        if strategy != saved:
            assert f'strategy: "{saved}" -> "{strategy}"' in started[0].out
        if ranks != 2:
            assert f"WARNING: the checkpoint was written by 2 ranks and is split over {ranks} now" in started[0].out
        assert step_numbers(out) == [pytest.approx(numbers, rel=1e-5) for numbers in step_numbers(of_two)[2:]]


@pytest.mark.slow
def test_losses_of_a_training_that_changes_strategy_and_world_size_are_those_of_one_that_does_not(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    """Each part continues from the shards of the one before, with the micro batch that gives the same batches."""
    components.module("deepspeed")
    words = (*WORDS, "accumulation=1", "save_steps=2", "optim.schedule=constant", "checkpoint=sharded")
    straight, out = tmp_path / "straight", tmp_path / "out"
    assert codes(start_ranks(*words, "steps=8", f"out={straight}")) == [0, 0]
    for step, (strategy, ranks) in zip((2, 4, 6, 8), (("ddp", 2), ("fsdp2", 4), ("zero3", 2), ("ddp", 1)), strict=True):
        settings = (f"strategy={strategy}", f"steps={step}", f"micro_batch={8 // ranks}", f"out={out}")
        started = start_ranks(*words, *settings, world_size=ranks)
        assert set(codes(started)) == {0}, started[0].err
        assert step == 2 or f"resuming from {out}/step_{step - 2}, step {step - 2}\n" in started[0].out
    assert step_numbers(out) == [pytest.approx(numbers, rel=1e-5) for numbers in step_numbers(straight)]
    assert sorted(path.name for path in out.glob("step_*")) == ["step_4", "step_6", "step_8"]  # of 4, 2 and 1 ranks
    flip(out / "step_8" / "r00000.safetensors")
    (repeated,) = start_ranks(*words, "steps=8", "micro_batch=8", f"out={out}", world_size=1)
    assert repeated.wait() == 0
    assert f"resuming from {out}/step_6, step 6\n" in repeated.out
    assert step_numbers(out) == [pytest.approx(numbers, rel=1e-5) for numbers in step_numbers(straight)]


@pytest.mark.slow
def test_users_deepspeed_file_is_completed_or_refused_on_all_ranks(start_ranks: StartRanks, tmp_path: Path) -> None:
    components.module("deepspeed")
    file, out = tmp_path / "zero.json", tmp_path / "out"
    words = ("strategy=zero0", "steps=1", f"out={out}", f"deepspeed={file}")
    file.write_text('{"train_batch_size": 100}')
    ranks = start_ranks(*words)
    assert codes(ranks) == [2, 2]
    message = f"error: {file}: train_batch_size=100, but micro_batch=4 x 2 ranks x accumulation=1 = 8"
    assert ranks[0].err.splitlines()[-1].startswith(message)
    assert "error: " not in ranks[1].err
    file.write_text('{"train_batch_size": "auto", /* by hand */ "zero_optimization": {"reduce_bucket_size": 5e8,},}')
    ranks = start_ranks(*words)
    assert codes(ranks) == [0, 0]
    assert "batch 8 = micro_batch 4 x devices 2 x nodes 1 x accumulation 1\n" in ranks[0].out
    made = json.loads((out / "deepspeed.json").read_text())
    assert made["train_batch_size"] == 8
    assert made["zero_optimization"] == {
        "reduce_bucket_size": 500_000_000,
        "stage": 0,
        "offload_optimizer": {"device": "none"},
        "offload_param": {"device": "none"},
    }


@pytest.mark.extended
@pytest.mark.slow
def test_replicas_of_shards_train_as_ddp_and_resume_each_others_checkpoints(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    """Two replicas of two shards. The norm is that of the whole model, as in WORDS, and no element is in two files."""
    words = (*WORDS, "steps=4", "save_steps=2", "micro_batch=2")
    under = {
        "ddp": ("strategy=ddp", "checkpoint=whole"),
        "replicas": ("strategy=fsdp2", "fsdp.replicas=2", "fsdp.reshard=false", "checkpoint=sharded"),
    }
    for name, settings in under.items():
        assert set(codes(start_ranks(*words, *settings, f"out={tmp_path / name}", world_size=4))) == {0}
    expected = step_numbers(tmp_path / "ddp")
    assert step_numbers(tmp_path / "replicas") == [pytest.approx(numbers, rel=1e-5) for numbers in expected]
    sizes = [(tmp_path / f"replicas/step_2/r0000{rank}.safetensors").stat().st_size for rank in range(4)]
    assert max(sizes) < 1.2 * min(sizes)
    for saved, resumed, ranks in (("ddp", "replicas", 4), ("replicas", "ddp", 1)):
        out = tmp_path / f"{saved}-{resumed}"
        shutil.copytree(tmp_path / saved / "step_2", out / "step_2")
        out.chmod(0o700)
        started = start_ranks(*words, *under[resumed], f"micro_batch={8 // ranks}", f"out={out}", world_size=ranks)
        assert set(codes(started)) == {0}, started[0].err
        assert step_numbers(out) == [pytest.approx(numbers, rel=1e-5) for numbers in expected[2:]]


@pytest.mark.extended
@pytest.mark.slow
def test_replicas_in_bf16_with_averages_and_saves_in_the_background_resume_bit_for_bit(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    words = (
        *WORDS,
        "steps=4",
        "save_steps=2",
        "micro_batch=2",
        "strategy=fsdp2",
        "precision=bf16",
        "optim.fused=true",
        "optim.ema=0.9",
    )
    replicas = ("fsdp.replicas=2", "async_save=true", "checkpoint=sharded")
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert set(codes(start_ranks(*words, *replicas, f"out={whole}", world_size=4))) == {0}
    shutil.copytree(whole / "step_2", resumed / "step_2")
    resumed.chmod(0o700)
    assert set(codes(start_ranks(*words, *replicas, f"out={resumed}", world_size=4))) == {0}
    shards = {path.name: path.read_bytes() for path in (whole / "step_4").glob("r*.safetensors")}
    assert {path.name: path.read_bytes() for path in (resumed / "step_4").glob("r*.safetensors")} == shards
    assert len(shards) == 4
    assert set(codes(start_ranks(*words, f"out={tmp_path / 'unshared'}", world_size=4))) == {0}
    expected = [pytest.approx(numbers, rel=1e-3) for numbers in step_numbers(tmp_path / "unshared")]
    assert step_numbers(whole) == expected
