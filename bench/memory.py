"""The estimate of `python -m trainer plan` beside the memory that trainings on this machine took."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace
from trainer.config.load import load_config
from trainer.memory.estimate import peak
from trainer.memory.shapes import known_shape, setup_of

MEMORY, ESTIMATE, DEVIATION = "memory", "estimated memory", "deviation"
MOST_DEVIATION = 10  # per cent
SIZE = "model.size=10m"
LEAST = ("model.layers=1", "model.width=16", "model.heads=1", "model.context=16", "micro_batch=1")
"""A model that takes nothing beside the libraries."""
COMMON = ("device=cpu", "report=", "steps=2")
SETTINGS = {
    "strategy=ddp micro_batch=8": 1,
    "strategy=ddp micro_batch=16 activation_checkpointing=true": 1,
    "strategy=ddp micro_batch=4": 2,
    "strategy=fsdp2 micro_batch=4": 2,
    "strategy=fsdp2 micro_batch=4 activation_checkpointing=true accumulation=2": 2,
    "strategy=fsdp2 micro_batch=8 activation_checkpointing=selective": 2,
}
"""Settings and the number of ranks."""
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "2"}
DESCRIPTION = f"""\
Two steps of a GPT ({SIZE}) in fp32. The largest resident set of rank 0, less that of the same training with a model of 20,000 parameters, which is the memory of
the libraries. glibc's malloc returns freed tensors at once ({" ".join(f"{name}={value}" for name, value in MALLOC.items())})."""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    contestants = [
        Contestant(_name(words, ranks), functools.partial(_compare, workspace, words.split(), ranks))
        for words, ranks in SETTINGS.items()
    ]
    return Measure(
        title="Memory of a training, and its estimate",
        description=DESCRIPTION,
        reference=contestants[0].name,
        figures=(MEMORY, ESTIMATE, DEVIATION),
        targets=tuple(Target(contestant.name, DEVIATION, MOST_DEVIATION) for contestant in contestants),
        series=run_rounds(contestants, repetitions=repetitions),
    )


def _name(words: str, ranks: int) -> str:
    return f"{ranks} {'rank' if ranks == 1 else 'ranks'}, {words}"


def _compare(workspace: Workspace, words: Sequence[str], ranks: int) -> Mapping[str, float]:
    libraries = _peak_mb(workspace, [*words, *LEAST], ranks)
    taken = _peak_mb(workspace, [SIZE, *words], ranks) - libraries
    config = load_config(words=[*COMMON, SIZE, *words])
    model = known_shape(config)
    assert model is not None
    shape, context = model
    estimate = peak(shape, setup_of(config, ranks, context)).total / 1e6
    return {MEMORY: taken, ESTIMATE: estimate, DEVIATION: 100 * abs(estimate - taken) / taken}


def _peak_mb(workspace: Workspace, words: Sequence[str], ranks: int) -> float:
    """The largest resident set of rank 0 up to its last step, before the last checkpoint."""
    out = workspace.folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    env = {**workspace.env, **MALLOC, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), "OMP_NUM_THREADS": "1"}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", "trainer", *COMMON, *words, f"out={out}"]
    time_job(Job([command], cwd=workspace.folder, env=env), limit_s=600)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    return float([record for record in records if "loss" in record][-1]["peak_memory_bytes"]) / 1e6
