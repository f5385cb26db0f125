"""Settings that change how a step is computed, and non-finite losses: on two real ranks."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.grounds import components
from tests.grounds.checkpoints import saved_state
from tests.grounds.metrics import StepNumbers, read_metrics, step_numbers
from tests.grounds.tasks import COUNT, Masked
from tests.grounds.trainings import train_alone
from tests.train.conftest import TINY, StartRanks, Warm, codes, ranks_below
from trainer.checkpoint.format import files
from trainer.config.load import load_config
from trainer.data.order import Order
from trainer.outcomes import MOST_SKIPS
from trainer.parallel.deepspeed.package import search_path
from trainer.state_keys import MOMENTS

pytestmark = pytest.mark.train

POINTS = ("task=tests.grounds.tasks:Points", "micro_batch=2", "device=cpu", "report=", "log_steps=1", "ddp_timeout=60")
GPT = (*TINY, "save_steps=1", "steps=3", "accumulation=2", "optim.grad_clip=0.5")
SMALL = ("save_steps=1", "steps=3", "accumulation=2")
FP16_ON_CPU = ("task=tests.grounds.tasks:Fp16OnCpu", *POINTS[1:], *SMALL)
STILL = (*POINTS, "lr=1e-12", "steps=1")
COUNTED = ("task=tests.grounds.tasks:Counted", *POINTS[1:], *SMALL)
OPTIONS = (
    (FP16_ON_CPU, "strategy=zero2 precision=fp16"),
    (GPT, "strategy=zero3 offload_param=true activation_checkpointing=true"),
    (GPT, "strategy=fsdp2 precision=bf16 activation_checkpointing=true"),
    (GPT, "strategy=fsdp2 precision=fp16"),
    (GPT, "gradient_as_bucket_view=false activation_checkpointing=selective"),
)


def _check_resumed(start: StartRanks, folder: Path, base: tuple[str, ...], *words: str) -> StepNumbers:
    """The numbers of an uninterrupted run; a run resumed from its first checkpoint repeats them bit for bit."""
    uninterrupted, resumed = folder / "uninterrupted", folder / "resumed"
    ranks = start(*words, f"out={uninterrupted}", base=base)
    assert codes(ranks) == [0, 0], ranks[0].err
    resumed.mkdir()
    shutil.copytree(uninterrupted / "step_1", resumed / "step_1")
    ranks = start(*words, f"out={resumed}", base=base)
    assert codes(ranks) == [0, 0], ranks[0].err
    assert f"resuming from {resumed / 'step_1'}, step 1" in ranks[0].out
    assert step_numbers(resumed) == step_numbers(uninterrupted)[1:]
    assert (resumed / "step_3/r00000.safetensors").read_bytes() == (
        uninterrupted / "step_3/r00000.safetensors"
    ).read_bytes()
    return step_numbers(uninterrupted)


Plain = Callable[[Sequence[str]], Path]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Plain:
    """The folder of a training with DDP in fp32."""

    @functools.cache
    def trained(base: Sequence[str]) -> Path:
        folder = tmp_path_factory.mktemp("plain")
        with ranks_below(folder, warm) as start:
            assert codes(start("save_steps=3", f"out={folder / 'out'}", base=base)) == [0, 0]
        return folder / "out"

    return trained


def _check_option(start: StartRanks, folder: Path, base: tuple[str, ...], words: str, plain: Plain) -> None:
    """fp16 is not compared with DDP in fp32: its first steps overflow and are skipped until the scale is small enough."""
    numbers = _check_resumed(start, folder, base, *words.split())
    if "fp16" not in words:
        for found, expected in zip(numbers, step_numbers(plain(base)), strict=True):
            assert found == pytest.approx(expected, rel=2e-2 if "bf16" in words else 1e-5)
    drawn = json.loads((folder / "uninterrupted/step_3/rng.json").read_text())
    assert len(drawn) == 2
    assert all(drawn[0][generator] != drawn[1][generator] for generator in ("python", "torch", "numpy"))


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(("base", "words"), OPTIONS, ids=[words for _, words in OPTIONS])
def test_options_keep_the_losses_and_a_resumed_run_repeats_an_uninterrupted_one_bit_for_bit(
    start_ranks: StartRanks, tmp_path: Path, base: tuple[str, ...], words: str, plain: Plain
) -> None:
    if "zero" in words:
        components.module("deepspeed")
    _check_option(start_ranks, tmp_path, base, words, plain)


def test_muon_and_the_average_of_the_weights_resume_bit_for_bit(start_ranks: StartRanks, tmp_path: Path) -> None:
    words = ("optim.name=muon", "optim.ema=0.9", "data.validation=" + __file__, "eval_steps=1", "eval_batches=2")
    numbers = _check_resumed(start_ranks, tmp_path, GPT, *words)
    assert numbers[-1] != numbers[0]
    manifest = files.verified(tmp_path / "resumed" / "step_3").manifest
    evaluated = [line["eval_loss"] for line in read_metrics(tmp_path / "uninterrupted")]
    assert manifest["eval_loss"] == evaluated[-1]
    assert [line["eval_loss"] for line in read_metrics(tmp_path / "resumed")] == evaluated[1:]


# DeepSpeed's two sources include all of torch's C++ interface; compiling that takes three quarters of the time, for each source.
USED_OF_TORCH = """\
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>
namespace torch {
using namespace at;
constexpr auto kFloat32 = at::kFloat;
}
"""
COMPILER = """\
#!/bin/sh
case "$*" in
*/cpu_adam.cpp*) set -- "$@" -include ../adam/cpu_adam_impl.cpp ;;
*/cpu_adam_impl.cpp*) set -- -c -x c++ /dev/null -o cpu_adam_impl.o ;;
esac
exec {program} -I{include} "$@" -O0 -g0
"""


@pytest.fixture(scope="module")
def cpu_adam(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> dict[str, str]:
    """The environment of ranks that load DeepSpeed's Adam for CPUs, compiled here unoptimised, as one source with fewer headers."""
    components.module("deepspeed")
    components.module("ninja")
    folder = tmp_path_factory.mktemp("cpu_adam")
    compiler, header = folder / "bin" / "c++", folder / "include" / "torch" / "extension.h"
    for file in (compiler, header):
        file.parent.mkdir(parents=True)
    header.write_text(USED_OF_TORCH)
    compiler.write_text(COMPILER.format(program=components.program("g++"), include=folder / "include"))
    compiler.chmod(0o700)
    env = {"PATH": f"{compiler.parent}:{search_path()}", "TORCH_EXTENSIONS_DIR": str(folder / "ext")}
    with ranks_below(folder, warm) as start:
        words = ("strategy=zero1", "offload_optimizer=true", "steps=1", f"out={folder / 'out'}")
        (rank,) = start(*words, world_size=1, env=env, base=POINTS)
        assert rank.wait() == 0, rank.err
    return env


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "words",
    [
        "strategy=zero1 precision=bf16 offload_optimizer=true",
        "strategy=zero3 offload_optimizer=true offload_param=true",
    ],
)
def test_deepspeeds_cpu_adam_trains_as_torchs_adam_and_resumes_bit_for_bit(
    start_ranks: StartRanks, tmp_path: Path, words: str, plain: Plain, cpu_adam: dict[str, str]
) -> None:
    _check_option(functools.partial(start_ranks, env=cpu_adam), tmp_path, (*POINTS, *SMALL), words, plain)
    # The losses of three steps hardly depend on the betas.
    found, expected = _moments(tmp_path / "uninterrupted"), _moments(plain((*POINTS, *SMALL)))
    assert set(found) == set(expected)
    for name, values in expected.items():
        for key in MOMENTS:
            distance = float((found[name][key] - values[key]).norm() / values[key].norm())
            assert distance < (0.1 if "bf16" in words else 1e-3), (name, key)


