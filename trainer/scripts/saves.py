"""
The saves and evaluations of a script, reported as it calls torch or a framework: a save once it is complete.

A rank reports the steps that it has written itself. Where a framework counts steps, its number is the step.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import math
import os
import re
import sys
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Tuple

from ..errors import report
from .devices import warn
from .loads import REMEDY, Loads, MixedStates
from .progress import StepCount, step_count

WEIGHTS_ONLY = (2, 6)  # the version of torch from which on torch.load reads tensors alone by default
LOGS = 4  # the index of the logged values in the arguments of CallbackHandler.on_log
EVALUATION = frozenset(("eval", "val", "valid", "validation", "test"))
"""Words in the name of a loss that is none of the training."""
SAVED_ELSEWHERE = "orch/saved-elsewhere"  # a key of the group's store: a node without rank 0 saves, too
FILES_BEFORE_WARNING = 2  # by the second save of rank 0 the other nodes have saved, if they do
KEPT_FILES = 4
"""The files in the progress file; a script that keeps one checkpoint may write a few at a time."""

MIXED = (
    "their checkpoints differ, as each node reads files that it has alone; let each node save (Hugging Face: --save_on_each_node), or name "
    "a folder that all nodes see"
)

# `Any` below stands for classes of torch and the frameworks, which are not imported here.


SHARED = "name a folder that all nodes see (an absolute path, or a workdir that they share)"


class Saves:
    """The saves of this process. A save within another one is a part of it."""

    def __init__(self, count: StepCount) -> None:
        self.count = count
        self.is_saving = False
        self.steps_before: Optional[int] = None
        """The step of a file that an earlier attempt has saved and this one has loaded."""
        self.loads = Loads(count.progress.rank, _store)
        self.files_saved = 0
        self.trainings = 0
        self.unchecked_begin: Optional[int] = None
        """The step at which the present training began, until it is compared with that of rank 0."""

    def begin_training(self, step: int) -> None:
        """Publish where this rank begins, without waiting for others: some ranks may not train."""
        self.trainings, self.unchecked_begin = self.trainings + 1, step
        store = _store()
        if store is not None:
            store.set(self._key(self.count.progress.rank.global_rank), str(step))

    def require_same_begin(self) -> None:
        """After a step, which rank 0 has made as well: end this rank if its training began at another step than that of rank 0."""
        begin, self.unchecked_begin = self.unchecked_begin, None
        store = None if begin is None else _store()
        if store is None or not store.check([self._key(0)]):
            return
        of_main = int(store.get(self._key(0)))
        if of_main != begin:
            rank = self.count.progress.rank
            text = f"rank {rank.global_rank} on {rank.node} began at step {begin}, and rank 0 at step {of_main}"
            sys.exit(report(MixedStates(f"{text}: {MIXED}"), os.environ))

    def _key(self, rank: int) -> str:
        return f"orch/began/{self.trainings}/{rank}"

    @contextlib.contextmanager
    def save(self, is_writer: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """
        Report a save, and the step once it is complete.
        `is_writer`: returns, after the save, whether this rank has written what a new attempt can continue from.
        """
        if self.is_saving:
            yield
            return
        step, self.is_saving = self.step(), True
        try:
            with self.count.phase("save"):
                yield
        finally:
            self.is_saving = False
        if is_writer():
            self.count.has_saved(step)

    def warn_of_unshared(self, folder: str, remedy: str) -> None:
        """Warn once, on rank 0, that it saves to a folder of the run that the other nodes do not see."""
        rank = self.count.progress.rank
        if rank.run_dir is None or not rank.is_main or rank.nodes == 1 or "ORCH_SHARED_DIR" in os.environ:
            return
        if os.path.realpath(folder).startswith(os.path.join(os.path.realpath(str(rank.run_dir)), "")):
            text = f"{folder} is saved on {rank.node} alone, as the nodes share no workdir: ranks on other nodes cannot resume from it"
            warn(f"{text}; {remedy}")

    def warn_if_saved_here_alone(self, file: str) -> None:
        """Rank 0 of a plain script saves for the second time, and no rank of another node has saved."""
        rank, store = self.count.progress.rank, _store()
        self.files_saved += 1
        if store is None or self.count.step_of_framework is not None:
            return
        if rank.global_rank != rank.local_rank and self.files_saved == 1:  # not on the node of rank 0
            store.set(SAVED_ELSEWHERE, rank.node)
        elif rank.is_main and self.files_saved == FILES_BEFORE_WARNING and not store.check([SAVED_ELSEWHERE]):
            self.warn_of_unshared(file, REMEDY)

    def step(self) -> int:
        """The step that a save has now. A plain script whose optimizer counts none continues from the step of the file that it has loaded."""
        count = self.count
        if count.step_of_framework is None and not count.before and self.steps_before is not None:
            return self.steps_before + count.step
        return count.position

    def remember(self, file: str) -> None:
        """Keep the step of a file that was written now, by its time and size: it may be renamed afterwards."""
        if self.count.is_reporting():
            files: Dict[str, int] = self.count.progress.extra.setdefault("files", {})
            files[_identity(file)] = self.step()
            for oldest in list(files)[:-KEPT_FILES]:
                del files[oldest]

    def recall(self, file: str) -> None:
        """Take the step of a file that is loaded, if a rank has saved it in an earlier attempt."""
        self.loads.files += 1
        steps = [files.get(_identity(file)) for _, files in earlier_saves(self.count)]
        known = [step for step in steps if step is not None]
        if known:
            self.steps_before, self.loads.resumed_from = max(known), os.path.realpath(file)


@functools.lru_cache(maxsize=None)
def saves() -> Optional[Saves]:
    """The saves of this process; None if it is not a rank of a run."""
    count = step_count()
    if count is None:
        return None
    found = Saves(count)
    if count.progress.rank.is_retry:
        count.on_first_step = functools.partial(_begin_plain, found)
    return found


def earlier_saves(count: StepCount) -> List[Tuple[int, Dict[str, int]]]:
    """The newest saved step and the saved files of each rank in each earlier attempt, as far as this node sees them."""
    rank, found = count.progress.rank, []
    assert rank.run_dir is not None, "a rank of a run"
    for path in glob.glob(f"{glob.escape(str(rank.run_dir))}/attempt-*/*/progress/*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            if path != str(count.path):
                with open(path, encoding="utf-8") as file:
                    report = json.load(file)
                found.append((int(report.get("saved") or 0), dict(report.get("files") or {})))
    return found


def warn_if_not_resumed(count: StepCount, step: int, remedy: str) -> None:
    """Warn on rank 0 if an attempt begins at step 0 although an earlier one has saved a step."""
    saved = max((step for step, _ in earlier_saves(count)), default=0)
    if step == 0 and saved:
        _warn(
            count, f"begins at step 0, although step {saved} was saved: the program does not resume; it needs {remedy}"
        )


def _begin_plain(found: Saves) -> None:
    """A training begins in a later attempt; a framework compares its ranks itself (`_begin`)."""
    _warn_if_nothing_was_loaded(found)
    if found.count.step_of_framework is None:
        found.loads.publish()
        found.count.on_second_step = found.loads.compare


def _warn_if_nothing_was_loaded(found: Saves) -> None:
    """A plain script that saves by torch.save, and has loaded none of these files before its first step."""
    count = found.count
    is_plain = count.step_of_framework is None and not count.before and found.steps_before is None
    if is_plain and any(files for _, files in earlier_saves(count)):
        text = "makes its first step without having loaded (torch.load) a file that an earlier attempt has saved"
        _warn(count, f"{text}: unless it resumes otherwise, it has begun at step 0")


def _warn(count: StepCount, text: str) -> None:
    rank = count.progress.rank
    if rank.is_retry and rank.is_main:
        sys.stderr.write(f"WARNING: attempt {os.environ.get('ORCH_ATTEMPT', '?')} {text}\n")


def _identity(file: str) -> str:
    state = os.stat(file)
    return f"{state.st_mtime_ns}-{state.st_size}"


def _path_of(target: object) -> Optional[str]:
    """The path of a file that torch.save or torch.load was given, by name or as an open file; None for a buffer."""
    name = target if isinstance(target, (str, os.PathLike)) else getattr(target, "name", None)
    return os.fspath(name) if isinstance(name, (str, os.PathLike)) else None


# Plain scripts


def watch_files(module: Any) -> None:  # torch.serialization
    """torch.save of a whole file, and torch.load of one."""
    found = saves()
    if found is None:
        return
    known_save, known_load = module.save, module.load

    @functools.wraps(known_save)
    def save(obj: object, f: object, *args: Any, **kwargs: Any) -> None:
        path = None if found.count.step == 0 else _path_of(f)
        if path is None:
            known_save(obj, f, *args, **kwargs)
            return
        with found.save():
            known_save(obj, f, *args, **kwargs)
            if hasattr(f, "flush"):
                f.flush()  # its time and size are those of the closed file
            found.remember(path)
            found.warn_if_saved_here_alone(path)

    @functools.wraps(known_load)
    def load(f: object, *args: Any, **kwargs: Any) -> Any:
        path = _path_of(f)
        if path is not None and found.count.step == 0 and found.count.progress.rank.is_retry:
            with contextlib.suppress(OSError):
                found.recall(path)
        return known_load(f, *args, **kwargs)

    module.save, module.load = save, load


def watch_distributed_checkpoint(module: Any) -> None:  # torch.distributed.checkpoint.filesystem
    """A checkpoint of all ranks: it is complete when the rank that coordinates has written its description."""
    writer = getattr(module, "_FileSystemWriter", None) or module.FileSystemWriter
    begun: Dict[int, int] = {}  # a writer's id -> the step when its save began

    def at_begin(found: Saves, self: Any, *_: object, **__: object) -> ContextManager[None]:
        begun[id(self)] = found.step()
        return found.save(lambda: False)

    @contextlib.contextmanager
    def at_end(found: Saves, self: Any, *_: object, **__: object) -> Iterator[None]:
        yield
        found.count.has_saved(begun.pop(id(self), found.step()))

    _surround(writer, "write_data", at_begin)
    _surround(writer, "finish", at_end)


# Frameworks


def _surround(owner: Any, name: str, context: Callable[..., ContextManager[Any]]) -> None:
    """Call a function of a class or module within `context(saves, *args, **kwargs)`, if this process is a rank of a run."""
    known, found = getattr(owner, name, None), saves()
    if known is None or found is None:  # a version without it
        return

    @functools.wraps(known)
    def call(*args: Any, **kwargs: Any) -> Any:
        with context(found, *args, **kwargs):
            return known(*args, **kwargs)

    setattr(owner, name, call)


def watch_trainer(module: Any) -> None:  # transformers.trainer
    """Hugging Face's Trainer: checkpoints, evaluations and predictions."""

    def save(found: Saves, trainer: Any, *_: object, **__: object) -> ContextManager[None]:
        if not trainer.args.save_on_each_node:
            found.warn_of_unshared(trainer.args.output_dir, f"add --save_on_each_node, or {SHARED}")
        is_sharded = getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False)
        return found.save(lambda: bool(is_sharded or trainer.args.should_save))

    _surround(module.Trainer, "_save_checkpoint", save)
    for name in ("evaluation_loop", "prediction_loop"):
        _surround(module.Trainer, name, _evaluation)


