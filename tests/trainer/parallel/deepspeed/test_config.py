"""DeepSpeed's configuration: the user's file, the trainer's settings, and the usable versions. DeepSpeed is not imported."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.config.load import load_config
from trainer.errors import UserError
from trainer.parallel.deepspeed.config import deepspeed_config, read_relaxed_json, strict_json
from trainer.parallel.deepspeed.package import package_problem, package_warning
from trainer.runtime.rank import Rank

FOUR_RANKS = replace(Rank.from_env({}), world_size=4, launched=True, nodes=2)
# The file of the field guide for two nodes of eight cards, with comments and trailing commas as users write them.
WRITTEN_BY_HAND = """
{
  // two nodes
  "bf16": {"enabled": "auto"},
  "train_micro_batch_size_per_gpu": "auto", /* not "8" */
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": true,
    "reduce_bucket_size": 5e8,
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": 1e6,
    "sub_group_size": 1e9,
    "comment_like": "http://no/comment, ]",
  },
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95], "eps": 1e-8}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
}
"""


# The relevant names that deepspeed.utils of the two versions exports.
EXPORTS_0_9_2 = (
    "from .tensor_fragment import safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state\n"
)
CLIPS_0_9_2 = """
        # Step 1:- Calculate gradient norm using fp-16 grads
        if self.dtype == torch.float16:
            see_memory_usage('Before norm calculation')
