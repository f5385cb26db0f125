"""
Saving and resuming as collectives: one shard with the whole state, for which only rank 0 uses the disk and exchanges bytes with the
other ranks; or a shard per rank.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, Mapping

import torch

from trainer.checkpoint.format import files, shards
from trainer.checkpoint.format.files import Checkpoint
from trainer.checkpoint.format.random_state import random_state, restore_random_state
from trainer.checkpoint.interop.initial import base_digest
from trainer.checkpoint.load.compatibility import check_parameters
from trainer.checkpoint.load.find import Finder, out_folder
from trainer.checkpoint.load.sharded import load as load_sharded
from trainer.checkpoint.load.sharded import read_state
from trainer.checkpoint.load.state_pt import load_state, named
from trainer.checkpoint.load.verifier import Verifier
from trainer.checkpoint.load.whole import load_whole
from trainer.checkpoint.memory.host_memory import available_memory
from trainer.checkpoint.memory.states import MemoryStates
from trainer.checkpoint.save import sharded
from trainer.checkpoint.save.background import ImmediateWriter, ShardedSave, Writer
from trainer.checkpoint.save.code import code_version
from trainer.checkpoint.save.sharded import whole_state
from trainer.checkpoint.save.shared_memory import SharedMemory
from trainer.checkpoint.save.space import checkpoint_bytes, checkpoints_to_hold
from trainer.checkpoint.save.writer import answer_to
from trainer.config.config import TrainConfig
from trainer.config.defaults import with_shards
from trainer.console import log_line
from trainer.errors import StorageError, StorageUserError, UserError
from trainer.parallel.base import Strategy
from trainer.parallel.parts import first_names
from trainer.runtime.group import Group
from trainer.safetensors import FormatError
from trainer.text import gigabytes

FREE_COPIES = 3  # of a node's shards that must fit into its memory, to keep one there by default


@dataclass(frozen=True)
class TrainState:
    """
    Progress of the training; losses are means over ranks, and mean_loss is over the steps since the previous checkpoint.

    eval_loss: of an evaluation at this step, if eval_steps is set.
    position: number of samples of all ranks before this state, including those skipped by roll_back.
    skipped: number of steps in a row, up to this one, that fp16 skipped on all ranks; up to date when a save is due.
    planned_steps: number of steps for which the learning rate is planned; None at a start.
    best_eval_loss, stale_evaluations: the lowest eval_loss with patience=, and the number of evaluations since then.
    """

    step: int = 0
    tokens: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    mean_loss: float | None = None
    position: int = 0
    eval_loss: float | None = None
    skipped: int = 0
    planned_steps: int | None = None
    best_eval_loss: float | None = None
    stale_evaluations: int = 0

    def after_step(self, *, tokens: int, samples: int, planned_steps: int | None = None) -> TrainState:
        """One more step, with its tokens and samples on all ranks; its loss is not read yet."""
        return replace(
            self,
            step=self.step + 1,
            tokens=self.tokens + tokens,
            mean_loss=None,
            position=self.position + samples,
            eval_loss=None,
            planned_steps=planned_steps,
        )

    def with_loss(self, loss: float, *, skipped: int) -> TrainState:
        """With the loss of a step, read later than the step was made."""
        first_loss = loss if self.first_loss is None else self.first_loss
        return replace(self, first_loss=first_loss, last_loss=loss, skipped=skipped)

    def with_evaluation(self, loss: float) -> TrainState:
        """With one more evaluation; a loss that is not finite is no improvement."""
        if math.isfinite(loss) and (self.best_eval_loss is None or loss < self.best_eval_loss):
            return replace(self, best_eval_loss=loss, stale_evaluations=0)
        return replace(self, stale_evaluations=self.stale_evaluations + 1)


@dataclass(frozen=True)
class Snapshot:
    """
    A whole state as one shard, in memory that stays unchanged until it is written.

    intervals: as in a record (shards.py). rng: the random states of all ranks. problem: why the state could not be copied, or "".
    """

    step: int
    metadata: Mapping[str, Any]
    memory: SharedMemory
    size: int
    intervals: Mapping[str, Any]
    rng: bytes
    problem: str


@dataclass(frozen=True)
class Checkpoints:
    """
    The checkpoint folder of one run.

    data_digest: of the training data; None if they are not read, so that nothing is saved.
    may_shard: all ranks see the folder, and the settings do not demand whole files.
    base_digest: on rank 0, of the frozen weights that checkpoints of adapters do not hold; "" without adapters.
    memory: the states of memory_steps.
    """

    group: Group
    config: TrainConfig
    out: Path
    data_digest: str | None
    code: str | None = None
    may_shard: bool = False
    base_digest: str = ""
    memory: MemoryStates | None = None

    @classmethod
    def open(cls, group: Group, config: TrainConfig, data_digest: str | None) -> Checkpoints:
        """Prepare the folder `out`, by default in the run folder. Raises UserError as prepare() does."""
        code = code_version(Path(__file__).parents[1], Path.cwd()) if group.rank.is_main else None
        checkpoints = cls(group, config, out_folder(group.rank, config), data_digest, code=code)
        checkpoints.prepare()
        memory = MemoryStates.open(group, config, data_digest, os.environ)
        digest = base_digest(group, config)
        return replace(checkpoints, may_shard=checkpoints.find_may_shard(), base_digest=digest, memory=memory)

    def find_may_shard(self) -> bool:
        """
        Return True if checkpoints can be sharded; a collective.
        Raises UserError: on all ranks alike; checkpoint=sharded, but the ranks do not share the folder.
        """
        chosen = self.config.checkpoint
        if chosen == "whole" or (chosen == "auto" and self.group.rank.world_size == 1):
            return False
        problem = sharded.unshared_problem(self.group, self.out)
        if problem and chosen == "sharded":
            raise UserError.agreed(
                f"checkpoint=sharded: {problem}: name an out= on a shared disk, or use checkpoint=whole"
            )
        return not problem

    def writes_shards(self, sizes: Mapping[str, int]) -> bool:
        is_large = checkpoint_bytes(sizes, self.group.rank.world_size, self.config) >= sharded.SHARDED_FROM_BYTES
        return self.may_shard and (is_large or self.config.checkpoint == "sharded")

    def for_model(self, strategy: Strategy) -> Checkpoints:
        """
        Return the checkpoints in the form that this model is saved in, and log it for a large model; a collective.
        Raises UserError: on all ranks alike; checkpoint=sharded, but the model has state that shards do not hold.
        """
        if self.memory is not None:
            try:
                self.group.raise_if_any(sharded.unsupported(strategy.local_state()))
            except UserError as exc:
                raise UserError.agreed(f"memory_steps={self.config.memory_steps}: {exc}") from exc
            self.memory.check_space(strategy.local_state())
        if not self.writes_shards(strategy.sizes):
            return self
        checkpoints, form = self, f"one shard per rank, in {self.out}"
        try:
            self.group.raise_if_any(sharded.unsupported(strategy.local_state()))
        except UserError as exc:
            if self.config.checkpoint == "sharded":
                raise UserError.agreed(f"checkpoint=sharded: {exc}: use checkpoint=whole") from exc
            checkpoints, form = replace(self, may_shard=False), f"whole files: {exc}"
        else:
            rank = self.group.rank
            needed = FREE_COPIES * checkpoint_bytes(strategy.sizes, rank.world_size, self.config) // rank.nodes
            has_memory = all(self.group.gather_bytes(b"yes" if available_memory() >= needed else b""))
            config, defaults = with_shards(self.config, self.group.accelerator.name, has_memory=has_memory)
            checkpoints, form = replace(self, config=config), f"{form}; {defaults}" if defaults else form
        if self.group.rank.is_main:
            log_line(f"checkpoints: {form}")
        return checkpoints

    def prepare(self) -> None:
        """
        Create the folder, and remove the temporary files of a killed writer.
        Raises UserError: on all ranks alike; it cannot be written.
        """
        problem = ""
        if self.group.rank.is_main:
            try:
                self.out.mkdir(mode=0o700, parents=True, exist_ok=True)
                problem = files.trust_problem(self.out.stat())
                if problem:
                    raise UserError(f"out={self.out}: {problem}; checkpoints there could be anybody's")
                if not os.access(str(self.out), os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                holder = files.lock(self.out, self._run_id)
                if holder:
                    raise UserError(f"out={self.out} is in use by {holder}: choose another out=, or stop that training")
                for name in files.remove_stale(self.out):
                    log_line(f"removed {name}, left by a save that did not finish")
            except OSError as exc:
                problem = f"out={self.out}: cannot be written: {exc.strerror}"
            except UserError as exc:
                problem = str(exc)
        self.group.raise_if_any(problem, kind=StorageUserError)

    def check_space(self, sizes: Mapping[str, int], step: int) -> None:
        """
        Check that the disk can hold the checkpoints to be saved after `step`, of a model with parameters of these sizes.
        Raises UserError: on all ranks alike; it cannot.
        """
        problem, size = "", checkpoint_bytes(sizes, self.group.rank.world_size, self.config)
        if self.group.rank.is_main:
            count = checkpoints_to_hold(step, self.config, files.newest_first(self.out))
            free = shutil.disk_usage(str(self.out)).free
            if free < count * size:
                problem = (
                    f"out={self.out}: {gigabytes(free)} free, {gigabytes(count * size)} needed for {count} checkpoints "
                    f"of {gigabytes(size)}; free some, name another out=, or keep fewer (save_total_limit, keep_best, keep_every)"
                )
        self.group.raise_if_any(problem, kind=StorageUserError)

    def save(self, state: TrainState, strategy: Strategy) -> Path:
        """
        Write step_<state.step>, then remove the checkpoints that need not be kept.
        Raises StorageError: on all ranks alike; earlier checkpoints are still there.
        """
        if self.writes_shards(strategy.sizes):
            with contextlib.closing(ImmediateWriter(self.group)) as writer:
                save = self.begin_shards(state, strategy, writer)
                save.complete()
                self.group.raise_if_any(save.problem(), kind=StorageError)
            return self.path(state.step)
        snapshot, problem = self.snapshot(state, strategy), ""
        if snapshot:
            problem = self.write(snapshot)
            snapshot.memory.close()
        self.group.raise_if_any(problem, kind=StorageError)
        return self.path(state.step)

    def begin_shards(self, state: TrainState, strategy: Strategy, writer: Writer | ImmediateWriter) -> ShardedSave:
        """On every rank, as save() does, while training continues."""
        return ShardedSave(
            self.group,
            writer,
            self.out,
            step=state.step,
            state=strategy.local_state(),
            random_state=random_state(self.group.accelerator),
            metadata=self._metadata(state, strategy),
            kept=self._kept,
        )

    @property
    def _run_id(self) -> str | None:
        return self.group.rank.run_dir.name if self.group.rank.run_dir else None

    def path(self, step: int) -> Path:
        return self.out / f"step_{step}"

    def snapshot(self, state: TrainState, strategy: Strategy, memory: SharedMemory | None = None) -> Snapshot | None:
        """Copy a whole state on rank 0, to the `memory` of an earlier, written snapshot if there is one; a collective."""
        accelerator = self.group.accelerator
        random_states = self.group.gather_bytes(random_state(accelerator))
        saved = strategy.state()
        if not self.group.rank.is_main:
            return None
        whole, serialised = whole_state(saved, strategy)
        tensors, intervals = sharded.own_tensors(self.group, whole)
        memory, size, problem = memory or SharedMemory.anonymous(accelerator), 0, ""
        try:
            size = memory.fill(tensors)
            accelerator.synchronize()
        except OSError as exc:
            problem = files.reason(exc)
        further = {**sharded.state_metadata(whole), **({shards.SERIALISED: serialised} if serialised else {})}
        metadata = {**self._metadata(state, strategy), **further}
        rng = b"[" + b",\n".join(random_states) + b"]"
        return Snapshot(state.step, metadata, memory, size, intervals, rng, problem)

    def write(self, snapshot: Snapshot) -> str:
        """On rank 0, as the writer of a shard does; returns the error message, or ""."""
        folder = str(files.temporary_path(self.out, snapshot.step, secrets.token_hex(files.TOKEN_BYTES)))
        answer = {"problem": snapshot.problem}
        if not snapshot.problem:
            request = {"do": "write", "folder": folder, "rank": 0, "size": snapshot.size}
            answer = answer_to(snapshot.memory, request)
        if "problem" not in answer:
            records = [{**answer, "tensors": snapshot.intervals}]
            request = {
                "do": "commit",
                "out": str(self.out),
                "temporary": folder,
                "step": snapshot.step,
                "records": records,
            }
            rest = {"rng": snapshot.rng.decode(), "metadata": snapshot.metadata, "kept": self._kept}
            answer = answer_to(snapshot.memory, {**request, **rest})
        return f"cannot save {self.path(snapshot.step)}: {answer['problem']}" if "problem" in answer else ""

    @property
    def _kept(self) -> Dict[str, Any]:
        """The limits of files.retain()."""
        config = self.config
        return {"limit": config.save_total_limit, "best": config.keep_best, "every": config.keep_every}

    def resume(self, strategy: Strategy) -> TrainState:
        """
        Load the checkpoint that `resume` selects into strategy and random generators; step 0 if there is none.
        Raises UserError: on all ranks alike; the selected checkpoint cannot be loaded, or has another model.
        """
        record = None
        if self.memory is not None and self.group.rank.is_retry:  # an earlier attempt may have left states
            record = self.memory.load(
                strategy, lambda step: self._load(strategy, lambda finder: finder.find_newer(strategy, step))
            )
        if record is None:
            record = self._load(strategy, lambda finder: finder.find(strategy))
        return TrainState() if record is None else _train_state(record)

    def keep_in_memory(self, state: TrainState, strategy: Strategy) -> None:
        if self.memory is not None:
            states = random_state(self.group.accelerator)
            metadata = self._metadata(state, strategy)
            self.memory.keep(state.step, strategy.local_state(), random_state=states, metadata=metadata)

    def load_earlier(self, strategy: Strategy, last: int | None) -> TrainState | None:
        """
        Load the newest verified checkpoint of this run, during training; None if nothing was saved yet.

        Later ones go to quarantine. `last` is the step of the previous roll-back: if nothing was saved since, an older
        checkpoint is used, if there is one.
        """
        manifest = self._load(strategy, lambda finder: finder.find_older(last))
        return None if manifest is None else _train_state(manifest)

    def _load(self, strategy: Strategy, find: Callable[[Finder], Checkpoint | None]) -> Dict[str, Any] | None:
        """Load the checkpoint that rank 0 finds into all ranks, and return its manifest; UserError on all if `find` or loading fails."""
        verifier = Verifier(self.group)
        header: Dict[str, Any] = {"problem": "", "path": "", "manifest": None}
        state, random_states = None, b""
        if self.group.rank.is_main:
            try:
                found = find(
                    Finder(
                        self.out, self.config, self.group.rank, self.data_digest, verifier.verified, self.base_digest
                    )
                )
                if found:
                    state = None if files.is_sharded(found.manifest) else self._read_whole(found, strategy)
                    random_states = (found.path / "rng.json").read_bytes()
                    header.update(path=str(found.path.absolute()), manifest=found.manifest)
            except (UserError, OSError, FormatError) as exc:
                header["problem"] = str(exc)
        header = verifier.finish(header)
        if header["problem"]:
            raise UserError.agreed(header["problem"])
        manifest: Dict[str, Any] | None = header["manifest"]
        if manifest is None:
            return None
        if files.is_sharded(manifest):
            found, keep_ema = Checkpoint(Path(header["path"]), manifest), bool(self.config.optim.ema)
            load_sharded(self.group, found, strategy, keep_scale=self._keeps_scale(manifest), keep_ema=keep_ema)
        else:
            load_whole(self.group, state, strategy, f"step_{manifest['step']}")
        states = json.loads(self.group.broadcast_bytes(random_states))
        if self.group.rank.global_rank < len(states):  # a rank beyond the saved world size starts from the seed
            restore_random_state(states[self.group.rank.global_rank], self.group.accelerator)
        return manifest

    def _read_whole(self, found: Checkpoint, strategy: Strategy) -> Dict[str, Any]:
        """The state that rank 0 has written alone, in the form of Strategy.state(). Raises UserError: it has another model."""
        keep_scale, keep_ema = self._keeps_scale(found.manifest), bool(self.config.optim.ema)
        if found.manifest["version"] == files.VERSION:
            state = read_state(found, keep_scale=keep_scale, keep_ema=keep_ema)
            check_parameters(state["model"], strategy.sizes, found.manifest["step"])
            return state
        saved = load_state(found.path / "state.pt", found.path.name)
        check_parameters(saved["model"], strategy.sizes, found.manifest["step"])
        return named(saved, strategy.sizes, keep_scale=keep_scale, keep_ema=keep_ema)

    def _keeps_scale(self, manifest: Mapping[str, Any]) -> bool:
        return bool(manifest["config"].get("precision") == self.config.precision == "fp16")

    def _metadata(self, state: TrainState, strategy: Strategy) -> Dict[str, Any]:
        return {
            "sizes": dict(strategy.sizes),
            "aliases": first_names(strategy.unwrapped_model) if self.config.optim.ema else {},  # for export
            "world_size": self.group.rank.world_size,
            **asdict(state),
            "code": self.code,
            "run": self._run_id,
            "seed": self.config.seed,
            "data_sha256": self.data_digest,
            **({"base_sha256": self.base_digest} if self.base_digest else {}),
            "torch": torch.__version__,
            "config": self.config.as_dict(),
        }


def _train_state(manifest: Mapping[str, Any]) -> TrainState:
    return TrainState(
        manifest["step"],
        manifest["tokens"],
        manifest["first_loss"],
        manifest["last_loss"],
        position=manifest["position"],
        skipped=manifest.get("skipped", 0),  # older trainers saved neither
        planned_steps=manifest.get("planned_steps", manifest["config"].get("steps")),
        best_eval_loss=manifest.get("best_eval_loss"),
        stale_evaluations=manifest.get("stale_evaluations", 0),
    )
