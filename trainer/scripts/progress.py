"""Progress of a script that writes none: its steps once a second, its saves and its end. Saves and frameworks are in `saves.py`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import math
import os
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, MutableMapping, Optional, Sequence

from ..errors import UserError
from ..io import replace_text
from ..runtime.arrivals import Arrivals
from ..runtime.channel import open_channel
from ..runtime.progress import Progress
from ..runtime.rank import Rank
from ..runtime.watchdog import StackDump
from . import lost_errors
from .devices import accelerator_of_script, warn_of_idle_cards
from .joined import group_of
from .replicas import DdpReplicas

EVERY_S = 1.0
DUMP_AFTER_S = 540.0  # before NCCL itself gives up, after 600 s; the duration of a script's steps is unknown
FIRST_STEPS = 2  # torch makes one with a learning rate of 0 before it loads the states of sharded optimizers
SOURCE = "optimizer"
COUNTS = "orch_counts"  # marks a wrapped step
OWN_NUMBERS = (
    "HOROVOD_",
    "OMPI_COMM_WORLD_",
)  # before RANK, LOCAL_RANK and SIZE, by which horovodrun and mpirun number their ranks

# `Any` below stands for torch, which is not imported here.


class StepCount:
    """
    A hook for all optimizers of the process; the step is counted by the optimizer with the most steps.

    A framework that counts its own steps is followed instead (`follow`). `saved` is null until a save is reported: no attempt can
    resume from a step that was not saved.
    """

    def __init__(self, rank: Rank, path: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        stacks = StackDump(rank)
        self.progress = Progress(
            rank, None, {"saved": None, "source": SOURCE}, on_phase=lambda _: stacks.expect(DUMP_AFTER_S)
        )
        self.path = path
        self.clock_s = clock_s
        self.pid = os.getpid()
        self.steps: MutableMapping[Any, int] = weakref.WeakKeyDictionary()
        self.step = 0
        """The steps of this process."""
        self.before = 0
        """The steps of the state that the first optimizer has loaded."""
        self.step_of_framework: Optional[int] = None
        self.is_ahead = False
        """An optimizer has made a step since the framework counted."""
        self.begun = 0
        self.due_s = clock_s()
        self.exit_code: object = None
        self.arrivals = Arrivals()
        self.replicas = DdpReplicas()
        self.accelerator: Any = None
        """Set at the first step: until then a script may still change which devices it sees."""
        self.on_first_step: Callable[[], object] = bool
        self.on_second_step: Callable[[], object] = bool

    @property
    def position(self) -> int:
        """The steps of the training, those of earlier attempts included as far as they are known."""
        if self.step_of_framework is None:
            return self.before + self.step
        return self.step_of_framework + self.is_ahead

    def __call__(self, optimizer: Any, *_: object) -> None:
        if self.step == 0:
            self.accelerator = accelerator_of_script()
            self._number_by_group()
            warn_of_idle_cards(self.accelerator, _parameters(optimizer))
            # by an earlier process of this attempt, as with torchrun's restarts
            saved = _report_of(self.path).get("saved")
            self.progress.extra["saved"] = saved if isinstance(saved, int) else None
            atexit.register(self.finish)
            lost_errors.remember_exit_code(functools.partial(setattr, self, "exit_code"))
            self.on_first_step()
        self.steps[optimizer] = done = self.steps.get(optimizer, 0) + 1
        if self.step == 1 and done > 1:
            self.on_second_step()
        if done <= FIRST_STEPS and len(self.steps) == 1:
            self.before = max(0, _steps_of_state(optimizer) - done)
        self.step = max(self.step, done)
        self.is_ahead = True
        now_s = self.clock_s()
        if now_s < self.due_s:
            return
        self.due_s = now_s + EVERY_S
        if _is_ours(self.path):
            self.note_group()
            self.progress.write("step", self.position, **_ready(self.accelerator.distributed, optimizer))
        else:
            self.due_s = float("inf")

    def _number_by_group(self) -> None:
        """Take the number in the process group, if no launcher has numbered this process: torch.multiprocessing.spawn does not."""
        rank = self.progress.rank
        group = None if rank.launched else group_of(self.accelerator.distributed)
        if group is not None and group[1] > 1:
            self.progress.rank = replace(rank, global_rank=group[0], world_size=group[1])
            self.path = self.path.with_name(f"{group[0]}.json")

    def follow(self, step: int, total: Optional[int] = None) -> None:
        """Take the step from the framework, and the number of steps that there will be."""
        self.step_of_framework, self.is_ahead = step, False
        self.progress.steps = total or self.progress.steps

    def is_reporting(self) -> bool:
        """This process writes the rank's progress: it has made a step, and the script writes none itself."""
        return self.step > 0 and self.pid == os.getpid() and not math.isinf(self.due_s) and _is_ours(self.path)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report a phase, and the one before it when it has ended."""
        if not self.is_reporting():
            yield
            return
        outer = self.progress.phase
        self.progress.write(name, self.position)
        try:
            yield
        finally:
            self.progress.write(outer, self.position)

    def has_saved(self, step: int) -> None:
        """Report that a new attempt can continue from a step."""
        if self.is_reporting() and step > 0 and step != self.progress.extra["saved"]:
            self.progress.add(saved=step)

    def before_step(self, optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A hook before each step: the gradients of a script that trains on several ranks are the same on all of them, unless a closure computes them in the step."""
        if math.isinf(self.due_s) or self.steps.get(optimizer, 0) != self.step or self.accelerator is None:
            return  # the script writes its progress itself; or another optimizer has made this step
        if self.begun > self.step:
            return  # an optimizer that this one is a part of has begun the step
        self.begun = self.step + 1
        has_gradients = kwargs.get("closure", args[1] if len(args) > 1 else None) is None
        group = self.accelerator.distributed
        if group.is_available() and group.is_initialized():
            ranks = group.get_world_size()
            self.progress.extra.update(self.arrivals.after_sync(self.step + 1, ranks))
            self.progress.extra.update(
                self.replicas.before_step(optimizer, self.step, ranks, has_gradients=has_gradients)
            )

    def note_group(self) -> None:
        """Keep the largest process group so far for the progress file: a program may leave its group before it ends."""
        group = group_of(self.accelerator.distributed)
        known = self.progress.extra.get("group")
        if group is None:
            self.progress.extra.pop("group", None)
        elif known is None or group[1] > known[1]:
            self.progress.extra["group"] = group

    def finish(self) -> None:
        """Write the steps since the last write, and `done` if the script has ended well; at the exit of the interpreter."""
        if not self.is_reporting():
            return
        self.note_group()
        has_failed = getattr(sys, "last_value", None) is not None or self.exit_code not in (None, 0)
        self.progress.write(self.progress.phase if has_failed else "done", self.position)


