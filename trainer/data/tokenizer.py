"""The tokenizer of a Hugging Face folder: tokenizer.json, its special tokens, and its chat template. No torch here."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from trainer.errors import UserError
from trainer.io import LFS_REMEDY, is_lfs_pointer
from trainer.values import Foreign, JsonValue

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class Tokenizer:
    """
    special: texts of the special tokens by their names in tokenizer_config.json.
    template: Jinja text of the chat template; "" if there is none.
    size: the highest token + 1.
    digest: sha256 of everything that decides the tokens.
    """

    def __init__(self, path: Path) -> None:
        """
        Args: `path`: tokenizer.json, or the folder that has it.

        Raises:
            UserError: it cannot be read, or the package is missing.
        """
        self.path = path / TOKENIZER_FILE if path.is_dir() else path
        text = _read(self.path)
        self._tokenizer = _parse(self.path, text)
        self._begins_with = self._tokenizer.encode("", add_special_tokens=True).ids
        # Some post-processors take spaces out of the offsets of tokens; none changes a text's own tokens.
        self._tokenizer.post_processor = None
        settings = _settings(self.path.with_name(SETTINGS_FILE))
        self.special = {name: found for name in SPECIAL for found in [_special(settings.get(name))] if found}
        template = self.path.with_name(TEMPLATE_FILE)
        self.template = _read(template) if template.is_file() else _template(settings.get("chat_template"))
        self.size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        parts = [text, self.template, json.dumps(self.special, sort_keys=True)]
        self.digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> List[List[int]]:
        """The tokens of each text, without special ones that are not written in it."""
        # without offsets, which take a tenth of the time; tokenizers before 0.20.2 has no such function
        encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        return [encoding.ids for encoding in encode(list(texts), add_special_tokens=False)]

    def encode_with_offsets(self, texts: Sequence[str]) -> List[Tuple[List[int], List[Tuple[int, int]]]]:
        """The same, with the first and the last character + 1 of each token."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encoded]

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def token(self, name: str) -> int | None:
        """The number of a special token, by its name in tokenizer_config.json."""
        number: int | None = self._tokenizer.token_to_id(self.special.get(name, ""))
        return number

    @property
    def starts_with_bos(self) -> bool:
        """Plain text begins with the bos token."""
        return self.token("bos_token") in self._begins_with

    def misfit(self, config: Mapping[str, Any], vocabulary: int) -> str:
        """Return why these are not the tokens of the model with this config.json, or ""."""
        if self.size > vocabulary:
            return f"its tokens go up to {self.size - 1}, the model's vocab_size={vocabulary} allows {vocabulary - 1}"
        ends = config.get("eos_token_id")
        for end in ends if isinstance(ends, list) else [ends]:
            if type(end) is int and self._tokenizer.id_to_token(end) is None:
                return f"it has {self.size} tokens, and none with the number of the model's eos_token_id={end}"
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as exc:
        raise UserError(f"data.tokenizer: {path}: cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise UserError(f"data.tokenizer: {path}: not valid UTF-8") from exc


def _parse(path: Path, text: str) -> Foreign:  # of a package without types
    if importlib.util.find_spec("tokenizers") is None:
        raise UserError(f"chat records need the package tokenizers, which is not installed for {sys.executable}")
    try:
        tokenizer = importlib.import_module("tokenizers").Tokenizer.from_str(text)
    except Exception as exc:  # the package raises plain Exception
        reason = LFS_REMEDY if is_lfs_pointer(path) else f"no tokenizer: {exc}"
        raise UserError(f"data.tokenizer: {path}: {reason}") from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _settings(path: Path) -> Dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(_read(path))
    except ValueError as exc:
        raise UserError(f"data.tokenizer: {path}: not valid JSON: {exc}") from exc
    if not isinstance(settings, dict):
        raise UserError(f"data.tokenizer: {path}: no mapping")
    return settings


def _special(value: JsonValue) -> str:  # a text, or a mapping with it
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _template(value: JsonValue) -> str:  # a text, or a list of named ones
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else ""
