"""Find the checkpoint to resume from, on rank 0; unusable ones are moved to quarantine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List

from trainer.checkpoint.format import files
from trainer.checkpoint.format.files import Checkpoint, DamagedError
from trainer.checkpoint.load.compatibility import check_compatible
from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.errors import UserError
from trainer.parallel.base import Strategy
from trainer.runtime.group import Group
from trainer.runtime.rank import Rank


def out_folder(rank: Rank, config: TrainConfig) -> Path:
    """The folder of the run's checkpoints, absolute."""
    default = rank.run_dir / "checkpoints" if rank.run_dir else Path("out")
    return (Path(config.out).expanduser() if config.out else default).absolute()


def saved_settings(group: Group, config: TrainConfig) -> Dict[str, Any] | None:
    """
    The settings of the newest checkpoint that Finder.find() may select, unverified; a collective.

    None if there is none. Otherwise find() returns a checkpoint, or raises UserError.
    """
    found: Dict[str, Any] | None = None
    if group.rank.is_main:
        present = files.newest_first(out_folder(group.rank, config))
        if present and (config.resume == "auto" or group.rank.is_retry):
            candidates = present
        elif config.resume in ("auto", "none"):
            candidates = []
        else:
            path = Path(config.resume).expanduser()
            candidates = files.newest_first(path) or [path]
        found = {} if candidates else None
        for candidate in candidates:
            try:
                found = files.read_manifest(candidate, None)["config"]
                break
            except (DamagedError, OSError):
                continue
    settings: Dict[str, Any] | None = json.loads(group.broadcast_bytes(json.dumps(found).encode()))
    return settings


@dataclass(frozen=True)
class Finder:
    """
    Looks in `out`, the checkpoint folder of one run, and at the path in resume=.

    verified: returns the checkpoint in a folder after checking every byte; raises DamagedError, or UserError (verifier.py).
    """

    out: Path
    config: TrainConfig
    rank: Rank
    data_digest: str | None
    verified: Callable[[Path], Checkpoint]
    base_digest: str = ""

    def find(self, strategy: Strategy) -> Checkpoint | None:
        """The verified checkpoint of this model and data to resume from; None for a fresh start. Raises UserError."""
        resume, present = self.config.resume, files.newest_first(self.out)
        if self.rank.is_retry and present:
            resume = "auto"  # a retry prefers this run's own checkpoints over the one its first attempt started from
        found = self._newest_of_this_run(present) if resume == "auto" else None
        if resume not in ("auto", "none"):
            found = self._named(Path(resume).expanduser())
        if present and (found is None or found.path.parent.resolve() != self.out.resolve()):
            raise UserError(
                f"resume={resume}, but {self.out} holds {present[0].name} of an earlier training; "
                "choose another out=, or resume=auto to continue it"
            )
        return None if found is None else self._accepted(found, strategy)

    def find_newer(self, strategy: Strategy, step: int) -> Checkpoint | None:
        """The newest verified checkpoint of this run that is later than `step`, as find() returns it; None if there is none."""
        newer = [path for path in files.newest_first(self.out) if (files.step_of(path) or 0) > step]
        found = self._newest_verified(newer)
        return None if found is None else self._accepted(found, strategy)

    def _accepted(self, found: Checkpoint, strategy: Strategy) -> Checkpoint:
        """The checkpoint, after a check that it is of this model and data; later ones go to quarantine if a training continues from it."""
        check_compatible(
            found.manifest, self.config, strategy,
            world_size=self.rank.world_size, data_digest=self.data_digest, base_digest=self.base_digest,
        )  # fmt: skip
        if not self.config.evaluate_only:
            self._quarantine_later(found)
        log_line(f"resuming from {found.path}, step {found.manifest['step']}")
        return found

    def find_older(self, last: int | None) -> Checkpoint | None:
        """The newest verified checkpoint of this run; if that is step `last`, the one before it, if any."""
        present = files.newest_first(self.out)
        has_failed = bool(present) and files.step_of(present[0]) == last
        found = self._newest_verified((present[1:] or present) if has_failed else present)
        if found is not None:
            self._quarantine_later(found)
        return found

    def _quarantine_later(self, found: Checkpoint) -> None:
        for later in files.newest_first(self.out):
            if (files.step_of(later) or 0) > found.manifest["step"]:
                log_line(f"moved {later.name} to {files.quarantine(self.out, later)}: later than {found.path}")

    def _newest_verified(self, present: List[Path]) -> Checkpoint | None:
        for path in present:
            try:
                return self.verified(path)
            except DamagedError as exc:
                log_line(f"damaged checkpoint {path.name} ({exc}), moved to {files.quarantine(self.out, path)}")
        return None

    def _newest_of_this_run(self, present: List[Path]) -> Checkpoint | None:
        found = self._newest_verified(present)
        if found is None and files.quarantined(self.out):
            raise UserError(
                f"resume=auto: nothing loadable in {self.out}, {files.quarantined(self.out)} set aside in its quarantine "
                "folder; resume=none starts again from step 0"
            )
        return found

    def _named(self, path: Path) -> Checkpoint:
        """resume=PATH: one step folder, or the newest verified one in a folder of them; nothing is moved there."""
        candidates = files.newest_first(path) or [path]
        problems = []
        for candidate in candidates:
            try:
                return self.verified(candidate)
            except DamagedError as exc:
                problems.append(f"{candidate.name}: {exc}")
        raise UserError(f"resume={path}: no checkpoint could be loaded: {'; '.join(problems)}")