def _moments(out: Path) -> dict[str, Any]:
    """Adam's state after the last step, by the names of the parameters."""
    files.verify(out / "step_3", 3)
    moments: dict[str, Any] = saved_state(out / "step_3")["moments"]
    return moments


@pytest.mark.extended
@pytest.mark.slow
def test_16_bit_zero_begins_with_weights_that_are_not_rounded(start_ranks: StartRanks, tmp_path: Path) -> None:
    words = {"ddp": (), "zero2": ("precision=bf16",), "zero3": ("precision=bf16",)}
    started = {
        strategy: start_ranks(f"strategy={strategy}", *more, f"out={tmp_path / strategy}", base=STILL, world_size=1)
        for strategy, more in words.items()
    }
    assert [codes(ranks) for ranks in started.values()] == [[0], [0], [0]], started["zero3"][0].err
    begun = {strategy: saved_state(tmp_path / strategy / "step_1")["model"] for strategy in started}
    assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in begun["ddp"].values())
    for strategy in ("zero2", "zero3"):
        torch.testing.assert_close(begun[strategy], begun["ddp"], atol=1e-7, rtol=0.0)


@pytest.fixture(scope="module")
def inductor(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of ranks that compile: a separate cache."""
    components.program("g++")
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("inductor"))}


@pytest.mark.extended
@pytest.mark.slow
def test_compiled_training_on_two_ranks_keeps_the_losses_and_resumes_bit_for_bit(
    start_ranks: StartRanks, tmp_path: Path, plain: Plain, inductor: dict[str, str]
) -> None:
    words = "compile=true find_unused_parameters=true"
    _check_option(functools.partial(start_ranks, env=inductor), tmp_path, COUNTED, words, plain)
    for number in (0, 1):
        output = (tmp_path / f"logs-0/{number}.out").read_text()
        assert int(re.findall(r"^graphs=(\d+)$", output, re.MULTILINE)[-1]) > 0


@pytest.mark.extended
@pytest.mark.slow
def test_recomputed_blocks_are_compiled_and_keep_the_losses(
    start_ranks: StartRanks, tmp_path: Path, inductor: dict[str, str]
) -> None:
    base = ("task=tests.grounds.tasks:Counted", *POINTS[1:], "activation_checkpointing=true", "steps=3")

    def train(strategy: str, *words: str) -> tuple[int, StepNumbers]:
        out = tmp_path / "-".join((strategy, *words))
        words = (f"strategy={strategy}", f"out={out}", *words)
        (rank,) = start_ranks(*words, world_size=1, env=inductor, base=base)
        assert rank.wait() == 0, rank.err
        return int(re.findall(r"^graphs=(\d+)$", rank.out, re.MULTILINE)[-1]), step_numbers(out)

    components.module("deepspeed")
    for strategy in ("fsdp2", "zero2", "zero3", "ddp"):
        (none, plain), (graphs, compiled) = train(strategy), train(strategy, "compile=true")
        assert none == 0 < graphs
        for found, expected in zip(compiled, plain, strict=True):
            assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp2"])
def test_blocks_of_a_gpt_share_one_graph_which_ddp_does_not_cut(
    start_ranks: StartRanks, tmp_path: Path, inductor: dict[str, str], strategy: str
) -> None:
    """A block has 1.2 MB of weights, which torch would cut at DistributedDataParallel's first bucket of 1 MiB."""
    base = ("task=tests.grounds.tasks:CountedGpt", *POINTS[1:], "steps=3")

    def train(*words: str) -> tuple[tuple[int, int], StepNumbers]:
        out = tmp_path / f"{len(words)}"
        (rank,) = start_ranks(f"strategy={strategy}", f"out={out}", *words, world_size=1, env=inductor, base=base)
        assert rank.wait() == 0, rank.err
        graphs, compiled = re.findall(r"^graphs=(\d+) compiled=(\d+)$", rank.out, re.MULTILINE)[-1]
        return (int(graphs), int(compiled)), step_numbers(out)

    if strategy.startswith("zero"):
        components.module("deepspeed")
    (none, plain), (counts, compiled) = train(), train("compile=true")
    assert (none, counts) == ((0, 0), (2, 2))  # the other one is of the head and the loss
    for found, expected in zip(compiled, plain, strict=True):
        assert found == pytest.approx(expected, rel=1e-4)


def test_task_with_random_numbers_and_unused_parameters_resumes_bit_for_bit(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    """Its loss draws from Python's and numpy's generators; each rank leaves other parameters unused, which DDP has to find."""
    base = (*POINTS, "options.draws=true", "options.part=true", "save_steps=1", "steps=3")
    assert (
        len({loss for _, loss, *_ in _check_resumed(start_ranks, tmp_path, base, "find_unused_parameters=true")}) == 3
    )


def _sample_of(step: int, rank: int) -> int:
    """The first sample of POINTS that one of two ranks gets in a step."""
    return Order(COUNT, 0, "train").sample((step - 1) * 4 + rank * 2)


def test_non_finite_loss_of_one_rank_is_reported_with_rank_and_step(start_ranks: StartRanks, tmp_path: Path) -> None:
    ranks = start_ranks(f"options.broken={_sample_of(6, rank=1)}", f"out={tmp_path / 'out'}", base=POINTS)
    assert codes(ranks) == [1, 1]
    (line,) = ranks[0].err.splitlines()
    assert line.startswith("error: rank 1: loss is nan at step 6; the weights were not updated. ")
    assert ranks[1].err == ""  # all ranks know, and only rank 0 prints


def test_losses_are_means_over_the_terms_of_all_micro_batches_and_ranks(
    start_ranks: StartRanks, tmp_path: Path
) -> None:
    """Two ranks with micro batches of 2, against one process with all 8 samples at once. keep_best reads the manifest."""
    words = ("task=tests.grounds.tasks:Masked", *POINTS[2:], "steps=4", "eval_steps=2")
    spread, whole = tmp_path / "spread", tmp_path / "whole"
    ranks = start_ranks(f"out={spread}", "micro_batch=2", "accumulation=2", base=words)
    train_alone(load_config(words=[*words, f"out={whole}", "micro_batch=8"]))
    assert codes(ranks) == [0, 0], ranks[0].err
    for found, expected in zip(step_numbers(spread), step_numbers(whole), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    for lines in zip(read_metrics(spread), read_metrics(whole), strict=True):
        evaluated = [line.get("eval_loss") for line in lines]
        assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-5)
    assert read_metrics(spread)[-1]["eval_parts"] == 3 / Masked.VALIDATION
    assert files.read_manifest(spread / "step_4", 4)["eval_loss"] == read_metrics(spread)[-1]["eval_loss"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("wrong", "last", "words", "message"),
    [
        (0, 6, (), "rank 0: gradient norm is not finite at step 6 but finite on all other ranks"),
        (1, 6, (), "rank 1: gradient norm is not finite at step 6 but finite on all other ranks"),
        (0, 8, ("options.factor=1.1",), "gradient norm at step 6 is rank 0: "),
        (1, 8, (), "rank 1: gradient norm is not finite at step 6 but finite on all other ranks"),
    ],
)
def test_rank_whose_device_computes_a_wrong_norm_is_named_by_all(
    start_ranks: StartRanks, tmp_path: Path, wrong: int, last: int, words: tuple[str, ...], message: str
) -> None:
    """The rank ends, and the others with it; the step that one of them could not make is not saved. Of two different norms, none is known."""
    base = ("task=tests.grounds.tasks:Miscomputing", *POINTS[1:], "options.at=6", f"options.rank={wrong}", *words)
    ranks = start_ranks(f"steps={last}", "save_steps=2", f"out={tmp_path / 'out'}", base=base)
    assert codes(ranks) == [1, 1]
    is_known = "options.factor=1.1" not in words
    text = ranks[wrong].err.partition("error: ")[2]
    assert text.startswith(message)
    assert "The step was repeated, and is finite on all ranks: " in text
    recorded = json.loads((ranks[wrong].folder / f"{wrong}.json").read_text())["message"]
    assert recorded["message"].startswith(message)
    assert recorded["extraInfo"]["kind"] == ("node" if is_known else "numbers")
    assert files.newest_first(tmp_path / "out")[0].name == "step_4"


@pytest.mark.extended
@pytest.mark.parametrize("at", [5, 6])
def test_all_ranks_roll_back_when_one_computes_a_wrong_norm(start_ranks: StartRanks, tmp_path: Path, at: int) -> None:
    """Detected before a checkpoint: of the next step, or of the same one."""
    out = tmp_path / "out"
    base = ("task=tests.grounds.tasks:Miscomputing", *POINTS[1:], f"options.at={at}", "options.rank=1")
    ranks = start_ranks("roll_back=1", "save_steps=2", "steps=8", f"out={out}", base=base)
    assert codes(ranks) == [0, 0], ranks[0].err
    cause = f"rank 1: gradient norm is not finite at step {at} but finite on all other ranks, though all have the same gradient"
    assert f"WARNING: {cause}: back to {out / 'step_4'} (roll_back 1 of 1), repeating its steps" in ranks[0].out
    assert [step for step, *_ in step_numbers(out)] == list(range(1, 9))
    assert files.read_manifest(out / "step_8", 8)["position"] == 8 * 4


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero0", "zero2", "zero3", "fsdp2"])
def test_non_finite_gradient_stops_all_ranks_before_the_update(
    start_ranks: StartRanks, tmp_path: Path, strategy: str
) -> None:
    if "zero" in strategy:
        components.module("deepspeed")
    ranks = start_ranks("options.steep=true", f"strategy={strategy}", f"out={tmp_path / 'out'}", base=POINTS)
    assert codes(ranks) == [1, 1]
    assert "error: all ranks: gradient norm is not finite at step 1; the weights were not updated. " in ranks[0].err
    assert "error" not in ranks[1].err


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp2"])
@pytest.mark.parametrize(("steps", "made"), [(3, 3), (100, MOST_SKIPS)])
def test_fp16_that_skips_every_step_is_a_failure_and_not_a_finished_training(
    start_ranks: StartRanks, tmp_path: Path, strategy: str, steps: int, made: int
) -> None:
    if "zero" in strategy:
        components.module("deepspeed")
    words = (
        "options.steep=true",
        "precision=fp16",
        f"strategy={strategy}",
        f"steps={steps}",
        f"out={tmp_path / 'out'}",
    )
    ranks = start_ranks(*words, base=(FP16_ON_CPU[0], *POINTS[1:]))
    assert codes(ranks) == [1, 1], ranks[0].out
    line = next(line for line in ranks[0].err.splitlines() if line.startswith("error"))
    assert line.startswith(
        f"error: all ranks: gradient norm is not finite at {made} steps in a row, 1 to {made}, however"
    )
    assert "precision=bf16" in line
    assert "rror" not in ranks[1].err
    assert not files.newest_first(tmp_path / "out")


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp2"])
def test_both_ranks_roll_back_to_the_same_step_and_continue_from_there(
    start_ranks: StartRanks, tmp_path: Path, strategy: str
) -> None:
    if "zero" in strategy:
        components.module("deepspeed")
    out = tmp_path / "out"
    words = (f"options.broken={_sample_of(6, rank=1)}", "roll_back=1", "save_steps=2", "steps=8", f"out={out}")
    ranks = start_ranks(*words, f"strategy={strategy}", base=POINTS)
    assert codes(ranks) == [0, 0], ranks[0].err
    for rank in ranks:
        assert re.findall(r"^step=(\d)", rank.out, re.MULTILINE) == list("123455678")
    warning = f"WARNING: rank 1: loss is nan at step 6: back to {out / 'step_4'} (roll_back 1 of 1), without the batches of 2 steps"
    assert warning in ranks[0].out
    assert [step for step, *_ in step_numbers(out)] == list(range(1, 9))
    assert files.read_manifest(out / "step_8", 8)["position"] == (8 + 2) * 4