def follow_trainer(module: Any) -> None:  # transformers.trainer_callback
    """Hugging Face's Trainer: its global_step, and the loss that it logs."""

    @contextlib.contextmanager
    def begin(found: Saves, _: object, args: Any, state: Any, *__: object, **___: object) -> Iterator[None]:
        _begin(found, state.global_step, state.max_steps, "trainer.train(resume_from_checkpoint=True)")
        samples = [
            getattr(args, name, None) for name in ("train_batch_size", "gradient_accumulation_steps", "world_size")
        ]
        if all(isinstance(number, int) for number in samples):
            found.count.progress.keep({"per_step": math.prod(samples), "unit": "samples"})
        yield

    @contextlib.contextmanager
    def end_step(found: Saves, _: object, __: object, state: Any, *___: object, **____: object) -> Iterator[None]:
        _follow(found, state.global_step, state.max_steps)
        yield

    @contextlib.contextmanager
    def log(found: Saves, *words: Any, **options: Any) -> Iterator[None]:
        _keep_loss(found, options.get("logs", words[LOGS] if len(words) > LOGS else None))
        yield

    _surround(module.CallbackHandler, "on_train_begin", begin)
    _surround(module.CallbackHandler, "on_step_end", end_step)
    _surround(module.CallbackHandler, "on_log", log)


