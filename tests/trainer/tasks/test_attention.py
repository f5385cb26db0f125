"""The kernel of attention in the log is the one that torch runs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from tests.grounds.llama_logits import VARIANTS
from tests.grounds.trainings import TINY, train_alone
from trainer.config.load import load_config
from trainer.tasks.attention import TYPES, AttentionShape, attention_lines, causal_attention, slow_warning
from trainer.tasks.gpt import Gpt
from trainer.tasks.load import load_task

OPERATIONS = {"flash": "scaled_dot_product_flash_attention_for_cpu", "math": "softmax"}


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """The names of the operations within the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function._schema.name.partition("::")[2])  # has no public name
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("kernel", ["flash", "math"])
def test_kernel_is_the_one_that_runs(precision: str, kernel: str, *, is_masked: bool) -> None:
    shape = AttentionShape(heads=2, head_width=16, length=8, is_masked=is_masked)
    query = torch.ones(3, 2, 8, 16, dtype=TYPES[precision], requires_grad=True)
    mask = torch.ones(3, 1, 8, 8, dtype=torch.bool) if is_masked else None
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION if kernel == "flash" else SDPBackend.MATH):
        (line,) = attention_lines(shape, precision, torch.device("cpu"))
        with Operations() as operations:
            causal_attention(query, query, query, mask)
    mask_text = "masked by documents" if is_masked else "causal"
    assert line == f"attention by {kernel}: cpu, {precision}, 2 heads of 16, 8 tokens, {mask_text}"
    assert {kind for kind, part in OPERATIONS.items() for name in operations.names if part in name} == {kernel}


def test_tasks_return_the_attention_of_a_batch(tmp_path: Path) -> None:
    gpt = Gpt(load_config(words=["model.width=32", "model.heads=4", "model.layers=1"]))
    assert gpt.attention(torch.zeros(2, 9)) == AttentionShape(4, 8, 8)
    (tmp_path / "config.json").write_text(json.dumps(VARIANTS["llama"]))
    llama: Any = load_task(load_config(words=["task=trainer.tasks.llama:Llama", f"options.shape={tmp_path}"]))
    heads, width = VARIANTS["llama"]["num_attention_heads"], llama.attention(torch.zeros(2, 9)).head_width
    assert llama.attention(torch.zeros(2, 9)) == AttentionShape(heads, width, 8)
    assert llama.attention(torch.zeros(2, 3, 8)) == AttentionShape(heads, width, 8, is_masked=True)


def test_kernel_is_logged_once_at_the_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train_alone(load_config(words=[*TINY, "steps=2", f"out={tmp_path}", f"data.paths={__file__}"]))
    assert capfd.readouterr().out.count("attention by flash: cpu, fp32, 1 heads of 8, 8 tokens, causal") == 1


def test_slow_kernel_is_warned_of_with_the_reasons_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_parameters: object, *, debug: bool) -> bool:
        assert debug
        warnings.warn("Flash needs sm80. (Triggered internally at sdp_utils.cpp:1.)", stacklevel=1)
        return False

    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", refuse)
    monkeypatch.setattr(torch.backends.cuda, "can_use_cudnn_attention", lambda _parameters, *, debug: debug)
    warning = slow_warning(torch.ones(1, 2, 8, 16), None)
    assert warning.startswith("WARNING: attention by math keeps the scores of all pairs of tokens in memory")
    reasons = "; flash: Flash needs sm80.; efficient: not in this build of torch; cudnn: turned off"
    assert warning.endswith(reasons)
