"""
Verification of a sharded checkpoint by all ranks: each byte is read and hashed by one of them.

Rank 0 looks for the checkpoint to load, and asks the others to verify their files of each candidate. No torch here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict

from trainer.checkpoint.format import files
from trainer.checkpoint.format.files import Checkpoint, DamagedError
from trainer.checkpoint.format.shards import check_tensors
from trainer.errors import UserError
from trainer.runtime.group import Group
from trainer.text import by_rank


@dataclass(frozen=True)
class Verifier:
    """Rank 0 calls verified() for each candidate, then finish(); meanwhile the other ranks are in serve()."""

    group: Group

    def verified(self, path: Path) -> Checkpoint:
        """
        The checkpoint in the folder `path`, every byte of it checked.

        Raises:
            DamagedError: it is damaged.
            UserError: it is sharded, and other ranks do not see it.
        """
        manifest = files.read_manifest(path, files.step_of(path))
        if not files.is_sharded(manifest) or self.group.rank.world_size == 1:
            return files.verified(path)
        check_tensors(manifest)
        # The others must not follow a symbolic link that read_manifest() refuses.
        request = {"path": str(path.absolute()), "seal": manifest["seal"]}
        self.group.broadcast_bytes(json.dumps({"verify": request}).encode())
        answers = self.group.gather(self._check_share(request))
        for kind, error in (("unseen", UserError), ("damaged", DamagedError)):
            problems = {rank: answer[kind] for rank, answer in enumerate(answers) if answer[kind]}
            if problems:
                raise error(by_rank(problems))
        return Checkpoint(path, manifest)

    def finish(self, result: Dict[str, Any]) -> Dict[str, Any]:
        """Return rank 0's result, JSON values, on every rank; the others answer its requests until it comes."""
        if self.group.rank.is_main:
            self.group.broadcast_bytes(json.dumps(result).encode())
            return result
        while True:
            message: Dict[str, Any] = json.loads(self.group.broadcast_bytes(b""))
            if "verify" not in message:
                return message
            self.group.gather(self._check_share(message["verify"]))

    def _check_share(self, request: Dict[str, str]) -> Dict[str, str]:
        """Verify every N-th file, N ranks; the problem is under "unseen" if this rank does not see the checkpoint that rank 0 sees."""
        path, rank = Path(request["path"]), self.group.rank
        try:
            manifest = files.read_manifest(path, files.step_of(path))
            if manifest["seal"] != request["seal"]:
                raise DamagedError(f"{files.MANIFEST}: is of another checkpoint")
        except DamagedError as exc:
            unseen = (
                f"{path}: {exc}, but rank 0 has read it: a sharded checkpoint must be in a folder that all ranks share"
            )
            return {"unseen": unseen, "damaged": ""}
        names = sorted(manifest["files"])[rank.global_rank :: rank.world_size]
        try:
            files.verify_files(path, {name: manifest["files"][name] for name in names})
        except DamagedError as exc:
            return {"unseen": "", "damaged": str(exc)}
        return {"unseen": "", "damaged": ""}