def watch_accelerator(module: Any) -> None:  # accelerate.accelerator
    """accelerate's save_state: the main process writes the model, or that of each node."""

    def save(found: Saves, accelerator: Any, *_: object, **__: object) -> ContextManager[None]:
        def is_writer() -> bool:
            is_sharded = str(accelerator.distributed_type).rpartition(".")[2] in ("DEEPSPEED", "FSDP", "MEGATRON_LM")
            each_node = accelerator.project_configuration.save_on_each_node
            return bool(is_sharded or accelerator.is_main_process or (each_node and accelerator.is_local_main_process))

        return found.save(is_writer)

    _surround(module.Accelerator, "save_state", save)


def watch_deepspeed(module: Any) -> None:  # deepspeed.runtime.engine
    """DeepSpeed's own checkpoints, which all ranks write; several optimizers may make one step."""

    @contextlib.contextmanager
    def save(found: Saves, engine: Any, *_: object, **__: object) -> Iterator[None]:
        if found.count.step_of_framework is None:
            found.count.follow(engine.global_steps)
        with found.save():
            yield

    _surround(module.DeepSpeedEngine, "save_checkpoint", save)


def watch_lightning(module: Any) -> None:  # lightning.pytorch.trainer.trainer
    """Lightning's Trainer: checkpoints that a fit can continue from."""

    def save(
        found: Saves,
        trainer: Any,
        filepath: object,
        weights_only: Optional[bool] = None,  # noqa: FBT001 -- Lightning's
        *__: object,
        **___: object,
    ) -> ContextManager[None]:
        found.warn_of_unshared(os.path.dirname(str(filepath)), SHARED)
        strategy = trainer.strategy
        is_sharded = type(strategy).__name__ in ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")
        is_complete = not weights_only and "Async" not in type(getattr(strategy, "checkpoint_io", None)).__name__
        return found.save(lambda: bool(is_complete and (is_sharded or trainer.is_global_zero)))

    _surround(module.Trainer, "save_checkpoint", save)