@functools.lru_cache(maxsize=None)
def step_count() -> Optional[StepCount]:
    """The counter of this process; None if it is not a rank of a run."""
    try:
        rank = Rank.from_env(_numbered(os.environ))
    except UserError:  # a process that the script started with other rank variables
        return None
    if rank.progress_dir is None:
        return None
    return StepCount(rank, rank.progress_dir / f"{rank.global_rank}.json")


def _numbered(env: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with torch's variables of the rank, if only another launcher, which a node has started, has numbered it."""
    for prefix in OWN_NUMBERS:
        if "WORLD_SIZE" not in env and f"{prefix}RANK" in env:
            numbers = {name: env.get(prefix + name, "") for name in ("RANK", "LOCAL_RANK")}
            return {**env, **numbers, "WORLD_SIZE": env.get(f"{prefix}SIZE", "")}
    return env


def count_steps(module: Any) -> None:
    """Count from now on; `module` is torch.optim.optimizer."""
    count = step_count()
    if count is None:
        return
    report = _report_of(count.path)
    if report.get("phase") == "done":  # of an earlier process of this rank, which is not done
        with contextlib.suppress(OSError):
            replace_text(count.path, json.dumps({**report, "phase": "init"}))
    open_channel(count.progress.rank, lambda: (count.progress.phase, count.position))
    if hasattr(module, "register_optimizer_step_post_hook"):
        # torch does the same in optimizers: torch.compile warns of code that it cannot trace
        untraced = getattr(sys.modules["torch"], "_disable_dynamo", lambda function: function)
        module.register_optimizer_step_pre_hook(untraced(functools.partial(count.before_step)))
        module.register_optimizer_step_post_hook(untraced(count))
    else:
        _wrap_steps(module.Optimizer, count)


def _wrap_steps(optimizer: Any, count: StepCount) -> None:
    """torch < 2: wrap step() of every optimizer class in use; it does not call the base class's."""
    construct = optimizer.__init__

    @functools.wraps(construct)
    def construct_and_count(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        step = type(self).step
        if hasattr(step, COUNTS):
            return

        @functools.wraps(step)
        def step_and_count(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(self, *args, **kwargs)
            count(self)
            return result

        setattr(step_and_count, COUNTS, True)
        type(self).step = step_and_count

    optimizer.__init__ = construct_and_count


def _is_ours(path: Path) -> bool:
    """The file is absent, or was written by this counter, also in an earlier process, not by the script itself."""
    try:
        return bool(json.loads(path.read_text(encoding="utf-8"))["source"] == SOURCE)
    except FileNotFoundError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _report_of(path: Path) -> Dict[str, Any]:
    """The progress that a counter has written, also one of an earlier process; empty if there is none."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        return dict(report) if report["source"] == SOURCE else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _steps_of_state(optimizer: Any) -> int:
    """The steps of a state that counts them, as Adam's does, also before it was loaded with a checkpoint; 0 if it does not."""
    try:
        counts = (optimizer.state.get(parameter, {}).get("step") for parameter in _parameters(optimizer))
        count = next((count for count in counts if count is not None), 0)
        if getattr(count, "is_cuda", False) and sys.modules["torch"].cuda.is_current_stream_capturing():
            return 0  # reading it would end the capture
        return int(count)
    except (TypeError, ValueError, AttributeError, RuntimeError):  # an optimizer with another kind of state
        return 0


def _ready(group: Any, optimizer: Any) -> Dict[str, str]:
    """The line about the group that `orch status` shows, worded as by the shared trainer."""
    if not group.is_available() or not group.is_initialized():
        return {}
    ranks, backend = group.get_world_size(), group.get_backend()
    device = next((parameter.device.type for parameter in _parameters(optimizer)), "none")
    return {"ready": f"{ranks}/{ranks} ranks ready, backend {backend}, device {device}"}


def _parameters(optimizer: Any) -> Iterator[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
