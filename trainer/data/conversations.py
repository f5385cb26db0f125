"""The tokens of chat records: made once per data and tokenizer, and kept in a file that later starts and other ranks read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import tempfile
from array import array
from bisect import bisect_right
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator, List, Sequence, Tuple

import torch

from trainer import safetensors
from trainer.console import log_line
from trainer.data.chat_records import Record, read_records
from trainer.data.chat_template import ChatTemplate
from trainer.data.tokenizer import Tokenizer
from trainer.errors import UserError
from trainer.safetensors import FormatError, SafetensorsFile

VERSION = 1  # of the tokens made from the same records
TOGETHER = 256  # records that are tokenized in one call, which uses all cores
READ_BYTES = 1 << 20
COMPARED = 16  # tokens before a border
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # some network file systems


class Conversations:
    """
    Conversations as tokens, in the order of the records.

    tokens: of all, int32. trained: 1 if a token is one of an answer. ends: end of each conversation in them.
    """

    def __init__(self, path: Path) -> None:
        """Raises FormatError and OSError."""
        self.path, file = path, SafetensorsFile(path)
        self.digest = file.header.metadata["sha256"]
        self.tokens, self.trained, self.ends = (file.tensor(name) for name in ("tokens", "trained", "ends"))

    def __reduce__(self) -> Tuple[Any, ...]:
        return Conversations, (self.path,)  # a process that makes batches maps the file itself


def load_conversations(paths: Sequence[Path], tokenizer: Tokenizer, key: str) -> Conversations:
    """
    Return the conversations in these files; only the first process on a machine makes the tokens.
    Raises UserError: a record or the template is invalid, or the tokens cannot be kept.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "orch" / "chat"
    kept = cache / f"{_digest(paths, tokenizer, key)}.safetensors"
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_once(kept, lambda: _write(kept, paths, tokenizer, key))
        return Conversations(kept)
    except OSError as exc:
        raise UserError(
            f"{key}: its tokens cannot be kept in {kept}: {exc.strerror}; name another folder in XDG_CACHE_HOME"
        ) from exc


def _digest(paths: Sequence[Path], tokenizer: Tokenizer, key: str) -> str:
    total = hashlib.sha256(f"{VERSION} {tokenizer.digest}".encode())
    for path in paths:
        try:
            total.update(_hash_of(path, 0).encode())
        except OSError as exc:
            raise UserError(f"{key}: {path}: {exc.strerror}") from exc
    return total.hexdigest()


def _hash_of(path: Path, start: int) -> str:
    """sha256 of a file from a byte on."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        for part in iter(lambda: file.read(READ_BYTES), b""):
            found.update(part)
    return found.hexdigest()


def _make_once(kept: Path, make: Callable[[], None]) -> None:
    """
    Make a file, unless it is whole or another process makes it while this one waits, whose UserError this one raises, too.

    The lock file has a line for each time that the file was made: the problem, or nothing. The file is checked outside the lock, by all
    processes at the same time.
    """
    with kept.with_suffix(".lock").open("a+b", buffering=0) as lock:
        while True:
            known = lock.seek(0, os.SEEK_END)
            # Not before it was ever made: a network file system would remember for a while that there is none.
            if known and _is_whole(kept):
                return
            with _alone(lock):
                lock.seek(known)
                ends = lock.read().splitlines()
                problem = ends[-1].decode(errors="replace") if ends else _problem(make)
                if not ends:
                    lock.write(" ".join(problem.splitlines()).encode(errors="replace") + b"\n")
            if problem:
                raise UserError(problem)
            if not ends:
                return


def _problem(make: Callable[[], None]) -> str:
    try:
        make()
    except UserError as exc:
        return str(exc)
    return ""


@contextlib.contextmanager
def _alone(file: BinaryIO) -> Iterator[None]:
    """Wait for other processes in this block; where files cannot be locked, all work side by side and the last one wins."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as exc:
        if exc.errno not in NO_LOCKS:
            raise
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _is_whole(path: Path) -> bool:
    try:
        header = safetensors.read_header(path)
        first = min((entry.start for entry in header.entries.values()), default=0)
        return header.metadata.get("sha256") == _hash_of(path, first)
    except FileNotFoundError:
        return False
    except FormatError as exc:
        log_line(f"{path}: {exc}; the tokens are made again")
        return False


