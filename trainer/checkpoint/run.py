"""Saving and resuming as one act of all ranks: rank 0 alone touches the disk, the others send and get bytes."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, List, Mapping

import torch

from trainer.checkpoint import files
from trainer.checkpoint.files import Checkpoint, DamagedError
from trainer.checkpoint.fit import BINDING, differences
from trainer.checkpoint.random_state import random_state, restore_random_state
from trainer.checkpoint.room import room_needed
from trainer.checkpoint.tensors import copied, load_state, on_cpu
from trainer.config import TrainConfig
from trainer.distributed import Group
from trainer.errors import StorageError, StorageUserError, UserError
from trainer.place import say
from trainer.strategies.base import Strategy


@dataclass(frozen=True)
class TrainState:
    """
    How far the training is; losses are means over ranks, mean_loss one over the steps since the checkpoint before, too.

    eval_loss: of an evaluation at this step, where there are some every so many steps.
    position: how many samples of all ranks came before it, those included that were left out when the training went back.
    """

    step: int = 0
    tokens: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    mean_loss: float | None = None
    position: int = 0
    eval_loss: float | None = None


@dataclass(frozen=True)
class Snapshot:
    """What is to be written, in memory that nobody changes while that happens."""

    step: int
    about: Mapping[str, Any]
    writers: Mapping[str, Callable[[BinaryIO], object]]
    tensors: Any


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoint folder of one run."""

    group: Group
    config: TrainConfig
    out: Path
    data_digest: str
    code: str | None = None

    def prepare(self) -> None:
        """
        Make the folder, and clear what a killed writer left.

        Raises:
            UserError: on all ranks alike; it cannot be written.
        """
        problem = ""
        if self.group.place.is_main:
            try:
                self.out.mkdir(mode=0o700, parents=True, exist_ok=True)
                problem = files.distrust(self.out.stat())
                if problem:
                    raise UserError(f"out={self.out}: {problem}; checkpoints there could be anybody's")
                if not os.access(str(self.out), os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                for name in files.remove_stale(self.out):
                    say(f"removed {name}, left by a save that did not finish")
            except OSError as exc:
                problem = f"out={self.out}: cannot be written: {exc.strerror}"
            except UserError as exc:
                problem = str(exc)
        self.group.agree(problem, kind=StorageUserError)

    def check_space(self, size: int, step: int) -> None:
        """
        See that the disk has room for what will be saved after `step`, at about `size` bytes each.

        Raises:
            UserError: on all ranks alike; it has not.
        """
        problem = ""
        if self.group.place.is_main:
            count = room_needed(step, self.config, files.newest_first(self.out))
            free = shutil.disk_usage(str(self.out)).free
            if free < count * size:
                problem = (
                    f"out={self.out}: {free / 1e9:.2f} GB free, {count * size / 1e9:.2f} GB needed for {count} checkpoints "
                    f"of {size / 1e9:.2f} GB; free some, name another out=, or keep fewer (save_total_limit, keep_best, keep_every)"
                )
        self.group.agree(problem, kind=StorageUserError)

    def save(self, state: TrainState, strategy: Strategy) -> Path:
        """
        Write step_<state.step>, then drop what need not be kept.

        Raises:
            StorageError: on all ranks alike; what was saved before is still there.
        """
        snapshot = self.take(state, strategy, lasting=False)
        self.group.agree(self.write(snapshot) if snapshot else "", kind=StorageError)
        return self.path(state.step)

    def path(self, step: int) -> Path:
        return self.out / f"step_{step}"

    def take(self, state: TrainState, strategy: Strategy, *, lasting: bool, room: Any = None) -> Snapshot | None:  # noqa: ANN401
        """
        What save() writes, on rank 0; all ranks must call.

        Args:
            state: goes into the manifest.
            strategy: gives the rest.
            lasting: training may go on before it is written.
            room: tensors of a snapshot of before, which has been written, to be used again.
        """
        randomness = self.group.gather_bytes(random_state(self.group.device))
        whole = strategy.state()
        if not self.group.place.is_main:
            return None
        tensors = copied(whole, room) if lasting and strategy.lends_state else on_cpu(whole)
        writers: Dict[str, Callable[[BinaryIO], object]] = {
            "state.pt": lambda file: torch.save(tensors, file),
            "rng.json": lambda file: file.write(b"[" + b",\n".join(randomness) + b"]"),
        }
        return Snapshot(state.step, self._about(state), writers, tensors)

    def write(self, snapshot: Snapshot) -> str:
        """Rank 0: what went wrong, or ""."""
        try:
            files.write(self.out, snapshot.step, snapshot.about, snapshot.writers)
            config = self.config
            files.retain(self.out, config.save_total_limit, config.keep_best, every=config.keep_every)
        except (OSError, RuntimeError) as exc:  # torch.save turns a full disk into RuntimeError
            return f"cannot save {self.path(snapshot.step)}: {exc}"
        return ""

    def resume(self, strategy: Strategy) -> TrainState:
        """
        Load what `resume` asks for into strategy and the random generators; step 0 when there is nothing to.

        Raises:
            UserError: on all ranks alike; nothing loadable where something was asked for, or it belongs to another
                world size or model.
        """
        return self._load(strategy, lambda: self._find(reshards=strategy.reshards)) or TrainState()

    def go_back(self, strategy: Strategy, last: int | None) -> TrainState | None:
        """
        Load the newest verified checkpoint of this training, in the midst of it; None when nothing was saved yet.

        Later ones go to quarantine. `last` is the step to which the training went back the time before: where nothing was
        saved since, an older checkpoint is taken, if there is one.
        """
        return self._load(strategy, lambda: self._find_older(last))

    def _load(self, strategy: Strategy, find: Callable[[], Checkpoint | None]) -> TrainState | None:
        """What rank 0 finds, for all ranks; UserError on all of them where `find` raises it, or it cannot be loaded."""
        found: Checkpoint | None = None
        header: Dict[str, Any] = {"problem": "", "about": None}
        if self.group.place.is_main:
            try:
                found = find()
                header["about"] = found.about if found else None
            except (UserError, OSError) as exc:
                header["problem"] = str(exc)
        header = json.loads(self.group.broadcast_bytes(json.dumps(header).encode()))
        if header["problem"]:
            raise UserError(header["problem"])
        about = header["about"]
        if about is None:
            return None
        parts = found.files if found else {}
        whole = io.BytesIO(self.group.broadcast_bytes(parts.get("state.pt", b"")))
        strategy.load(load_state(whole, f"step_{about['step']}"))
        randomness = json.loads(self.group.broadcast_bytes(parts.get("rng.json", b"")))
        if self.group.place.rank < len(randomness):  # a rank that was not there before starts from the seed
            restore_random_state(randomness[self.group.place.rank], self.group.device)
        position = about["position"]
        return TrainState(about["step"], about["tokens"], about["first_loss"], about["last_loss"], position=position)

    def _find(self, *, reshards: bool) -> Checkpoint | None:
        """Rank 0: the verified checkpoint to go on from, checked against this run; None for a fresh start."""
        asked, present = self.config.resume, files.newest_first(self.out)
        if self.group.place.is_retry and present:
            asked = "auto"  # this run's own later checkpoints win over where its first attempt started
        if asked == "none":
            if present:
                raise UserError(
                    f"resume=none, but {self.out} holds {present[0].name} of an earlier training; "
                    "choose another out=, or resume=auto to go on from it"
                )
            return None
        found = self._newest_here(present) if asked == "auto" else _named(Path(asked).expanduser())
        if found is None:
            return None
        self._check_fits(found.about, reshards=reshards)
        self._set_aside_later(found)
        say(f"resuming from {found.path}, step {found.about['step']}")
        return found

    def _find_older(self, last: int | None) -> Checkpoint | None:
        """Rank 0: as go_back says."""
        present = files.newest_first(self.out)
        stuck = bool(present) and files.step_of(present[0]) == last
        found = self._newest_whole((present[1:] or present) if stuck else present)
        if found is not None:
            self._set_aside_later(found)
        return found

    def _set_aside_later(self, found: Checkpoint) -> None:
        for later in files.newest_first(self.out):
            if (files.step_of(later) or 0) > found.about["step"]:
                say(f"moved {later.name} to {files.quarantine(self.out, later)}: later than {found.path}")

    def _newest_whole(self, present: List[Path]) -> Checkpoint | None:
        for path in present:
            try:
                return files.read(path)
            except DamagedError as exc:
                say(f"damaged checkpoint {path.name} ({exc}), moved to {files.quarantine(self.out, path)}")
        return None

    def _newest_here(self, present: List[Path]) -> Checkpoint | None:
        found = self._newest_whole(present)
        if found is not None:
            return found
        damaged = files.quarantined(self.out)
        if damaged:
            raise UserError(
                f"resume=auto: nothing loadable in {self.out}, {damaged} set aside in its quarantine folder; "
                "resume=none starts again from step 0"
            )
        return None

    def _check_fits(self, about: Mapping[str, Any], *, reshards: bool) -> None:
        world_size = self.group.place.world_size
        if about["world_size"] != world_size and reshards:
            say(
                f"WARNING: the checkpoint was written by {about['world_size']} ranks and is split over {world_size} now: "
                "other batches, so other losses than without the change"
            )
        elif about["world_size"] != world_size:
            raise UserError(
                f"the checkpoint at step {about['step']} was written by {about['world_size']} ranks, this run has "
                f"{world_size}: start with {about['world_size']} ranks, or resume=none and another out="
            )
        changed = differences(about["config"], self.config.as_dict())
        binding = [text for key, text in changed.items() if key.startswith(BINDING)]
        if binding:
            raise UserError(f"the checkpoint at step {about['step']} does not fit: {', '.join(binding)} (saved -> now)")
        if changed:
            say(f"WARNING: resuming with other settings (saved -> now): {', '.join(changed.values())}")
        if about["data_sha256"] != self.data_digest:
            raise UserError(
                f"the checkpoint at step {about['step']} was trained on other data, in which its place means nothing: give the "
                "data of before, or resume=none and another out= (python -m trainer.checkpoint export keeps the weights)"
            )

    def _about(self, state: TrainState) -> Dict[str, Any]:
        return {
            "world_size": self.group.place.world_size,
            **asdict(state),
            "code": self.code,
            "run": self.group.place.run_dir.name if self.group.place.run_dir else None,
            "seed": self.config.seed,
            "data_sha256": self.data_digest,
            "torch": torch.__version__,
            "config": self.config.as_dict(),
        }


def _named(path: Path) -> Checkpoint:
    """resume=PATH: one step folder, or the newest whole one in a folder of them; nothing is moved there."""
    candidates = files.newest_first(path) or [path]
    problems = []
    for candidate in candidates:
        try:
            return files.read(candidate)
        except DamagedError as exc:
            problems.append(f"{candidate.name}: {exc}")
    raise UserError(f"resume={path}: no checkpoint could be loaded: {'; '.join(problems)}")