"""
EXPORTS_0_19 = f"""{EXPORTS_0_9_2}
from .tensor_fragment import safe_set_full_fp32_param, safe_set_full_optimizer_state, safe_set_full_grad
from .tensor_fragment import safe_set_local_fp32_param, safe_set_local_grad, safe_set_local_optimizer_state
"""


def _merged(words: str, file_settings: dict[str, Any] | None = None) -> dict[str, Any]:
    return deepspeed_config(load_config(words=words.split()), FOUR_RANKS, file_settings or {})


def test_comments_trailing_commas_and_exponents_are_read(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text(WRITTEN_BY_HAND)
    read = read_relaxed_json(str(tmp_path / "zero3.json"))
    assert read["train_micro_batch_size_per_gpu"] == "auto"
    zero = read["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["sub_group_size"]) == (500_000_000, 1_000_000_000)
    assert type(zero["reduce_bucket_size"]) is int
    assert zero["comment_like"] == "http://no/comment, ]"
    assert read["optimizer"]["params"]["eps"] == 1e-8


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not valid JSON (comments and trailing commas may stand in it)"),
        ("// c\n{\n'a': 1}", "line 3"),
        ('{"a": 1, "a": 2}', "key 'a' is given twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": 1e999}', "1e999 is larger than any number"),
        ("[1]", "must hold a mapping"),
        (None, "cannot read deepspeed="),
    ],
)
def test_file_that_is_not_json_is_named_with_its_error(tmp_path: Path, text: str | None, part: str) -> None:
    path = tmp_path / "ds.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=r"ds\.json") as caught:
        read_relaxed_json(str(path))
    assert part in str(caught.value)


def test_settings_become_strict_json() -> None:
    merged = _merged("strategy=zero2 micro_batch=2 accumulation=3 precision=bf16 optim.grad_clip=0.5")
    assert json.loads(strict_json(merged)) == merged
    assert merged["train_batch_size"] == 2 * 3 * 4
    assert (merged["train_micro_batch_size_per_gpu"], merged["gradient_accumulation_steps"]) == (2, 3)
    assert (merged["zero_optimization"]["stage"], merged["gradient_clipping"]) == (2, 0.5)
    assert (merged["bf16"]["enabled"], merged["fp16"]["enabled"]) == (True, False)


def test_auto_takes_the_trainers_value_and_the_rest_is_kept(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text(WRITTEN_BY_HAND)
    merged = _merged("strategy=zero3 micro_batch=2 precision=bf16", read_relaxed_json(str(tmp_path / "zero3.json")))
    assert merged["train_micro_batch_size_per_gpu"] == 2
    assert merged["bf16"]["enabled"] is True
    zero = merged["zero_optimization"]
    assert (zero["overlap_comm"], zero["reduce_bucket_size"]) == (True, 500_000_000)
    assert zero["stage3_prefetch_bucket_size"] == 128 * 128 * 9 // 10
    assert {"optimizer", "scheduler"} & set(merged) == set()
    assert "auto" not in strict_json(merged)


@pytest.mark.parametrize(
    ("words", "file_settings", "parts"),
    [
        (
            "zero3",
            {"train_batch_size": 100},
            ["train_batch_size=100, but micro_batch=8 x 4 ranks x accumulation=1 = 32"],
        ),
        ("zero3", {"train_micro_batch_size_per_gpu": 1}, ["train_micro_batch_size_per_gpu=1, but micro_batch=8"]),
        ("zero3", {"zero_optimization": {"stage": 2}}, ["zero_optimization.stage=2, but strategy=zero3"]),
        ("zero3", {"bf16": {"enabled": True}}, ["bf16.enabled=true, but precision=fp32"]),
        ("zero3", {"gradient_clipping": 2}, ["gradient_clipping=2, but optim.grad_clip=1"]),
        ("zero3", {"optimizer": {"type": "Lamb"}}, ["optimizer.type=Lamb, but AdamW, the trainer's"]),
        (
            "zero3",
            {"optimizer": {"params": {"lr": 1, "beta3": 1}}},
            ["lr=1, but lr=0.003", "beta3=1, but the trainer's"],
        ),
        (
            "zero3",
            {"zero_optimization": {"offload_param": {"device": "nvme"}}},
            ["offload_param.device=nvme, but offload_param=false"],
        ),
        ("zero1", {"scheduler": {"type": "OneCycle", "params": {"cycle_max_lr": 1}}}, ["scheduler: the trainer sets"]),
        ("zero1", {"zero_optimisation": {}}, ["unknown key 'zero_optimisation'", "did you mean 'zero_optimization'"]),
    ],
)
def test_contradiction_between_file_and_settings_names_both(
    words: str, file_settings: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(UserError, match=r"^ds\.json: ") as caught:
        _merged(f"strategy={words} deepspeed=ds.json", file_settings)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("file_settings", "message"),
    [
        ({"fp16": True}, 'fp16=true: allowed: a group of keys in braces, such as {"enabled": "auto"}, or "auto"'),
        ({"bf16": None}, 'bf16=null: allowed: a group of keys in braces, such as {"enabled": "auto"}, or "auto"'),
        ({"bf16": False}, "bf16=false: allowed: a group"),
        (
            {"zero_optimization": 3},
            'zero_optimization=3: allowed: a group of keys in braces, such as {"stage": "auto"}',
        ),
        (
            {"zero_optimization": {"offload_param": True}},
            'zero_optimization.offload_param=true: allowed: a group of keys in braces, such as {"device": "auto"}',
        ),
        ({"optimizer": "AdamW"}, "optimizer=AdamW: allowed: a group"),
        ({"optimizer": {"params": [1]}}, "optimizer.params=[1]: allowed: a group"),
        ({"tensorboard": True}, 'tensorboard=true: allowed: a group of keys in braces, or "auto"'),
        ({"gradient_clipping": {"norm": 1}}, "gradient_clipping is a group of keys there: allowed: one value"),
        ({"bf16": {"enabled": {"on": 1}}}, "bf16.enabled is a group of keys there: allowed: one value"),
    ],
)
def test_value_instead_of_a_group_or_the_reverse_is_named(file_settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=r"^ds\.json: ") as caught:
        _merged("strategy=zero3 deepspeed=ds.json", file_settings)
    assert str(caught.value).startswith(f"ds.json: {message}")


def test_null_that_deepspeed_allows_equals_a_missing_key() -> None:
    zero = {"offload_optimizer": None, "offload_param": None}
    assert _merged("strategy=zero3 deepspeed=ds.json", {"zero_optimization": zero}) == _merged("strategy=zero3")


def test_equal_values_are_no_contradiction() -> None:
    file_settings = {"train_batch_size": 32, "bf16": {"enabled": False}, "gradient_clipping": 1}
    assert _merged("strategy=zero1 deepspeed=ds.json", file_settings)["train_batch_size"] == 32


@pytest.mark.parametrize(
    ("accelerator", "version", "words", "problem"),
    [
        ("cuda", "0.19.8", "strategy=zero3", ""),
        ("cuda", None, "strategy=zero3", "deepspeed is not installed: pip install --no-build-isolation deepspeed"),
        ("gcu-t2x", "0.9.2", "strategy=zero1", "deepspeed 0.9.2 does not know GCUs; install the one of TopsRider"),
        ("gcu-t2x", "0.9.2+gcu.49", "strategy=zero0", ""),
        ("gcu-t2x", "0.16.2+gcu.1", "strategy=zero3", ""),
        ("cpu", "0.19.8", "strategy=zero2 offload_optimizer=true", "install a C++ compiler (g++ >= 9) and ninja"),
        ("cuda", "0.9.2", "strategy=zero0", ""),
        ("cuda", "0.9.2", "strategy=zero1", "deepspeed 0.9.2 computes wrong gradients there"),
        ("cpu", "0.9.2", "strategy=zero3", "is too old: it lacks safe_set_local_fp32_param"),
        ("cuda", "0.16.2", "strategy=zero3 compile=true", "is too old: it lacks set_z3_leaf_module; pip install"),
        ("cpu", "0.9.2", "strategy=zero3", "pip install --no-build-isolation --upgrade deepspeed, or use strategy=ddp"),
        (
            "gcu-t2x",
            "0.9.2+gcu.49",
            "strategy=zero1",
            "wrong gradients there (upstream's 0.9.2: 3 % off in the norm): use",
        ),
        ("gcu-t2x", "0.9.2+gcu.49", "strategy=zero2", ""),
        ("gcu-t2x", "0.9.2+gcu.49", "strategy=zero2 precision=bf16", "adds micro batches in bf16: use precision=fp32"),
        ("gcu-t2x", "0.9.2+gcu.49", "strategy=zero2 offload_optimizer=true", "Adam for CPUs may hang"),
        (
            "gcu-t2x",
            "0.9.2+gcu.49",
            "strategy=zero3",
            "lacks safe_set_local_fp32_param, safe_set_local_optimizer_state; use",
        ),
    ],
)
def test_unusable_deepspeed_package_is_an_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, accelerator: str, version: str | None, words: str, problem: str
) -> None:
    utils = tmp_path / "deepspeed" / "utils"
    utils.mkdir(parents=True)
    old = str(version).startswith("0.9.2")
    (utils / "__init__.py").write_text(EXPORTS_0_9_2 if old else EXPORTS_0_19)
    (tmp_path / "deepspeed/runtime/zero").mkdir(parents=True)
    (tmp_path / "deepspeed/runtime/zero/stage_1_and_2.py").write_text(CLIPS_0_9_2 if old else "")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "deepspeed")]) if version else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    monkeypatch.setattr(metadata, "version", lambda _: version)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    found = package_problem(accelerator, load_config(words=words.split()))
    assert problem in found
    assert bool(problem) == bool(found)


@pytest.mark.parametrize(
    ("words", "source", "expected"),
    [
        ("strategy=zero1", "if is_invalid_grad_norm(all_groups_norm):", "fp32"),
        ("strategy=zero1", "assert all_groups_norm > 0.", None),
        ("strategy=zero1", None, None),
        ("strategy=zero1 offload_optimizer=true", "assert all_groups_norm > 0.", "fp32"),
        ("strategy=zero2", "assert all_groups_norm > 0.", "fp32"),
    ],
)
def test_zero1_sums_in_fp32_only_where_deepspeed_can_skip_a_step_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, source: str | None, expected: str | None
) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    if source is not None:
        (runtime / "bf16_optimizer.py").write_text(source)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda _: SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    )
    merged = _merged(f"{words} precision=bf16")
    assert merged.get("data_types", {}).get("grad_accum_dtype") == expected


def test_ninja_in_the_folder_of_the_interpreter_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder, name in (("system", "g++"), ("venv", "python"), ("venv", "ninja")):
        program = tmp_path / folder / name
        program.parent.mkdir(exist_ok=True)
        program.touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path / "system"))
    config = load_config(words=["strategy=zero2", "offload_optimizer=true"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    assert package_problem("cpu", config) == ""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "system" / "python"))
    assert "ninja" in package_problem("cpu", config)


def test_zero_3_of_the_vendors_deepspeed_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "0.9.2+gcu.49")
    assert package_warning("gcu-t2x", "zero3").startswith("WARNING: strategy=zero3 with deepspeed 0.9.2+gcu.49")
    assert package_warning("gcu-t2x", "zero2") == package_warning("cuda", "zero3") == ""
