"""The shared trainer: tokens/s beside a loop written by hand and Hugging Face's Trainer, saving, resuming."""

from __future__ import annotations

import functools
import gzip
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.processes import CommandFailed, Job, Timing, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import BIN, Workspace
from trainer.config.load import load_config
from trainer.metrics.mfu import peak_flops

_PROGRAMS = Path(__file__).parent / "programs"
_REPOSITORY = Path(__file__).resolve().parents[1]
RATE, STEP, MFU, PAUSED, STEPS, FIRST = "tokens/s", "step time", "MFU", "training paused", "all steps", "first step"
TRAINER, BY_HAND, HF = "python -m trainer", "a DDP loop by hand", "Hugging Face Trainer"
SYNC, ASYNC = "async_save=false", "async_save=true"
WHOLE, SHARDED = "checkpoint=whole", "checkpoint=sharded"
SHARDED_ASYNC = f"{SHARDED} {ASYNC}"
CPU_PER_GB, GROWN = "CPU time per GB", "memory"
WRITER, WAITED = "the process that writes a shard", "a save that is waited for"
SHARD_MB = 500
FRESH, RESUMED = "a fresh start", "a resume"
UNCOUNTED = 10  # steps at the start of a run
MIN_RATIO_TO_BY_HAND = {1: 0.98, 2: 0.98, 4: 0.93}  # by ranks: decision 024
MIN_RATIO_TO_HF = {1: 1.1, 2: 1.05, 4: 1.05}
VOCABULARY = "model.vocabulary=50304"  # GPT-2's, padded to a multiple of 64

LAUNCHES, EAGER, COMPILED = "operations", "compile=false", "compile=true"
ON_LISTS = "aten::_foreach_"
GENERATED = "cpp_fused"  # in the names of kernels that torch.compile generated for a CPU
# Operations of torch that move no values.
NOT_COMPUTING = frozenset(
    f"aten::{name}"
    for name in "alias as_strided chunk contiguous detach empty empty_like empty_strided expand expand_as flatten lift_fresh narrow permute "
    "reshape resize_ resolve_conj resolve_neg result_type select slice split split_with_sizes squeeze t to transpose unbind unflatten "
    "unsqueeze view view_as _reshape_alias _unsafe_view set_ item is_nonzero _local_scalar_dense".split()
)

SMALL = ("model.layers=2", "model.width=128", "model.heads=4", "model.context=64", "micro_batch=4", VOCABULARY)
LARGE = ("model.layers=6", "model.width=512", "model.heads=8", "model.context=32", "micro_batch=1")
SAVES, SAVE_STEPS = 3, 15  # of a run, with one more step, and the steps between them
ON_CPU = ("device=cpu", "report=", "optim.fused=true", "steps=200", "save_steps=1000000")
ON_CUDA = ("device=cuda", "report=", "precision=bf16", "compile=true", "optim.fused=true", "steps=60", "lr=3e-4",
           "save_steps=1000000")  # fmt: skip
CUDA_MODELS = {
    "350 M": (
        "model.layers=28",
        "model.width=1024",
        "model.heads=16",
        "model.context=1024",
        "micro_batch=32",
        VOCABULARY,
    ),
    "1 B": ("model.layers=20", "model.width=2048", "model.heads=16", "model.context=2048", "micro_batch=8", VOCABULARY),
}

DESCRIPTION = """\
{model} {ranks} under torchrun. All contestants: the same text, AdamW, clipping, warm-up, cosine, gradients in DDP's buckets. The loop by hand is
`bench/programs/train_by_hand.py`: it measures, saves and checks nothing, and waits for the device at no step that counts. The first {uncounted} steps do not count."""
SAVE_DESCRIPTION = """\
19 M parameters (227 MB per checkpoint), fp32, 2 ranks; three checkpoints per run. *Training paused*: from the end of a step with a
save to the beginning of the next step, the mean of the run. *All steps*: from the first to the last, without the final checkpoint."""
SHARDS_DESCRIPTION = """\
The same model and figures with 4 ranks. A sharded checkpoint has the same bytes in four files, each written, hashed and read back by one rank;
with `async_save`, by a process beside each rank."""
SHARD_DESCRIPTION = """\
A shard of {size} MB, in the background and waited for. *CPU time per GB*: of the process that writes, hashes and compares it, in its second save; 1.25 s
are 0.8 GB per second. *Memory*: by how much the training process grows."""
RESUME_DESCRIPTION = """\
The same model, 2 ranks. From the start of torchrun to the end of the first step, imports and rendezvous included. A resume
reads and hashes a checkpoint of 227 MB and sends it to the other rank."""