def _write(kept: Path, paths: Sequence[Path], tokenizer: Tokenizer, key: str) -> None:
    records = [record for path in paths for record in read_records(path, key)]
    if not records:
        raise UserError(f"{key}: {', '.join(map(str, paths))}: no record in it")
    log_line(f"tokenizing {len(records)} conversations, to be kept in {kept}")
    tokens, trained, ends = array("i"), bytearray(), array("q")
    for ids, mask in tokenized(records, tokenizer):
        tokens.extend(ids)
        trained.extend(mask)
        ends.append(len(tokens))
    whole = hashlib.sha256()
    for part in (tokens, trained, ends):
        whole.update(memoryview(part))
    tensors = {
        "tokens": torch.frombuffer(tokens, dtype=torch.int32),
        "trained": torch.frombuffer(trained, dtype=torch.uint8),
        "ends": torch.frombuffer(ends, dtype=torch.int64),
    }
    number, name = tempfile.mkstemp(prefix=f"{kept.name}.", dir=kept.parent)
    temporary = Path(name)
    try:
        with open(number, "wb") as file:
            safetensors.write(file, tensors, {"sha256": whole.hexdigest()})
        temporary.replace(kept)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def tokenized(records: Sequence[Record], tokenizer: Tokenizer) -> Iterator[Tuple[List[int], bytes]]:
    """
    The tokens of each conversation, and 1 for each that is trained.
    Raises UserError: the template fails, or a token spans the border of an answer.
    """
    has_chats = any(record.messages for record in records)
    template = ChatTemplate(tokenizer.template, tokenizer.special, str(tokenizer.path)) if has_chats else None
    for first in range(0, len(records), TOGETHER):
        some = records[first : first + TOGETHER]
        rendered = [_rendered(record, template) for record in some]
        encoded = tokenizer.encode_with_offsets([text for text, _ in rendered])
        for record, (text, parts), (ids, offsets) in zip(some, rendered, encoded):
            if not ids:
                raise UserError(
                    f"{record.origin}: its text of {len(text)} characters has no tokens, by {tokenizer.path}"
                )
            whole, mask = _Encoded(record.origin, text, ids, offsets), bytearray(len(ids))
            for part in parts:
                start, stop = (whole.tokens_before(border, tokenizer) for border in part)
                mask[start:stop] = b"\1" * (stop - start)
            yield (ids, bytes(mask)) if record.messages else _framed(record, ids, bytes(mask), tokenizer)


def _rendered(record: Record, template: ChatTemplate | None) -> Tuple[str, List[Tuple[int, int]]]:
    if record.messages:
        assert template is not None
        return template.render(record)
    text = record.prompt + record.completion
    return text, [(len(record.prompt), len(text))]


class _Encoded:
    """The text of a conversation with its tokens and their offsets."""

    def __init__(self, origin: str, text: str, ids: List[int], offsets: Sequence[Tuple[int, int]]) -> None:
        self.origin, self.text, self.ids = origin, text, ids
        self._starts, self._ends = [start for start, _ in offsets], [end for _, end in offsets]

    def tokens_before(self, border: int, tokenizer: Tokenizer) -> int:
        """
        The number of tokens up to a border, which have to be those of the text up to there: a model that continues the prompt sees these.

        What follows the border changes only tokens near it, so the last ones are compared; if they differ, all are.
        """
        ids, count = self.ids, bisect_right(self._ends, border)
        begin = max(0, count - 2 * COMPARED)
        if count == len(ids) or self._starts[count] >= border:
            [last] = tokenizer.encode([self.text[self._starts[begin] if begin else 0 : border]])
            compared = COMPARED if begin else max(len(last), count)
            if last[-compared:] == ids[max(0, count - compared) : count]:
                return count
        [prefix] = tokenizer.encode([self.text[:border]])
        if ids[: len(prefix)] == prefix:
            return len(prefix)
        at = next((n for n, pair in enumerate(zip(ids, prefix)) if pair[0] != pair[1]), len(ids))
        raise UserError(
            f"{self.origin}: the tokens of the text up to an answer's border are not the first ones of the whole (token {at + 1} "
            "differs), so one token spans the border: end the prompt, or begin the answer, with a special token or a line break"
        )


def _framed(record: Record, ids: List[int], mask: bytes, tokenizer: Tokenizer) -> Tuple[List[int], bytes]:
    """Plain text begins with the bos token, if the tokenizer writes one, and ends with the eos token, which is trained."""
    end = tokenizer.token("eos_token")
    if end is None:
        raise UserError(
            f"{record.origin}: {tokenizer.path}: no eos_token in tokenizer_config.json, which the end of a completion needs"
        )
    begin = tokenizer.token("bos_token") if tokenizer.starts_with_bos else None
    return [*([] if begin is None else [begin]), *ids, end], b"\0" * (begin is not None) + mask + b"\1"
