"""Start real ranks, under torchrun, or one by one as orch's agent does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.grounds.ports import free_ports
from tests.grounds.warm_trainer import DEEPSPEED_MODULES, MODULES, WarmProcess, WarmTrainer

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 200.0
TINY = (
    "model.layers=1", "model.width=32", "model.heads=2", "model.context=32", "micro_batch=4",
    "optim.warmup_steps=2", "device=cpu", "ddp_timeout=60", "report=",
)  # fmt: skip
# torch reads these when a warm trainer imports it. Programs that test for vector instructions take as long as the kernels to compile.
COMPILING = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "0"}
# The same model, which is in the task.
HELD = ("task=tests.grounds.held_task:Held", *(word for word in TINY if not word.startswith("model.")))


def clean_environment() -> dict[str, str]:
    """The environment of this process without the variables of a launcher."""
    launcher = ("ORCH_", "TORCHELASTIC_", "MASTER_", "PET_", "GROUP_", "ROLE_")
    plain = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
    inherited = {key: value for key, value in os.environ.items() if key not in plain and not key.startswith(launcher)}
    return {**inherited, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@dataclass
class Rank:
    """One started rank; its output is in files, which are complete once it has ended."""

    number: int
    process: WarmProcess
    folder: Path

    def wait(self) -> int:
        return self.process.wait(timeout=DEADLINE_S)

    @property
    def out(self) -> str:
        return (self.folder / f"{self.number}.out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / f"{self.number}.err").read_text()


def codes(ranks: Sequence[Rank]) -> list[int]:
    """The exit codes of the ranks, once all have ended."""
    return [rank.wait() for rank in ranks]


Warm = Callable[..., WarmTrainer]
StartRanks = Callable[..., list[Rank]]
Torchrun = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """The processes that ranks are forked from, with and without DeepSpeed imported."""
    trainers: dict[bool, WarmTrainer] = {}

    def trainer_with(*, deepspeed: bool) -> WarmTrainer:
        if deepspeed not in trainers:
            modules = (*MODULES, *DEEPSPEED_MODULES) if deepspeed else MODULES
            trainers[deepspeed] = WarmTrainer(modules, {**clean_environment(), **COMPILING})
        return trainers[deepspeed]

    yield trainer_with
    for trainer in trainers.values():
        trainer.close()


@pytest.fixture
def start_ranks(tmp_path: Path, warm: Warm) -> Iterator[StartRanks]:
    with ranks_below(tmp_path, warm) as start:
        yield start


@contextlib.contextmanager
def ranks_below(tmp_path: Path, warm: Warm) -> Iterator[StartRanks]:
    """Start ranks with TINY (or `base`) and the given words, each in its own folder; kill those that still run at the end."""
    started: list[Rank] = []

    def start(
        *words: str,
        world_size: int = 2,
        only: int | None = None,
        env: dict[str, str] | None = None,
        env_of: Sequence[dict[str, str]] = (),
        base: Sequence[str] = TINY,
    ) -> list[Rank]:
        (port,) = free_ports(1)
        folder = tmp_path / f"logs-{len(started)}"
        folder.mkdir()
        ranks = []
        for number in range(world_size) if only is None else [only]:
            rank_env = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(world_size)}
            errors = {"TORCHELASTIC_ERROR_FILE": str(folder / f"{number}.json")}
            rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            home = tmp_path / f"rank-{number}"
            home.mkdir(exist_ok=True)
            output = [folder / f"{number}.out", folder / f"{number}.err"]
            for file in output:
                file.touch()  # it can be read before the rank has opened it
            process = warm(deepspeed=any(word.startswith("strategy=zero") for word in words)).start(
                (*base, *words),
                env={
                    **clean_environment(),
                    **rank_env,
                    **rendezvous,
                    **errors,
                    **(env or {}),
                    **(env_of[number] if env_of else {}),
                },
                cwd=home,
                output=output,
            )
            ranks.append(Rank(number, process, folder))
        started.extend(ranks)
        return ranks

    try:
        yield start
    finally:
        for rank in started:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()


@pytest.fixture
def torchrun(tmp_path: Path) -> Torchrun:
    """Run torchrun with TINY (or `base`) and the given words to its end."""

    def run(*words: str, ranks: int = 2, base: Sequence[str] = TINY) -> subprocess.CompletedProcess[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        launcher += ["--log-dir", str(tmp_path / "torchrun")]
        return subprocess.run(
            [*launcher, "-m", "trainer", *base, *words],
            env=clean_environment(),
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    return run
