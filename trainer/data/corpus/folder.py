"""The folder of token files: built under another name, continued after any end, and renamed when it is whole. No torch here."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, List

from trainer.data.json_lines import parse_line
from trainer.errors import UserError
from trainer.io import replace_text

MANIFEST = ".tokens.json"
RESULTS = ".parts"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # some network file systems


class TokenFolder:
    """
    The folder `output`, which is OUTPUT.partial until all parts are in it.

    A part is whole if its result is there, which is written after its token file. `plan` has everything that decides the tokens.
    """

    def __init__(self, output: Path, plan: Dict[str, Any], parts: int) -> None:
        self.output, self.plan, self.parts = output, plan, parts
        self.partial = output.with_name(f"{output.name}.partial")
        self.results = self.partial / RESULTS

    def is_done(self) -> bool:
        """The folder is there, made of the same texts. Raises UserError: something else is there."""
        if not self.output.exists():
            return False
        if _read(self.output / MANIFEST).get("plan") != self.plan:
            raise UserError(
                f"{self.output}: exists, and was not made of these texts by this tokenizer: name another --output"
            )
        return True

    @contextlib.contextmanager
    def open(self) -> Iterator[List[int]]:
        """
        The numbers of the parts that are missing; nobody else writes the folder in this block.
        Raises UserError: another process writes it, or it holds parts of something else.
        """
        self.results.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.results / "lock").open("a") as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with this process, whatever its children do
            except OSError as exc:
                if exc.errno not in NO_LOCKS:
                    raise UserError(f"{self.partial}: another process writes it") from exc
            path = self.results / "plan.json"
            if not path.exists():
                replace_text(path, json.dumps(self.plan))
            elif _read(path) != self.plan:
                raise UserError(
                    f"{self.partial}: has parts of other texts or of another tokenizer, or a text has changed since: repeat the earlier "
                    "command, or remove the folder"
                )
            for path in self.results.glob("*.tmp-*"):
                path.unlink()
            numbers = range(self.parts)
            yield [number for number in numbers if not (self.result(number).is_file() and self.shard(number).is_file())]

    def shard(self, number: int) -> Path:
        return self.partial / f"{number:06}.npy"

    def result(self, number: int) -> Path:
        return self.results / f"{number:06}.json"

    def temporary(self, number: int) -> Path:
        return self.results / f"{number:06}.tmp-{os.getpid()}"

    def finish(self, kind: str) -> Dict[str, Any]:
        """Give the folder its name; returns its manifest."""
        results = [_read(self.result(number)) for number in range(self.parts)]
        fingerprint = hashlib.sha256("".join(result["contents"] for result in results).encode()).hexdigest()
        sums = {key: sum(result[key] for result in results) for key in ("tokens", "documents")}
        shards = [{key: result[key] for key in ("tokens", "sha256")} for result in results]
        manifest = {"kind": kind, **sums, "contents": fingerprint, "shards": shards, "plan": self.plan}
        replace_text(self.partial / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        self.partial.rename(self.output)
        shutil.rmtree(str(self.output / RESULTS), ignore_errors=True)
        return manifest


def _read(path: Path) -> Dict[str, Any]:
    """The mapping in a file; empty if it is not there or damaged."""
    try:
        found = parse_line(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
