"""The arithmetic of a step: learning rate, finiteness, attention, decay groups, and the collectives of one process."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.grounds.trainings import train_alone, world_of_one
from trainer.checkpoint.format import files
from trainer.config.config import ModelConfig, OptimConfig, TrainConfig
from trainer.config.load import load_config
from trainer.errors import NumbersError, TrainerError, UserError
from trainer.metrics.jsonl import Summary, read_records
from trainer.optim.optimizer import make_optimizer
from trainer.optim.schedule import Schedule
from trainer.outcomes import MOST_SKIPS, Skips, check_finite
from trainer.parallel.building import build_whole, warn_if_on_cpu
from trainer.runtime.accelerators import choose
from trainer.runtime.group import CHUNK_BYTES, Group
from trainer.runtime.init import initialise
from trainer.runtime.progress import Progress
from trainer.runtime.seeds import seed_everything, seeded_rng
from trainer.runtime.signals import Flag, Received, Signals
from trainer.tasks.attention import FUSED_ATTENTION, causal_attention, manual_causal_attention
from trainer.tasks.gpt import GPT, Gpt
from trainer.train import Trainer

TINY = ModelConfig(layers=1, width=16, heads=2, context=8)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {1: 0.1, 10: 1.0, 11: 0.9994, 55: 0.55, 100: 0.1, 130: 0.1}),
        ("optim.schedule=linear optim.lr_floor=0", {10: 1.0, 55: 0.5, 100: 0.0, 130: 0.0}),
        ("optim.schedule=constant", {5: 0.5, 10: 1.0, 100: 1.0}),
        ("optim.schedule=poly optim.poly_power=2", {10: 1.0, 55: 0.325, 100: 0.1}),
        ("optim.schedule=wsd", {10: 1.0, 90: 1.0, 95: 0.55, 100: 0.1, 130: 0.1}),
        ("optim.schedule=wsd optim.decay_steps=50", {50: 1.0, 75: 0.55, 100: 0.1}),
        ("optim.schedule_steps=200", {105: 0.55, 200: 0.1}),
    ],
)
def test_learning_rate_warms_up_then_follows_the_schedule_to_its_floor(words: str, expected: dict[int, float]) -> None:
    schedule, warning = Schedule.plan(load_config(words=["lr=1", *words.split()]), 0, None)
    assert {step: schedule.rate(step) for step in expected} == pytest.approx(expected, abs=5e-4)
    assert warning == ""


@pytest.mark.parametrize(
    ("words", "step", "kept"),
    [
        ("steps=200", 50, True),  # a cosine of 200 steps is higher there
        ("steps=200 optim.schedule_steps=200", 50, False),
        ("steps=200", 8, False),  # still in the warm-up
        ("steps=200 optim.schedule=wsd", 90, False),  # the decay has not begun
        ("steps=200 optim.schedule=wsd", 95, True),
        ("steps=200 optim.schedule=constant", 95, False),
        ("steps=100", 50, False),
    ],
)
def test_resumed_training_with_more_steps_continues_at_the_same_learning_rate(
    words: str, step: int, *, kept: bool
) -> None:
    config = load_config(words=["lr=1", *words.split()])
    schedule, warning = Schedule.plan(config, step, 100)
    assert schedule.steps == (100 if kept else config.steps)
    assert warning.startswith("WARNING: the learning rate keeps its plan of 100 steps: one of 200 steps") == kept


@pytest.mark.parametrize("warmup", [0, 5, 10])
def test_learning_rate_is_defined_for_every_step(warmup: int) -> None:
    schedule = Schedule(OptimConfig(warmup_steps=warmup), 1.0, 5)
    assert all(0 < schedule.rate(step) <= 1.0 for step in range(1, 6))


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        ([3.9, 3.9, 4.2, 3.9], r"^rank 2: gradient norm is 4\.2 at step 7 but 3\.9 on most ranks, though all have"),
        (
            [3.9, 4.2],
            r"^gradient norm at step 7 is rank 0: 3\.9; rank 1: 4\.2, though all have the same gradient; one of",
        ),
        ([3.9, 3.9 * (1 + 1e-5)], ""),
    ],
)
def test_norm_that_differs_from_the_norm_of_other_ranks_is_named(norms: list[float], message: str) -> None:
    skips = Skips(scales_loss=False)
    if not message:
        skips.check(7, norms)
        return
    with pytest.raises(NumbersError, match=message) as caught:
        skips.check(7, norms)
    assert caught.value.step == 7


@pytest.mark.parametrize(
    ("values", "message"),
    [([1.0, math.nan, 2.0], "rank 1: loss is nan at step 7"), ([math.inf] * 2, "rank 0-1: loss is inf at step 7")],
)
def test_non_finite_loss_names_rank_and_step(values: list[float], message: str) -> None:
    check_finite("loss", [1.0, 2.0], 7)
    with pytest.raises(TrainerError, match=message) as caught:
        check_finite("loss", values, 7)
    assert not isinstance(caught.value, UserError)


def test_step_without_an_update_is_detected_by_the_norms_of_all_ranks() -> None:
    skips = Skips(scales_loss=False)
    skips.check(6, [1.0, 1.0])
    with pytest.raises(
        NumbersError, match=r"^rank 1: gradient norm is not finite at step 7 but finite on all other ranks"
    ):
        skips.check(7, [1.0, math.inf])
    with pytest.raises(NumbersError, match=r"^all ranks: gradient norm is not finite at step 8; the weights were not"):
        skips.check(8, [math.nan] * 2)


@pytest.mark.parametrize(
    ("first", "resumed", "final", "bound"),
    [
        (1, 0, 200, MOST_SKIPS),
        (100, 0, 120, None),
        (100, 0, 200, 139),
        (1, 0, 8, 8),
        (2, 0, 8, None),
        (1, 30, 60, MOST_SKIPS),
        (1, 30, 35, 35),
        (2, 30, 35, None),
    ],
)
def test_consecutive_skipped_fp16_steps_are_bounded_and_may_not_be_the_whole_training(
    first: int, resumed: int, final: int, bound: int | None
) -> None:
    """All steps from `first` on are skipped; this attempt begins after step `resumed`."""
    skips, failed, message = Skips(scales_loss=True, in_a_row=max(0, resumed - first + 1)), None, ""
    for step in range(resumed + 1, final + 1):
        try:
            skips.check(step, [math.nan if step >= first else 1.0] * 2, final=step == final)
        except NumbersError as exc:
            failed, message = step, str(exc)
            break
    assert failed == bound
    assert (f"not finite at {step - first + 1} steps in a row, {first} to {step}, however" in message) == bool(bound)


def test_steps_that_fp16_skipped_before_a_restart_count(tmp_path: Path) -> None:
    """Neither attempt updates the weights; the first has two of the three steps."""
    words = ("task=tests.grounds.tasks:Points", "options.steep=true", "precision=fp16", "micro_batch=2", "device=cpu")
    config = load_config(words=[*words, "report=", "steps=3", f"out={tmp_path}"])

    def train(*, is_preempted: bool) -> Summary | None:
        group, preemption = _group_of_one(), SimpleNamespace(is_received=is_preempted)
        trainer = Trainer(config, group, Progress(group.rank, config.steps), preemption)  # type: ignore[arg-type]  # a real one would handle signals
        try:
            return trainer.run()
        finally:
            trainer.metrics.close(1)

    assert train(is_preempted=True) is None
    assert files.read_manifest(tmp_path / "step_2", 2)["skipped"] == 2
    with pytest.raises(NumbersError, match="not finite at 3 steps in a row, 1 to 3, however"):
        train(is_preempted=False)


def test_optimizer_has_the_rate_that_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates, step = [], torch.optim.AdamW.step

    def recording_step(self: torch.optim.AdamW, *args: Any) -> Any:
        rates.append({group["lr"] for group in self.param_groups})
        return step(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", recording_step)
    train_alone(load_config(words=["steps=6", "optim.warmup_steps=2", f"data.paths={__file__}", f"out={tmp_path}"]))
    assert rates == [{record["lr"]} for record in read_records(tmp_path / "metrics.jsonl")]


def test_completed_fp16_step_resets_the_count_and_a_skip_of_one_rank_is_an_error() -> None:
    skips = Skips(scales_loss=True)
    for step in range(1, 4 * MOST_SKIPS):
        skips.check(step, [1.0 if step % MOST_SKIPS == 0 else math.inf] * 2)
    with pytest.raises(NumbersError, match=r"^rank 0: gradient norm is not finite at step \d+ but finite on all other"):
        skips.check(step + 1, [math.inf, 1.0])


@pytest.mark.skipif(FUSED_ATTENTION is None, reason="this torch has no scaled_dot_product_attention")
def test_manual_attention_equals_the_fused_one() -> None:
    query, key, value = torch.randn(3, 2, 2, 8, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(manual_causal_attention(query, key, value), causal_attention(query, key, value))


def test_attention_is_causal() -> None:
    torch.manual_seed(0)
    model = GPT(TINY)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    changed = tokens.clone()
    changed[0, 5:] = 7
    with torch.no_grad():
        first, second = (model(text[:, :5], tokens[:, 1:6]) for text in (tokens, changed))
        assert first == second
        assert model(tokens, tokens) != model(changed, tokens)


def test_initial_loss_is_that_of_256_equally_likely_bytes() -> None:
    config = TrainConfig(model=TINY)
    model = build_whole(_group_of_one(), config, Gpt(config))
    tokens = torch.arange(64).view(8, 8)
    assert float(model(tokens, tokens.flip(0)).detach()) == pytest.approx(math.log(256), abs=0.1)


def test_only_matrices_and_embeddings_have_weight_decay() -> None:
    model = GPT(TINY)
    decayed, undecayed = make_optimizer(model, 1e-3, OptimConfig(weight_decay=0.3)).param_groups
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.3, 0.0)
    assert {parameter.dim() for parameter in decayed["params"]} == {2}
    assert {parameter.dim() for parameter in undecayed["params"]} == {1}
    assert len(decayed["params"]) + len(undecayed["params"]) == len(list(model.parameters()))


def test_parameters_with_other_settings_have_groups_of_their_own() -> None:
    model = build_whole(initialise("cpu", 60.0, {}), load_config(words=["model.layers=1"]), Gpt(load_config()))

    def settings(name: str) -> dict[str, float]:
        return {"lr_factor": 0.5} if name.startswith("norm.") or name == "head.weight" else {}

    config = OptimConfig(weight_decay=0.3)
    optimizer = make_optimizer(model, 1e-3, config, settings)
    names = {parameter: name for name, parameter in model.named_parameters()}
    special = {
        names[parameter]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups[2:]
        for parameter in group["params"]
    }
    assert special == {"norm.weight": (5e-4, 0.0), "norm.bias": (5e-4, 0.0), "head.weight": (5e-4, 0.3)}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)


@pytest.mark.parametrize("wrong", [{"lr": 0.1}, {"lr_factor": -1}, {"weight_decay": math.nan}, {"lr_factor": True}])
def test_wrong_settings_of_a_parameter_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"^param_group\('weight'\) gave .*: allowed: lr_factor and weight_decay, "):
        make_optimizer(torch.nn.Linear(2, 2), 1e-3, OptimConfig(), lambda _: wrong)


def test_parameters_left_on_the_cpu_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    cpu = choose("cpu", torch)
    warn_if_on_cpu(GPT(TINY), cpu, 3)
    assert capsys.readouterr().err == ""
    warn_if_on_cpu(GPT(TINY), cpu.changed(name="gcu-t2x"), 3)
    warning = capsys.readouterr().err
    assert warning.startswith("WARNING: rank 3: ")
    assert "on the CPU although gcu-t2x was requested" in warning


def _group_of_one() -> Group:
    return initialise("cpu", 60.0, {})


def test_one_process_forms_a_group_without_a_rendezvous() -> None:
    group = _group_of_one()
    assert group.ready == "1/1 ranks ready, backend none, device cpu"
    signals = Signals(group)
    for flags in (Flag.NONE, Flag.PREEMPTED | Flag.SAVE):
        signals.send(torch.tensor(2.5), flags, torch.tensor(0.5))
        assert Received.decode(signals.receive().flatten().tolist()) == Received((2.5,), flags, (0.5,))
    assert group.gather_bytes(b"abc") == [b"abc"]
    assert group.gather_bytes(b"") == [b""]
    assert group.broadcast_bytes(b"x" * 10) == b"x" * 10
    assert CHUNK_BYTES > 0


@pytest.mark.parametrize("fails", ["all_gather", "broadcast", "nothing"])
def test_bytes_of_a_backend_that_does_not_carry_them_are_sent_as_numbers(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A library that refuses uint8, or changes it, is found at the start."""
    dist: Any = torch.distributed

    def refuse(*_: object) -> None:
        raise RuntimeError("data type is not supported: Byte")

    def change(tensor: torch.Tensor, source: int) -> None:
        if tensor.dtype == torch.uint8:
            tensor += 1
        dist.broadcast(tensor, source)

    wrong: dict[str, Any] = {"all_gather": refuse, "broadcast": change}
    wrong = {name: function for name, function in wrong.items() if name == fails}
    functions = {name: getattr(dist, name) for name in ("init_process_group", "all_gather", "all_reduce", "broadcast")}
    monkeypatch.setattr("trainer.runtime.init.STOCK_BACKENDS", ())
    accelerator = choose("cpu", torch).changed(distributed=SimpleNamespace(**{**functions, **wrong}))
    monkeypatch.setattr("trainer.runtime.init.choose", lambda *_: accelerator)
    group = initialise("cpu", 60.0, world_of_one())
    everything = bytes(range(256)) * 3
    try:
        assert group.byte_type == (torch.uint8 if fails == "nothing" else torch.float32)
        group = replace(group, accelerator=choose("cpu", torch))
        assert group.gather_bytes(everything) == [everything]
        assert group.broadcast_bytes(everything) == everything
    finally:
        torch.distributed.destroy_process_group()


