"""A trainer of one process up to the point where checkpoints are used, and ways to damage a checkpoint."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint.format import files
from trainer.checkpoint.format.files import MANIFEST_BYTES, Checkpoint
from trainer.checkpoint.load.sharded import read_state
from trainer.checkpoint.load.state_pt import numbered_names
from trainer.checkpoint.manager import Checkpoints, TrainState
from trainer.config.config import ModelConfig, TrainConfig
from trainer.parallel.base import Strategy
from trainer.parallel.ddp import Ddp
from trainer.runtime.init import initialise
from trainer.tasks.gpt import Gpt

TINY = ModelConfig(layers=1, width=8, heads=1, context=4)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def _empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


SHARD, STATE_PT = "r00000.safetensors", "state.pt"


def state_of(folder: Path) -> Path:
    """The file with the state of a checkpoint that one rank has written, in the present form or the earlier one."""
    return folder / (STATE_PT if (folder / STATE_PT).exists() else SHARD)


def saved_state(folder: Path) -> dict[str, Any]:
    """The whole state of a checkpoint, by names."""
    return read_state(Checkpoint(folder, files.read_manifest(folder, None)), keep_scale=True, keep_ema=True)


def to_state_pt(folder: Path, *without: str, sizes: Sequence[str] = (), state: object = None) -> None:
    """
    Give a checkpoint the form of earlier versions, which kept the state in state.pt.

    Args:
        folder: step_N.
        without: entries of the manifest to leave out.
        sizes: the parameters in the order of the model; with them, Adam's state is numbered as under DDP, else named as under FSDP2.
        state: the content of state.pt, if another one.
    """
    manifest, saved = files.read_manifest(folder, None), saved_state(folder)
    model = {name: value.clone() for name, value in saved["model"].items()}
    order = numbered_names({name: model[name].dim() for name in sizes})
    moments = {
        order.index(name) if order else name: {kind: value.clone() for kind, value in values.items()}
        for name, values in saved["moments"].items()
    }
    (folder / SHARD).unlink()
    content = state or {"model": model, "optimizer": {"state": moments}}
    file = io.BytesIO()
    torch.save(content, file)
    written = {STATE_PT: files.write_hashed(folder / STATE_PT, file.getvalue())}
    written["rng.json"] = manifest["files"]["rng.json"]
    newer = {"files", "seal", "version", "tensors", "optimizer_steps", *without}
    kept = {key: value for key, value in manifest.items() if key not in newer}
    (folder / "manifest.json").unlink()
    files.write_manifest(folder, {**kept, "version": files.STATE_PT_VERSION, "files": written})


def _replace_by_pipe(folder: Path) -> None:
    state = state_of(folder)
    state.unlink()
    os.mkfifo(state, 0o600)


def _replace_by_link(folder: Path) -> None:
    state = state_of(folder)
    state.rename(folder / "elsewhere")
    state.symlink_to("elsewhere")


def _link_folder(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped bits in the state": lambda path: flip(state_of(path)),
    "flipped bits in rng.json": lambda path: flip(path / "rng.json"),
    "flipped bits in manifest.json": lambda path: flip(path / "manifest.json"),
    "changed number in manifest.json": lambda path: _edit(path / "manifest.json", '"tokens": 4', '"tokens": 5'),
    "truncated state": lambda path: state_of(path).write_bytes(state_of(path).read_bytes()[:-1]),
    "empty state": lambda path: state_of(path).write_bytes(b""),
    "empty manifest.json": lambda path: (path / "manifest.json").write_bytes(b""),
    "missing state": lambda path: state_of(path).unlink(),
    "missing manifest.json": lambda path: (path / "manifest.json").unlink(),
    "no file": _empty,
    "garbled manifest.json": lambda path: (path / "manifest.json").write_bytes(b"\xff\x00{" * 99),
    "deep manifest.json": lambda path: (path / "manifest.json").write_text("[" * 100_000),
    "huge manifest.json": lambda path: os.truncate(path / "manifest.json", MANIFEST_BYTES + 1),
    "pipe in place of the state": _replace_by_pipe,
    "link in place of the state": _replace_by_link,
    "link in place of the folder": _link_folder,
    "folder that others may write": lambda path: path.chmod(0o770),
    "state that others may write": lambda path: state_of(path).chmod(0o602),
    **({"foreign owner of the folder": lambda path: os.chown(path, 4711, -1)} if os.geteuid() == 0 else {}),
    **({"foreign owner of the state": lambda path: os.chown(state_of(path), 4711, -1)} if os.geteuid() == 0 else {}),
}


def _flip_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(bytes(data))


def _swap_shards(folder: Path) -> None:
    """Swap the shards of the first and the last rank; of one rank, take that of the step before."""
    last = _last_shard(folder)
    if last.name == SHARD:
        shutil.copyfile(folder.with_name("step_1") / SHARD, last)
        return
    (folder / SHARD).rename(folder / "first")
    last.rename(folder / SHARD)
    (folder / "first").rename(last)


def _link_shard(folder: Path) -> None:
    (folder / SHARD).rename(folder / "elsewhere")
    (folder / SHARD).symlink_to("elsewhere")


def _last_shard(folder: Path) -> Path:
    return max(folder.glob("r*.safetensors"))


SHARD_DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped bits in a shard": lambda path: flip(_last_shard(path)),
    "flipped bits in a shard's header": lambda path: _flip_header(path / SHARD),
    "truncated shard": lambda path: _last_shard(path).write_bytes(_last_shard(path).read_bytes()[:-1]),
    "lengthened shard": lambda path: (path / SHARD).write_bytes((path / SHARD).read_bytes() + b"!"),
    "empty shard": lambda path: (path / SHARD).write_bytes(b""),
    "missing shard": lambda path: _last_shard(path).unlink(),
    "swapped shards": _swap_shards,
    "shard of another save": lambda path: shutil.copyfile(path.with_name("step_1") / SHARD, path / SHARD),
    "manifest of another save": lambda path: shutil.copyfile(
        path.with_name("step_1") / "manifest.json", path / "manifest.json"
    ),
    "random states of another save": lambda path: (path / "rng.json").write_bytes(b"[]"),
    "link in place of a shard": _link_shard,
    "shard that others may write": lambda path: (path / SHARD).chmod(0o602),
}


def add_gradient(strategy: Strategy, batch: Any, *, last: bool = True) -> torch.Tensor:  # a task's
    """Run one micro batch as the trainer does; returns its loss."""
    with strategy.micro_batch(last=last):
        loss = strategy.forward(batch)
        strategy.backward(loss)
    return loss.detach()


def update(strategy: Strategy, lr: float, loss: torch.Tensor) -> float:
    """Make the update as after a loss that is finite on all ranks; returns the norm."""
    return float(strategy.update(lr, loss, is_good=torch.ones((), dtype=torch.bool)))


@dataclass
class Session:
    """One start of the trainer on the folder `out`, up to the point where checkpoints are used."""

    checkpoints: Checkpoints
    strategy: Ddp

    @classmethod
    def start(cls, out: Path, **config: object) -> Session:
        """`may_shard` is not a setting."""
        may_shard = bool(config.pop("may_shard", False))
        settings = replace(TrainConfig(model=TINY), **config)  # type: ignore[arg-type]  # a test's own keys
        torch.set_num_threads(1)  # more threads are slower on tensors as small as these
        torch.manual_seed(1)
        group = initialise("cpu", 60.0, {})
        may_shard = may_shard or settings.checkpoint == "sharded"
        checkpoints = Checkpoints(group, settings, out, "text", may_shard=may_shard)
        checkpoints.prepare()
        return cls(checkpoints, Ddp(group, settings, Gpt(settings)))

    def train(self) -> None:
        tokens = torch.zeros(1, 5, dtype=torch.long)
        loss = add_gradient(self.strategy, tokens)
        update(self.strategy, 1e-3, loss)

    def train_and_save(self, *steps: int, mean_loss: float | None = 1.0) -> None:
        for step in steps:
            self.train()
            self.checkpoints.save(TrainState(step, 2 * step, 5.5, 1 / step, mean_loss), self.strategy)

    def resume(self) -> TrainState:
        return self.checkpoints.resume(self.strategy)

    def weights(self) -> list[float]:
        return [float(parameter.detach().double().sum()) for parameter in self.strategy.parameters]
