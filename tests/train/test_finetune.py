"""The full example of docs/finetune.md: chats on two nodes over ssh, exported, and loaded by transformers."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.grounds.chats import sums, write_records
from tests.grounds.checkpoints import saved_state
from tests.grounds.cli import Orch
from tests.grounds.hf_models import build, logits, write_model
from tests.grounds.sshd import Farm
from trainer.checkpoint.__main__ import main

PAGE = Path(__file__).parents[2] / "docs" / "finetune.md"

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.timeout(200)]


def example(folder: Path) -> tuple[list[str], list[str]]:
    """The words of both commands, with their folders below `folder`."""
    [block] = re.findall(r"^## A full example\n.*?```sh\n(.*?)```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    below = re.sub(r"/(models|data|shared)/", lambda found: f"{folder}{found.group()}", block)
    launch, export = (shlex.split(line) for line in below.splitlines())
    assert (launch[0], export[:3]) == ("orch", ["python", "-m", "trainer.checkpoint"])
    return launch[1:], export[3:]


@pytest.mark.extended
def test_example_of_the_page_runs_and_transformers_loads_the_same_model(farm: Farm, tmp_path: Path) -> None:
    folder = farm.home / secrets.token_hex(4)
    launch, export = example(folder)
    original = write_model(folder / "models" / "small", tie_word_embeddings=True)
    (folder / "data").mkdir()
    write_records(folder / "data" / "chat.jsonl", sums(20))
    (folder / "shared").mkdir()
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.name == "shared" else 0o755)
    farm.inventory(tmp_path, nodes=2, env={"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"})
    orch = Orch(tmp_path)
    orch(*launch, "device=cpu", "report=", timeout_s=180)
    assert orch.status()["state"] == "DONE"
    assert re.search(r"20 conversations in \d+ sequences, \d+ tokens, \d+ of them trained", orch("logs").stdout)
    for path in (folder / "shared").rglob("*"):
        os.chown(path, os.getuid(), os.getgid())  # checkpoints of another account are not trusted
    assert main(export) == 0
    saved = saved_state(folder / "shared" / "out" / "step_6")["model"]
    trained: Any = build(tie_word_embeddings=True)
    trained.load_state_dict({name: tensor.to(torch.bfloat16) for name, tensor in saved.items()})
    tuned, tokens = folder / "models" / "tuned", torch.arange(3, 90)[None]
    with torch.no_grad():
        torch.testing.assert_close(logits(tuned, tokens), trained(tokens).logits, rtol=0.0, atol=0.0)
        assert float((logits(tuned, tokens) - original(tokens).logits).abs().max()) > 1e-3
    assert AutoTokenizer.from_pretrained(tuned, local_files_only=True).chat_template