def follow_lightning(module: Any) -> None:  # lightning.pytorch.trainer.call
    """Lightning's Trainer: its global_step, when it calls the callbacks."""

    @contextlib.contextmanager
    def follow(found: Saves, trainer: Any, hook_name: str, *_: object, **__: object) -> Iterator[None]:
        if hook_name == "on_train_start":
            steps = trainer.estimated_stepping_batches  # by max_steps and max_epochs; known once the loaders are
            total = int(steps) if 0 < steps < math.inf else 0
            _begin(found, trainer.global_step, total, 'trainer.fit(..., ckpt_path="last")')
        elif hook_name == "on_train_batch_end":
            _follow(found, trainer.global_step)
        yield

    _surround(module, "_call_callback_hooks", follow)


def watch_losses_of_lightning(
    module: Any,
) -> None:  # lightning.pytorch.trainer.connectors.logger_connector.logger_connector
    """The loss that Lightning's Trainer gives to its loggers, which has been read from the device for them."""

    @contextlib.contextmanager
    def log(found: Saves, _: object, metrics: Any, *__: object, **___: object) -> Iterator[None]:
        yield
        _keep_loss(found, metrics)

    _surround(module._LoggerConnector, "log_metrics", log)  # it has no other name


def watch_evaluations_of_lightning(module: Any) -> None:  # lightning.pytorch.loops.evaluation_loop
    """Lightning's validation and test loops."""
    _surround(module._EvaluationLoop, "run", _evaluation)  # it has no other name