def test_raise_if_any_raises_the_problem_unchanged() -> None:
    _group_of_one().raise_if_any("")
    with pytest.raises(UserError, match=r"^no data$"):
        _group_of_one().raise_if_any("no data")
    with pytest.raises(TrainerError, match=r"^no space$") as caught:
        _group_of_one().raise_if_any("no space", kind=TrainerError)
    assert caught.value.exit_code == 1


def test_backend_with_its_own_store_gets_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The procedure for a T20, on gloo; the ranks are counted all the same."""
    env = world_of_one()
    accelerator = choose("cpu", torch).changed(needs_address=True)
    monkeypatch.setattr("trainer.runtime.init.choose", lambda *_: accelerator)
    group = initialise("gcu", 60.0, env)
    try:
        assert group.rendezvous is not None
        assert group.rendezvous.vendor_store_address() not in ("127.0.0.1:0", group.rendezvous.address)
        assert (
            replace(group.rendezvous, agent_hosts_store=True).vendor_store_address()
            == f"127.0.0.1:{env['MASTER_PORT']}"
        )
        assert group.ready == "1/1 ranks ready, backend gloo, device cpu"
        assert group.gather_bytes(b"abc") == [b"abc"]
        assert group.broadcast_bytes(b"x" * 10) == b"x" * 10
    finally:
        torch.distributed.destroy_process_group()


def test_group_that_cannot_be_joined_is_an_error_with_the_librarys_message(monkeypatch: pytest.MonkeyPatch) -> None:
    env = world_of_one()
    accelerator = choose("cpu", torch).changed(backend="nccl")
    monkeypatch.setattr("trainer.runtime.init.choose", lambda *_: accelerator)
    with pytest.raises(TrainerError, match=r"^rank 0 cannot join the group \(nccl\): .*NCCL"):
        initialise("cpu", 60.0, env)


@pytest.mark.parametrize(
    ("count", "part"),
    [(1, "local rank 1 has no device: this node shows 1 (cuda)"), (4, "device cuda:1 cannot be used")],
)
def test_missing_or_failing_device_is_named(monkeypatch: pytest.MonkeyPatch, count: int, part: str) -> None:
    def refuse(number: int) -> None:
        raise RuntimeError(f"CUDA error: invalid device ordinal {number}")

    accelerator = choose("cpu", torch).changed(
        name="cuda",
        device="cuda:{n}",
        visible_variable="CUDA_VISIBLE_DEVICES",
        device_count=lambda: count,
        set_device=refuse,
    )
    monkeypatch.setattr("trainer.runtime.init.choose", lambda *_: accelerator)
    with pytest.raises(UserError, match=r"^rank 0: ") as caught:
        initialise("cuda", 60.0, {**world_of_one(), "LOCAL_RANK": "1"})
    assert part in str(caught.value)


def test_rank_whose_launcher_shows_it_one_device_uses_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with --gpus-per-task of Slurm: local rank 3 sees its own card as number 0."""
    taken: list[int] = []
    accelerator = choose("cpu", torch).changed(visible_variable="CUDA_VISIBLE_DEVICES", device_count=lambda: 1)
    monkeypatch.setattr("trainer.runtime.init.choose", lambda *_: accelerator.changed(set_device=taken.append))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    group = initialise("cuda", 60.0, {**world_of_one(), "LOCAL_RANK": "3"})
    torch.distributed.destroy_process_group()
    assert (taken, group.rank.local_rank) == ([0], 3)


def test_launch_without_a_rendezvous_address_is_a_user_error() -> None:
    with pytest.raises(UserError, match="MASTER_ADDR"):
        initialise("cpu", 60.0, {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"})


def test_seed_of_any_size_seeds_every_generator() -> None:
    with seeded_rng(2**80 + 3):
        first = torch.rand(1)
    with seeded_rng(2**80 + 3):
        assert torch.equal(torch.rand(1), first)
    seed_everything(2**80 + 3, choose("cpu", torch))
