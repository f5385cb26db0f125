"""`python -m trainer.data tokenize` beside the tokenizer alone: the same documents on two cores."""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path

import tokenizers

from bench.processes import Job, Timing, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace

RATE = "tokens/s"
COMMAND, ALONE = "python -m trainer.data tokenize", "tokenizers alone"
PROCESSES = 2
MIN_RATIO = 0.8
DOCUMENT_CHARS, COPIES = 4000, 4
VOCABULARY = 32_000
DESCRIPTION = f"""\
The sources of Python's standard library, {COPIES} times, as JSON Lines with documents of {DOCUMENT_CHARS} characters, and a byte-level BPE of {VOCABULARY:,} tokens.
The command on {PROCESSES} processes, from its start to its end; *alone*: `encode_batch_fast` of all documents in memory, on two threads."""
ALONE_PROGRAM = """
import json, sys, time, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
texts = [json.loads(line)["text"] for line in open(sys.argv[2])]
begun_s = time.perf_counter()
encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
print("rate", sum(map(len, encoded)) / (time.perf_counter() - begun_s))
"""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    folder = workspace.folder / "tokenize"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    texts = _documents(folder)
    contestants = [
        Contestant(COMMAND, functools.partial(_by_command, workspace, folder, texts)),
        Contestant(ALONE, functools.partial(_alone, workspace, folder, texts)),
    ]
    return Measure(
        title="Tokenizing",
        description=DESCRIPTION,
        reference=ALONE,
        figures=(RATE,),
        targets=(Target(COMMAND, RATE, MIN_RATIO, baseline=ALONE, least=True),),
        series=run_rounds(contestants, repetitions=repetitions),
    )


def _documents(folder: Path) -> Path:
    """Write the documents and the tokenizer; returns the file of documents."""
    sources = [path.read_text("utf-8") for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|end|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(sources, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    path = folder / "documents.jsonl"
    with path.open("w") as file:
        for source in sources * COPIES:
            for begin in range(0, len(source), DOCUMENT_CHARS):
                file.write(json.dumps({"text": source[begin : begin + DOCUMENT_CHARS]}) + "\n")
    return path


def _by_command(workspace: Workspace, folder: Path, texts: Path) -> Mapping[str, float]:
    output = folder / "tokens"
    shutil.rmtree(output, ignore_errors=True)
    words = [str(texts), "--tokenizer", str(folder), "--output", str(output), "--processes", str(PROCESSES)]
    begun_s = time.monotonic()
    timing = _timed(workspace, folder, "-m", "trainer.data", "tokenize", *words)
    tokens = re.search(rb"^tokenized .* tokens=(\d+) ", timing.output, re.MULTILINE)
    assert tokens is not None
    return {RATE: int(tokens[1]) / (time.monotonic() - begun_s)}


def _alone(workspace: Workspace, folder: Path, texts: Path) -> Mapping[str, float]:
    timing = _timed(workspace, folder, "-c", ALONE_PROGRAM, str(folder / "tokenizer.json"), str(texts))
    rate = re.search(rb"^rate (\S+)", timing.output, re.MULTILINE)
    assert rate is not None
    return {RATE: float(rate[1])}


def _timed(workspace: Workspace, folder: Path, *words: str) -> Timing:
    env = {**workspace.env, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), "RAYON_NUM_THREADS": "2"}
    return time_job(Job([[sys.executable, *words]], cwd=folder, env=env), limit_s=300)