def watch_fabric(module: Any) -> None:  # lightning.fabric.fabric
    """Lightning Fabric's save."""

    def save(found: Saves, fabric: Any, *_: object, **__: object) -> ContextManager[None]:
        is_sharded = type(fabric.strategy).__name__ in ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")
        return found.save(lambda: bool(is_sharded or fabric.is_global_zero))

    _surround(module.Fabric, "save", save)


def watch_runner(module: Any) -> None:  # mmengine.runner.runner
    """MMEngine's Runner: its iterations, validations and tests, and checkpoints, which rank 0 writes."""

    @contextlib.contextmanager
    def call_hook(found: Saves, runner: Any, fn_name: str, *_: object, **__: object) -> Iterator[None]:
        if fn_name == "before_train":
            _begin(found, runner.iter, runner.max_iters, "--resume (`resume = True` in its configuration)")
        elif fn_name == "after_train_iter":
            _follow(found, runner.iter + 1, runner.max_iters)  # it counts after its hooks
        yield
        if fn_name == "after_train_iter":
            history = runner.message_hub.log_scalars.get("train/loss")
            _keep_loss(found, {"loss": history.current()} if history is not None else {})

    def save(found: Saves, runner: Any, *_: object, save_optimizer: bool = True, **__: object) -> ContextManager[None]:
        found.warn_of_unshared(runner.work_dir, SHARED)
        return found.save(lambda: save_optimizer and runner.rank == 0)

    @contextlib.contextmanager
    def resume(_: Saves, runner: Any, filename: str, *__: object, **___: object) -> Iterator[None]:
        """MMEngine's checkpoints hold more than tensors, which torch.load refuses from 2.6 on: trust those that this training writes."""
        torch: Any = sys.modules["torch"]
        known, folder = torch.load, os.path.realpath(runner.work_dir)
        is_own = os.path.realpath(filename).startswith(os.path.join(folder, ""))
        try:
            if is_own and tuple(int(part) for part in torch.__version__.split(".")[:2]) >= WEIGHTS_ONLY:
                torch.load = functools.partial(known, weights_only=False)
            yield
        finally:
            torch.load = known

    _surround(module.Runner, "call_hook", call_hook)
    _surround(module.Runner, "resume", resume)
    _surround(module.Runner, "save_checkpoint", save)


def watch_loops(module: Any) -> None:  # mmengine.runner.loops
    """MMEngine's validation and test loops."""
    for loop in (module.ValLoop, module.TestLoop):
        _surround(loop, "run", _evaluation)


def _evaluation(found: Saves, *_: object, **__: object) -> ContextManager[None]:
    return found.count.phase("eval")


def _begin(found: Saves, step: int, total: int, remedy: str) -> None:
    """A framework begins or continues a training."""
    found.count.follow(step, total)
    found.count.progress.keep({"resumed": step})
    found.begin_training(step)
    warn_if_not_resumed(found.count, step, remedy)


def _follow(found: Saves, step: int, total: Optional[int] = None) -> None:
    """A framework has made a step."""
    found.count.follow(step, total)
    found.require_same_begin()


def _keep_loss(found: Saves, logged: Any) -> None:
    """Keep the loss of the training among values that a framework logs, for the next write of the progress."""
    for name, value in dict(logged or {}).items():
        words = re.split(r"[_/ .-]", str(name).lower())
        if "loss" in words and EVALUATION.isdisjoint(words):
            with contextlib.suppress(TypeError, ValueError):  # no number
                loss = float(value)
                if math.isfinite(loss):
                    found.count.progress.keep({"loss": loss})
                return


def _store() -> Any:
    """The store of the process group of all ranks; None if there is none, or this torch has another name for it."""
    group: Any = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized() or group.get_world_size() == 1:
        return None
    store = getattr(group.distributed_c10d, "_get_default_store", lambda: None)()
    return store if hasattr(store, "check") else None
