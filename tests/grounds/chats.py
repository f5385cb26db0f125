"""A small tokenizer with a chat template, and files of chat records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

TOKENS = 300
SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}[assistant]\n"
    "{%- generation %}{{ '\n' + message['content'] }}<|end|>{% endgeneration %}\n{% else %}[{{ message['role'] }}]\n"
    "{{ message['content'] }}<|end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
TEXTS = [f"what is {first} plus {second}? it is {first + second}" for first in range(12) for second in range(12)]


def write_tokenizer(folder: Path, template: str = TEMPLATE, size: int = TOKENS, texts: Sequence[str] = TEXTS) -> Path:
    """Train a byte-level BPE, write it as transformers does, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL, strict=True))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def chat(*contents: str) -> dict[str, Any]:
    """A record with these messages of user and assistant in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[number % 2], "content": text} for number, text in enumerate(contents)]}


def write_records(path: Path, records: Sequence[object]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def sums(count: int) -> list[dict[str, Any]]:
    """Records of different lengths."""
    return [
        chat(
            *(text for turn in range(1 + number % 3) for text in (f"what is {number} plus {turn}?", str(number + turn)))
        )
        for number in range(count)
    ]