OPERATIONS_DESCRIPTION = """\
The model `1m`, fp32, one rank, in one step with a fused AdamW: operations of torch that compute, and kernels that its compiler generated. Each is at least
one kernel on a card, which waits if launching takes longer than they do. Views and allocations are left out; an operation on a list of tensors counts once."""


def measure(workspace: Workspace, *, repetitions: int) -> list[Measure]:
    """On the CPU."""
    return [
        *(_throughput(workspace, ranks, repetitions) for ranks in (1, 2, 4)),
        _saving(workspace, repetitions),
        _saving_shards(workspace, repetitions),
        _writing_shard(workspace, repetitions),
        _resuming(workspace, repetitions),
        _launches(workspace, repetitions),
    ]


def measure_cuda(workspace: Workspace, *, repetitions: int) -> list[Measure]:
    """On one CUDA device; no measure if there is none."""
    program = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    device = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    if not device:
        sys.stderr.write("  skipped: no CUDA device\n")
        return []
    return [_on_cuda(workspace, device, name, repetitions) for name in CUDA_MODELS]


@dataclass(frozen=True, slots=True)
class _Training:
    """One training configuration, which all contestants run."""

    workspace: Workspace
    ranks: int
    words: tuple[str, ...]

    def timed(self, *program: str, words: Sequence[str] = (), marker: bytes = b"") -> Timing:
        """Run the program under torchrun, with one thread per rank."""
        torchrun = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={self.ranks}"]
        env = {**self.workspace.env, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        command = [*torchrun, *program, *self.words, f"data.paths={_text(self.workspace)}", *words]
        return time_job(Job([command], cwd=self.workspace.folder, env=env), marker=marker, limit_s=600)

    def records(self, *words: str) -> list[Mapping[str, float]]:
        """The records that a fresh training writes to metrics.jsonl."""
        out = self.workspace.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        self.timed("-m", "trainer", words=[f"out={out}", *words])
        return read_records(out)

    def trainer(self) -> Mapping[str, float]:
        return self.figures([record["time"] for record in self.records()])

    def by_hand(self) -> Mapping[str, float]:
        return self.figures(_moments(self.timed(str(_PROGRAMS / "train_by_hand.py"))))

    def hugging_face(self) -> Mapping[str, float]:
        out = self.workspace.folder / "hf"
        return self.figures(_moments(self.timed(str(_PROGRAMS / "train_with_hf.py"), words=[f"out={out}"])))

    def figures(self, moments: Sequence[float]) -> Mapping[str, float]:
        """Tokens/s and step time, from the end times of all steps."""
        config = load_config(words=self.words)
        counted = moments[UNCOUNTED - 1 :]
        step_s = (counted[-1] - counted[0]) / (len(counted) - 1)
        return {RATE: config.micro_batch * config.model.context * self.ranks / step_s, STEP: step_s}

    def contestants(self) -> list[Contestant]:
        """In the order in which they take turns."""
        runs = {TRAINER: self.trainer, BY_HAND: self.by_hand, HF: self.hugging_face}
        return [Contestant(name, run) for name, run in runs.items()]


def _throughput(workspace: Workspace, ranks: int, repetitions: int) -> Measure:
    training = _Training(workspace, ranks, (*SMALL, *ON_CPU))
    title = f"Training, {ranks} rank{'s' if ranks > 1 else ''}"
    description = DESCRIPTION.format(
        model="GPT of 13 M parameters, of which 12.9 M are for 50,304 tokens, fp32, 256 tokens per rank and step, one thread per rank;",
        ranks=title.partition(", ")[2],
        uncounted=UNCOUNTED,
    )
    series = run_rounds(training.contestants(), repetitions=repetitions)
    return Measure(title, description, BY_HAND, (RATE, STEP), _targets(ranks), series)


def _targets(ranks: int) -> tuple[Target, ...]:
    return (
        Target(TRAINER, RATE, MIN_RATIO_TO_BY_HAND[ranks], baseline=BY_HAND, least=True),
        Target(TRAINER, RATE, MIN_RATIO_TO_HF[ranks], baseline=HF, least=True),
    )


def _on_cuda(workspace: Workspace, device: str, name: str, repetitions: int) -> Measure:
    training = _Training(workspace, 1, (*CUDA_MODELS[name], *ON_CUDA))
    config = load_config(words=training.words)
    peak, matrices = peak_flops(config, device), 12 * config.model.layers * config.model.width**2
    matrices += config.model.width * config.model.vocabulary  # the head
    flops = 6 * matrices + 12 * config.model.layers * config.model.width * config.model.context

    def with_mfu(run: Callable[[], Mapping[str, float]]) -> Callable[[], Mapping[str, float]]:
        def run_with_mfu() -> Mapping[str, float]:
            figures = run()
            return {**figures, MFU: 100 * figures[RATE] * flops / peak} if peak else figures

        return run_with_mfu

    contestants = [Contestant(plain.name, with_mfu(plain.run)) for plain in training.contestants()]
    model = f"GPT of {name} parameters, bf16, torch.compile and fused AdamW, on one {device};"
    description = DESCRIPTION.format(model=model, ranks="1 rank", uncounted=UNCOUNTED)
    series = run_rounds(contestants, repetitions=repetitions)
    return Measure(f"Training on CUDA, {name}", description, BY_HAND, (RATE, STEP, MFU), _targets(1), series)


def _saving(workspace: Workspace, repetitions: int) -> Measure:
    contestants = _savers(workspace, 2, {SYNC: (), ASYNC: ("async_save=true",)})
    targets = (Target(ASYNC, PAUSED, 0.1, baseline=SYNC),)
    series = run_rounds(contestants, repetitions=repetitions)
    return Measure("Saving", SAVE_DESCRIPTION, SYNC, (PAUSED, STEPS), targets, series)


def _saving_shards(workspace: Workspace, repetitions: int) -> Measure:
    contestants = _savers(
        workspace, 4, {WHOLE: (WHOLE,), SHARDED: (SHARDED,), SHARDED_ASYNC: (SHARDED, "async_save=true")}
    )
    targets = (Target(SHARDED, PAUSED, 0.4, baseline=WHOLE), Target(SHARDED_ASYNC, PAUSED, 0.03, baseline=WHOLE))
    series = run_rounds(contestants, repetitions=repetitions)
    return Measure("Sharded saving, 4 ranks", SHARDS_DESCRIPTION, WHOLE, (PAUSED, STEPS), targets, series)


def _writing_shard(workspace: Workspace, repetitions: int) -> Measure:
    def run(mode: str) -> Mapping[str, float]:
        out = workspace.folder / "shard"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        program = [sys.executable, str(_PROGRAMS / "save_shard.py"), str(out), str(SHARD_MB), mode]
        env = {**workspace.env, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1"}
        figures = _figures(time_job(Job([program], cwd=workspace.folder, env=env), limit_s=600))
        return {CPU_PER_GB: figures["cpu_s"] * 1000 / SHARD_MB, GROWN: figures["grown_mb"]}

    modes = {WRITER: "background", WAITED: "foreground"}
    targets = (Target(WRITER, CPU_PER_GB, 1.25), *(Target(name, GROWN, 1.1 * SHARD_MB) for name in modes))
    contestants = [Contestant(name, functools.partial(run, mode)) for name, mode in modes.items()]
    series = run_rounds(contestants, repetitions=repetitions)
    description = SHARD_DESCRIPTION.format(size=SHARD_MB)
    return Measure("Writing a shard", description, WRITER, (CPU_PER_GB, GROWN), targets, series)


def _savers(workspace: Workspace, ranks: int, options: Mapping[str, Sequence[str]]) -> list[Contestant]:
    """Trainings that save three times, by name, with the words of each."""
    training = _Training(
        workspace,
        ranks,
        (*LARGE, "device=cpu", "report=", "log_steps=1", f"steps={SAVES * SAVE_STEPS + 1}", f"save_steps={SAVE_STEPS}"),
    )

    def run(*words: str) -> Mapping[str, float]:
        records = training.records(*words)
        # The records of steps before a save, and of the last step, are written at their ends, others during the next step.
        first = next(index for index, record in enumerate(records) if record["step"] == SAVE_STEPS)
        steps_s = sum(record["step_time_s"] for record in records[first + 1 :])
        saves = (records[-1]["time"] - records[first]["time"] - steps_s) / SAVES
        return {PAUSED: saves, STEPS: records[-1]["time"] - records[0]["time"]}

    return [Contestant(name, functools.partial(run, *words)) for name, words in options.items()]


def _resuming(workspace: Workspace, repetitions: int) -> Measure:
    training = _Training(workspace, 2, (*LARGE, "device=cpu", "report=", "log_steps=1", "save_steps=1000000"))
    saved, out = workspace.folder / "saved", workspace.folder / "out"
    training.timed("-m", "trainer", words=["steps=1", f"out={saved}"])

    def run(*words: str) -> Mapping[str, float]:
        shutil.rmtree(out, ignore_errors=True)
        marker = re.compile("step=(1|2) loss=")
        timing = training.timed("-m", "trainer", words=[f"out={out}", *words], marker=b" loss=")
        assert marker.search(timing.output.decode()), "no step was made"
        return {FIRST: timing.lines[0]}

    options = {FRESH: ("steps=1",), RESUMED: ("steps=2", f"resume={saved}")}
    contestants = [Contestant(name, functools.partial(run, *words)) for name, words in options.items()]
    targets = (Target(RESUMED, FIRST, 1.3, baseline=FRESH),)
    series = run_rounds(contestants, repetitions=repetitions)
    return Measure("Resuming", RESUME_DESCRIPTION, FRESH, (FIRST,), targets, series)


def _launches(workspace: Workspace, repetitions: int) -> Measure:
    step = UNCOUNTED
    words = (
        "device=cpu",
        "report=",
        "optim.fused=true",
        f"steps={step}",
        f"profile={step}:{step}",
        "save_steps=1000000",
    )
    env = {**workspace.env, "TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE": "1"}
    training = _Training(replace(workspace, env=env), 1, words)

    def run(*words: str) -> Mapping[str, float]:
        training.records(*words)
        (trace,) = (workspace.folder / "out" / "profile").iterdir()
        return {LAUNCHES: count_launches(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])}

    contestants = [Contestant(name, functools.partial(run, name)) for name in (EAGER, COMPILED)]
    series = run_rounds(contestants, repetitions=repetitions)
    return Measure("Operations of a step", OPERATIONS_DESCRIPTION, EAGER, (LAUNCHES,), (), series)


def count_launches(events: Sequence[Mapping[str, Any]]) -> int:
    """The innermost operations of a trace that compute something; one on a list of tensors is a single one, as on a card."""
    computing = [event for event in events if event.get("cat") == "cpu_op" and _computes(event["name"])]
    count = 0
    for thread in {event["tid"] for event in computing}:
        outermost: list[Mapping[str, Any]] = []
        for event in sorted((e for e in computing if e["tid"] == thread), key=lambda e: (e["ts"], -e["dur"])):
            is_nested = bool(outermost) and event["ts"] < outermost[-1]["ts"] + outermost[-1]["dur"]
            if is_nested and not outermost[-1]["name"].startswith(ON_LISTS):
                outermost[-1] = event
            elif not is_nested:
                outermost.append(event)
        count += len(outermost)
    return count


def _computes(name: str) -> bool:
    return GENERATED in name or (name.startswith("aten::") and name not in NOT_COMPUTING)


def read_records(out: Path) -> list[Mapping[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def _moments(timing: Timing) -> list[float]:
    moments: list[float] = _figures(timing)["moments"]
    return moments


def _figures(timing: Timing) -> Mapping[str, Any]:
    for line in timing.output.decode().splitlines():
        if line.startswith("figures "):
            figures: Mapping[str, Any] = json.loads(line.removeprefix("figures "))
            return figures
    raise CommandFailed("it printed no figures")


def _text(workspace: Workspace) -> Path:
    """One file with the sources of Python's standard library, the training text of all contestants."""
    path = workspace.folder / "text.txt"
    if not path.exists():
        sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        path.write_bytes(b"".join(source.read_bytes() for source in sources))
    return path
