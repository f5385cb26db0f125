"""The codec of a tokenizer: a prompt is a text, or a message of the user where chats are trained. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import List

from trainer.config.config import TrainConfig
from trainer.data.chat_template import ChatTemplate
from trainer.data.language import chat_files
from trainer.data.tokenizer import Tokenizer
from trainer.errors import UserError
from trainer.tasks.continuation import Codec


def tokenizer_codec(config: TrainConfig, folder: Path | None, vocabulary: int) -> Codec:
    """
    The codec of data.tokenizer, or else of the model's folder.
    Raises UserError: it cannot be read, or has more tokens than the model.
    """
    data = config.data
    path = Path(data.tokenizer).expanduser() if data.tokenizer else folder
    assert path is not None
    tokenizer = Tokenizer(path if path.is_dir() or data.tokenizer else path.parent)
    if tokenizer.size > vocabulary:
        raise UserError(
            f"sample_prompts: {tokenizer.path} has {tokenizer.size} tokens, the model {vocabulary}: name data.tokenizer"
        )
    has_chats = bool(data.paths and chat_files(data.paths, data.format, "data.paths"))
    template = ChatTemplate(tokenizer.template, tokenizer.special, str(tokenizer.path)) if has_chats else None
    begin = tokenizer.token("bos_token") if tokenizer.starts_with_bos and template is None else None
    end = tokenizer.token("eos_token")

    def encode(prompt: str) -> List[int]:
        text = template.question(prompt) if template else prompt
        return [*([] if begin is None else [begin]), *tokenizer.encode([text])[0]]

    return Codec(encode, tokenizer.decode, frozenset(() if end is None else (end,)))
