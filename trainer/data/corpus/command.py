"""`python -m trainer.data tokenize`: text files, JSON, JSON Lines or Parquet become a folder of token files. No torch here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Callable, Sequence

from trainer.console import log_line
from trainer.data.corpus.folder import TokenFolder
from trainer.data.corpus.pieces import parts_of
from trainer.data.corpus.shard import Encoder
from trainer.data.corpus.workers import Workers
from trainer.data.paths import matching_files
from trainer.data.tokenizer import Tokenizer
from trainer.errors import UserError
from trainer.text import hours

EVERY_S = 5.0
VERSION = 1  # of the tokens made from the same texts


def tokenize(names: Sequence[str], output: Path, tokenizer_path: Path, *, field: str, processes: int) -> None:
    """
    Write the tokens of all documents in these files, folders or globs to a new folder.

    The same command continues one that was killed.

    Raises:
        UserError: a file or document is invalid, named with its line; or the output cannot be written.
    """
    encoder = Encoder(Tokenizer(tokenizer_path))
    paths = [path for name in names for path in matching_files(name, "tokenize")]
    parts = parts_of(paths)
    if not parts:
        raise UserError(f"tokenize: {', '.join(names)}: no text in it")
    states = [(path, path.stat()) for path in paths]
    texts = [[str(path.absolute()), state.st_size, state.st_mtime_ns] for path, state in states]
    plan = {"version": VERSION, "tokenizer": encoder.tokenizer.digest, "field": field, "texts": texts}
    folder = TokenFolder(output, plan, len(parts))
    try:
        if folder.is_done():
            log_line(f"{output}: is done; nothing is left to tokenize")
            return
        with folder.open() as missing:
            total = sum(piece.size for part in parts for piece in part)
            log_line(
                f"tokenizing {total / 1e6:.1f} MB of text by {min(processes, len(missing))} processes; type={encoder.kind} holds "
                f"the {encoder.tokenizer.size} tokens of {encoder.tokenizer.path}"
            )
            if len(missing) < len(parts):
                log_line(f"continuing: {len(parts) - len(missing)} of {len(parts)} files are done")
            size = sum(piece.size for number in missing for piece in parts[number])
            Workers(folder, parts, encoder, field).run(missing, processes, ProgressLines(size).add)
            manifest = folder.finish(encoder.kind)
    except OSError as exc:
        raise UserError(f"{exc.filename or output}: {exc.strerror}") from exc
    log_line(
        f"tokenized documents={manifest['documents']} tokens={manifest['tokens']} type={manifest['kind']} files={len(parts)} "
        f"contents={manifest['contents'][:12]} output={output}"
    )


class ProgressLines:
    """A line every EVERY_S seconds."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`size` is that of all texts, in bytes."""
        self._size, self._clock, self._begun_s = size, clock, clock()
        self._due_s = self._begun_s + EVERY_S
        self._bytes = self._tokens = 0

    def add(self, text_bytes: int, tokens: int) -> None:
        """Count what was done, and print when it is time."""
        self._bytes += text_bytes
        self._tokens += tokens
        now_s = self._clock()
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        rate = self._bytes / (now_s - self._begun_s)
        eta_s = max(0.0, self._size - self._bytes) / rate
        log_line(
            f"tokenize done_mb={self._bytes / 1e6:.1f} total_mb={self._size / 1e6:.1f} tokens={self._tokens} mb/s={rate / 1e6:.2f} "
            f"eta={hours(eta_s)}"
        )
