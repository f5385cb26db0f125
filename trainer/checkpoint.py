"""Saving and resuming as one act of all ranks: rank 0 alone touches the disk, the others send and get bytes."""

from __future__ import annotations

import errno
import inspect
import io
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping

import torch

from trainer import checkpoint_files
from trainer.checkpoint_files import Checkpoint, DamagedError
from trainer.config import TrainConfig
from trainer.distributed import Group
from trainer.errors import TrainerError, UserError
from trainer.place import say
from trainer.strategies.base import Strategy

# What may change between two parts of one training without changing its numbers.
FREE_KEYS = frozenset(
    [
        *("out", "resume", "save_steps", "save_total_limit", "device", "ddp_timeout", "log_steps"),
        *("report", "peak_tflops"),
        *("activation_checkpointing", "find_unused_parameters", "gradient_as_bucket_view"),
    ]
)


@dataclass(frozen=True)
class TrainState:
    """How far the training is; losses are means over ranks."""

    step: int = 0
    tokens: int = 0
    first_loss: float | None = None
    last_loss: float | None = None


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoint folder of one run."""

    group: Group
    config: TrainConfig
    out: Path
    data_digest: str

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
                if not os.access(str(self.out), os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                for name in checkpoint_files.remove_stale(self.out):
                    say(f"removed {name}, left by a save that did not finish")
            except OSError as exc:
                problem = f"out={self.out}: cannot be written: {exc.strerror}"
        self.group.agree(problem)

    def save(self, state: TrainState, strategy: Strategy) -> Path:
        """
        Write step_<state.step>, then drop the oldest beyond save_total_limit.

        Raises:
            TrainerError: on all ranks alike; what was saved before is still there.
        """
        randomness = self.group.gather_bytes(_random_state(self.group.device))
        path, problem = self.out / f"step_{state.step}", ""
        whole = strategy.state()
        if self.group.place.is_main:
            tensors = _on_cpu(whole)
            try:
                checkpoint_files.write(
                    self.out,
                    state.step,
                    self._about(state),
                    {
                        "state.pt": lambda file: torch.save(tensors, file),
                        "rng.json": lambda file: file.write(b"[" + b",\n".join(randomness) + b"]"),
                    },
                )
                checkpoint_files.retain(self.out, self.config.save_total_limit)
            except (OSError, RuntimeError) as exc:  # torch.save turns a full disk into RuntimeError
                problem = f"cannot save {path}: {exc}"
        self.group.agree(problem, kind=TrainerError)
        return path

    def resume(self, strategy: Strategy) -> TrainState:
        """
        Load what `resume` asks for into strategy and the random generators; step 0 when there is nothing to.

        Raises:
            UserError: on all ranks alike; nothing loadable where something was asked for, or it belongs to another
                world size or model.
        """
        found: Checkpoint | None = None
        header: Dict[str, Any] = {"problem": "", "about": None}
        if self.group.place.is_main:
            try:
                found = self._find(reshards=strategy.reshards)
                header["about"] = found.about if found else None
            except (UserError, OSError) as exc:
                header["problem"] = str(exc)
        header = json.loads(self.group.broadcast_bytes(json.dumps(header).encode()))
        if header["problem"]:
            raise UserError(header["problem"])
        about = header["about"]
        if about is None:
            return TrainState()
        files = found.files if found else {}
        strategy.load(_load(self.group.broadcast_bytes(files.get("state.pt", b""))))
        randomness = json.loads(self.group.broadcast_bytes(files.get("rng.json", b"")))
        if self.group.place.rank < len(randomness):  # a rank that was not there before starts from the seed
            _restore_random_state(randomness[self.group.place.rank], self.group.device)
        return TrainState(about["step"], about["tokens"], about["first_loss"], about["last_loss"])

    def _find(self, *, reshards: bool) -> Checkpoint | None:
        """Rank 0: the verified checkpoint to go on from, checked against this run; None for a fresh start."""
        asked, present = self.config.resume, checkpoint_files.newest_first(self.out)
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
        for later in present:
            if later.exists() and (checkpoint_files.step_of(later) or 0) > found.about["step"]:
                say(f"moved {later.name} to {checkpoint_files.quarantine(self.out, later)}: later than {found.path}")
        say(f"resuming from {found.path}, step {found.about['step']}")
        return found

    def _newest_here(self, present: List[Path]) -> Checkpoint | None:
        for path in present:
            try:
                return checkpoint_files.read(path)
            except DamagedError as exc:
                say(f"damaged checkpoint {path.name} ({exc}), moved to {checkpoint_files.quarantine(self.out, path)}")
        damaged = checkpoint_files.quarantined(self.out)
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
        binding = [text for key, text in changed.items() if key.startswith(("model.", "strategy"))]
        if binding:
            raise UserError(f"the checkpoint at step {about['step']} does not fit: {', '.join(binding)} (saved -> now)")
        if changed:
            say(f"WARNING: resuming with other settings (saved -> now): {', '.join(changed.values())}")
        if about["data_sha256"] != self.data_digest:
            say("WARNING: the text in data.paths is not the text this checkpoint was trained on")

    def _about(self, state: TrainState) -> Dict[str, Any]:
        return {
            "world_size": self.group.place.world_size,
            "tokens": state.tokens,
            "first_loss": state.first_loss,
            "last_loss": state.last_loss,
            "seed": self.config.seed,
            "data_sha256": self.data_digest,
            "torch": torch.__version__,
            "config": self.config.as_dict(),
        }


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Dotted key -> "key: saved -> now", for keys that bear on the numbers."""
    before, after = _flat(saved), _flat(now)
    keys = sorted((set(before) | set(after)) - FREE_KEYS)
    return {
        key: f"{key}: {json.dumps(before.get(key))} -> {json.dumps(after.get(key))}"
        for key in keys
        if before.get(key) != after.get(key)
    }


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    flat: Dict[str, Any] = {}
    for key, value in tree.items():
        inside = {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
        flat.update(inside)
    return flat


def _named(path: Path) -> Checkpoint:
    """resume=PATH: one step folder, or the newest whole one in a folder of them; nothing is moved there."""
    candidates = checkpoint_files.newest_first(path) or [path]
    problems = []
    for candidate in candidates:
        try:
            return checkpoint_files.read(candidate)
        except DamagedError as exc:
            problems.append(f"{candidate.name}: {exc}")
    raise UserError(f"resume={path}: no checkpoint could be loaded: {'; '.join(problems)}")


def _load(data: bytes) -> Any:  # noqa: ANN401 -- what was saved
    """Tensors onto the CPU. torch 1.10 has no weights_only; what it reads was hashed when this trainer wrote it."""
    safely = {"weights_only": True} if "weights_only" in inspect.signature(torch.load).parameters else {}
    return torch.load(io.BytesIO(data), map_location="cpu", **safely)


def _on_cpu(tree: Any) -> Any:  # noqa: ANN401 -- nested state of any shape
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu()
    if isinstance(tree, dict):
        return {key: _on_cpu(value) for key, value in tree.items()}
    return [_on_cpu(value) for value in tree] if isinstance(tree, list) else tree


def _random_state(device: torch.device) -> bytes:
    """This rank's generators as JSON: Python's, torch's and, on cuda, the device's."""
    state = {"python": random.getstate(), "torch": _hex(torch.get_rng_state())}
    if device.type == "cuda":
        state["cuda"] = _hex(torch.cuda.get_rng_state(device))
    return json.dumps(state).encode()


def _restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(_from_hex(state["torch"]))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_from_hex(state["cuda"]), device)


def _hex(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _from_hex(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
