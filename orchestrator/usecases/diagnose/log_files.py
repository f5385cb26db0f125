"""Diagnose log files of any launcher."""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.evidence import Evidence, LogSearch
from orchestrator.diagnosis.rank_causes import Diagnosis, rank_causes
from orchestrator.diagnosis.signature import Signature
from orchestrator.diagnosis.user_signatures import SignatureError, read_signatures
from orchestrator.errors import NodesError, UsageError, os_error_text
from orchestrator.node.search import BLOCK_BYTES
from orchestrator.records.home import home
from orchestrator.usecases.reports.diff import Difference

USER_SIGNATURES = "signatures"
"""The file in $ORCH_HOME."""
MAX_SIGNATURES_BYTES = 1 << 20
STDIN = "-"
GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 31  # wbits of zlib
# rank-3.err of orch, node1_rank3.log, 3/stderr.log of torchrun --log-dir
_LOG_SUFFIXES = (".log", ".txt", ".out", ".err", ".gz")
_RANK_IN_NAME = re.compile(
    r"(?:(?:^|/|(?<!local)[_.-])rank[-_.]?(?P<name>\d+)[^/]*|(?:^|/)(?P<folder>\d+)/std(?:err|out)(?:\.log)?)$"
)


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """A diagnosis, and what was read for it."""

    diagnosis: Diagnosis
    files: tuple[str, ...]
    size_bytes: int
    run: str | None = None
    """The id of the run; None for files."""
    state: str = ""
    remarks: tuple[str, ...] = ()
    """Sentences about the nodes: logs that cannot be read, full disks, little memory."""
    positions: tuple[str, ...] = ()
    """The calls in which the ranks of a running run are, equal calls folded; the ranks that others wait for come first."""
    missing: NodesError | None = None
    """The failures of nodes that could not be searched."""
    findings: tuple[str, ...] = ()
    """Failures and warnings of the check before the start about the nodes of the cause."""
    success: str = ""
    """The last run before it that was done with the same inventory; empty if there is none."""
    changes: tuple[Difference, ...] = ()
    """The differences from that run."""

    def to_json(self) -> dict[str, Any]:
        return {
            **self.diagnosis.to_json(),
            "run": self.run,
            "remarks": list(self.remarks),
            "positions": list(self.positions),
            "findings": list(self.findings),
            "success": self.success or None,
            "changes": [change.to_json() for change in self.changes],
            "unreachable": str(self.missing) if self.missing else None,
            "files": list(self.files),
            "bytes": self.size_bytes,
        }


def is_run(words: Sequence[str]) -> bool:
    """True if a run is named, not files: nothing, or one word that is no path and has no ending of a log."""
    if not words:
        return True
    path = Path(words[0])
    is_file = words[0] == STDIN or "/" in words[0] or path.suffix in _LOG_SUFFIXES or path.exists()
    return len(words) == 1 and not is_file


def diagnose_files(words: Sequence[str], signatures_file: Path | None) -> Diagnosed:
    """
    Diagnose logs; a folder stands for all files in it, `-` for standard input.

    Args:
        signatures_file: the user's signatures; by default $ORCH_HOME/signatures, if it exists.

    Raises:
        UsageError: a file cannot be read, standard input is given twice, or the signatures are wrong.
    """
    if words.count(STDIN) > 1:
        raise UsageError("standard input (-) is given twice", hint="it can be read once: give - once")
    signatures = CATALOGUE | user_signatures(signatures_file)
    files = [file for word in words for file in _files(word)]
    search, evidence, size_bytes = LogSearch(signatures), Evidence(), 0
    for file in files:
        blocks = _Blocks(file)
        found = _RANK_IN_NAME.search(file)
        rank = None if found is None else int(found["name"] or found["folder"])
        evidence += search.evidence(blocks, file, named_rank=rank)
        size_bytes += blocks.size_bytes
    return Diagnosed(rank_causes(evidence), tuple(files), size_bytes)


def user_signatures(file: Path | None) -> dict[str, Signature]:
    """The user's signatures by id; UsageError if the file cannot be read, or is wrong."""
    path = home(os.environ) / USER_SIGNATURES if file is None else file
    if file is None and not path.exists():
        return {}
    try:
        with path.open("rb") as opened:
            text = opened.read(MAX_SIGNATURES_BYTES).decode()
    except (OSError, UnicodeDecodeError) as exc:
        reason = os_error_text(exc) if isinstance(exc, OSError) else f"{path}: is not UTF-8"
        raise UsageError(reason, hint="give a file of signatures that you can read") from exc
    try:
        return read_signatures(text, str(path), CATALOGUE)
    except SignatureError as exc:
        raise UsageError(str(exc), hint="docs/diagnose.md shows the format") from exc


def log_lines(file: str) -> list[str]:
    """The lines of a log, also of one that gzip has packed; UsageError if it cannot be read."""
    return b"".join(_Blocks(file)).decode("utf-8", "replace").splitlines()


class _Blocks:
    """The content of a file in blocks."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.size_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            with sys.stdin.buffer if self._file == STDIN else Path(self._file).open("rb") as opened:
                for block in _unpacked(iter(partial(opened.read, BLOCK_BYTES), b"")):
                    self.size_bytes += len(block)
                    yield block
        except OSError as exc:
            raise UsageError(f"{self._file}: {exc.strerror or exc}", hint="give log files that you can read") from exc
        except zlib.error as exc:
            raise UsageError(f"{self._file}: is damaged: gzip cannot unpack it", hint="give it unpacked") from exc


def _unpacked(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of a file that gzip has packed, as far as it was written; that of any other file."""
    first = next(blocks, b"")
    if not first.startswith(GZIP_MAGIC):
        yield from chain([first], blocks)
        return
    member = zlib.decompressobj(_GZIP)
    for block in chain([first], blocks):
        packed = block
        while packed:
            yield member.decompress(packed, BLOCK_BYTES)
            packed = member.unconsumed_tail
            if member.eof:
                packed, member = member.unused_data, zlib.decompressobj(_GZIP)
    yield member.flush()


def _files(word: str) -> Iterator[str]:
    if word == STDIN or not Path(word).is_dir():
        yield word
        return
    has_files = False
    for folder, folders, names in os.walk(word, onerror=_refuse):
        folders.sort()
        for name in sorted(names):
            if Path(folder, name).is_file():
                has_files = True
                yield str(Path(folder, name))
    if not has_files:
        raise UsageError(f"{word}: the folder has no files", hint="give the folder in which the logs are")


def _refuse(error: OSError) -> None:
    raise UsageError(f"{error.filename}: {error.strerror}", hint="give log files that you can read") from error
