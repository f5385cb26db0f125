"""docs/small-llama.md, block by block: from text to a model that transformers loads."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from tests.docs.blocks import ROOT, bare_environment, blocks, run
from tests.grounds import hf_models
from trainer.checkpoint.interop.initial import read_weights, shapes_of
from trainer.config.llama_shape import read_shape
from trainer.config.load import load_config
from trainer.tasks.llama import Llama
from trainer.tasks.llama_model import LlamaModel


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.train
@pytest.mark.timeout(600)
def test_small_llama_is_trained_tuned_and_loaded_as_written(tmp_path: Path) -> None:
    page = "\n".join(blocks(ROOT / "docs" / "small-llama.md"))
    shown = run(page, tmp_path, bare_environment(tmp_path, Path(sys.executable).parent))

    assert "70 % of " in shown
    assert shown.count('sampled step=60 "The statement" "') == 1
    assert re.search(r"model 161600 parameters, 3584 of them trained, \d+ conversations", shown)
    [stopped, lowest] = re.findall(r"stopped at step (\d+): patience=1 .* below ([\d.]+)$", shown, re.MULTILINE)[0]
    best = int(stopped) - 10
    assert f"of {tmp_path}/small-llama/tuned/step_{best} to models/tuned" in shown
    [ours, theirs] = re.findall(r"by the trainer ([\d.]+), by transformers ([\d.]+)", shown)[0]
    assert float(ours) == pytest.approx(float(theirs), abs=2e-5)
    assert float(ours) == pytest.approx(float(lowest), abs=1e-4)  # with adapters beside the weights

    merged, tokens = tmp_path / "small-llama" / "models" / "tuned", torch.arange(3, 203)[None]
    model = LlamaModel(read_shape(merged))
    task = Llama(load_config(words=["task=trainer.tasks.llama:Llama", f"init={merged}"]))
    model.load_state_dict(read_weights(merged, shapes_of(model), task))
    with torch.no_grad():
        torch.testing.assert_close(model.logits(tokens), hf_models.logits(merged, tokens), rtol=0.0, atol=1e-4)
