"""One token file: the documents of a part, in the form of NumPy's .npy. No torch here."""

from __future__ import annotations

import hashlib
import os
from array import array
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

from trainer.data.corpus.documents import Text, texts_of
from trainer.data.corpus.pieces import Piece
from trainer.data.tokenizer import Tokenizer
from trainer.errors import UserError

TOGETHER_CHARS = 1 << 19  # tokenized in one call
HEADER_BYTES = 128
CODES = {"uint16": ("H", "<u2"), "uint32": ("I", "<u4")}  # of array and of NumPy
MOST_OF_UINT16 = 1 << 16


def kind_for(vocabulary: int) -> str:
    """The smallest type that has all tokens."""
    return "uint16" if vocabulary <= MOST_OF_UINT16 else "uint32"


class Encoder:
    """Documents as tokens, which begin with the bos token, if the tokenizer writes one, and end with the eos token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UserError: the tokenizer has no eos token."""
        self.tokenizer, self.kind = tokenizer, kind_for(tokenizer.size)
        end = tokenizer.token("eos_token")
        if end is None:
            raise UserError(
                f"{tokenizer.path}: no eos_token in tokenizer_config.json beside it, with which a document ends; write there "
                '{"eos_token": "<|endoftext|>"}, or what the tokenizer calls it'
            )
        self._end = [end]
        begin = tokenizer.token("bos_token") if tokenizer.starts_with_bos else None
        self._begin = [] if begin is None else [begin]

    def encode(self, texts: Sequence[Text]) -> array[int]:
        tokens = array(CODES[self.kind][0])
        for text, ids in zip(texts, self.tokenizer.encode([text.text for text in texts])):
            tokens.extend(self._begin if text.begins else ())
            tokens.extend(ids)
            tokens.extend(self._end if text.ends else ())
        return tokens


def write_shard(
    path: Path, pieces: Sequence[Piece], encoder: Encoder, *, field: str, on_batch: Callable[[int, int], None]
) -> Dict[str, Any]:
    """
    Write the tokens of a part to a new file, and wait until they are on the disk.

    Args:
        path: of the file.
        pieces: the part.
        encoder: makes the tokens.
        field: the text of a record.
        on_batch: called now and then with the bytes of text and the tokens since the last call.

    Returns:
        The numbers of tokens and documents, and the sha256 of the texts and of the tokens.

    Raises:
        UserError: a document is invalid.
    """
    contents, written = hashlib.sha256(), hashlib.sha256()
    documents = tokens = 0
    with path.open("wb") as file:
        file.write(b"\0" * HEADER_BYTES)
        for texts in _batches(pieces, field):
            batch = encoder.encode(texts)
            encoded = [text.text.encode() + b"\0" * text.ends for text in texts]
            for part in encoded:
                contents.update(part)
            file.write(batch)
            written.update(batch)
            documents, tokens = documents + sum(text.ends for text in texts), tokens + len(batch)
            on_batch(sum(map(len, encoded)), len(batch))
        file.seek(0)
        file.write(_header(CODES[encoder.kind][1], tokens))
        file.flush()
        os.fsync(file.fileno())
    return {"tokens": tokens, "documents": documents, "contents": contents.hexdigest(), "sha256": written.hexdigest()}


def _batches(pieces: Sequence[Piece], field: str) -> Iterator[List[Text]]:
    batch: List[Text] = []
    size = 0
    for piece in pieces:
        for text in texts_of(piece, field):
            batch.append(text)
            size += len(text.text)
            if size >= TOGETHER_CHARS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _header(kind: str, count: int) -> bytes:
    """Version 1.0 of the format of .npy."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({count},), }}"
    return (
        b"\x93NUMPY\x01\x00"
        + (HEADER_BYTES - 10).to_bytes(2, "little")
        + text.ljust(HEADER_BYTES - 11).encode()
        + b"\n"
    )
