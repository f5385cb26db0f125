"""Progress of a script that writes none: count the steps of every optimizer, and write them once a second."""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import sys
import time
import weakref
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, MutableMapping, Sequence

from ..errors import UserError
from ..runtime.arrivals import Arrivals
from ..runtime.channel import open_channel
from ..runtime.progress import Progress
from ..runtime.rank import Rank
from ..runtime.watchdog import StackDump
from .devices import accelerator_of_script, warn_of_idle_cards
from .replicas import DdpReplicas

EVERY_S = 1.0
DUMP_AFTER_S = 540.0  # before NCCL itself gives up, after 600 s; the duration of a script's steps is unknown
SOURCE = "optimizer"
COUNTS = "orch_counts"  # marks a wrapped step

# `Any` below stands for torch, which is not imported here.


class StepCount:
    """
    A hook for all optimizers of the process; the step is counted by the optimizer with the most steps.

    `saved` is written as null: no attempt can resume from a step that was not saved.
    """

    def __init__(self, rank: Rank, path: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        stacks = StackDump(rank)
        self.progress = Progress(
            rank, None, {"saved": None, "source": SOURCE}, on_phase=lambda _: stacks.expect(DUMP_AFTER_S)
        )
        self.path = path
        self.clock_s = clock_s
        self.steps: MutableMapping[Any, int] = weakref.WeakKeyDictionary()
        self.step = 0
        self.begun = 0
        self.due_s = clock_s()
        self.arrivals = Arrivals()
        self.replicas = DdpReplicas()
        self.accelerator: Any = None
        """Set at the first step: until then a script may still change which devices it sees."""

    def __call__(self, optimizer: Any, *_: object) -> None:  # noqa: ANN401
        if self.step == 0:
            self.accelerator = accelerator_of_script()
            warn_of_idle_cards(self.accelerator, _parameters(optimizer))
            atexit.register(self.finish)
        self.steps[optimizer] = done = self.steps.get(optimizer, 0) + 1
        self.step = max(self.step, done)
        now_s = self.clock_s()
        if now_s < self.due_s:
            return
        self.due_s = now_s + EVERY_S
        if _is_ours(self.path):
            self.progress.write("step", self.step, **_ready(self.accelerator.distributed, optimizer))
        else:
            self.due_s = float("inf")

    def before_step(self, optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:  # noqa: ANN401
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

    def finish(self) -> None:
        """Write the steps since the last write; at the exit of the interpreter."""
        if self.step > self.progress.step and _is_ours(self.path):
            self.progress.step = self.step
            self.progress.add()


def count_steps(module: Any) -> None:  # noqa: ANN401
    """Count from now on; `module` is torch.optim.optimizer."""
    try:
        rank = Rank.from_env(os.environ)
    except UserError:  # a process that the script started with other rank variables
        return
    if rank.progress_dir is None:
        return
    count = StepCount(rank, rank.progress_dir / f"{rank.global_rank}.json")
    open_channel(rank, lambda: (count.progress.phase, count.step))
    if hasattr(module, "register_optimizer_step_post_hook"):
        # torch does the same in optimizers: torch.compile warns of code that it cannot trace
        untraced = getattr(sys.modules["torch"], "_disable_dynamo", lambda function: function)
        module.register_optimizer_step_pre_hook(untraced(functools.partial(count.before_step)))
        module.register_optimizer_step_post_hook(untraced(count))
    else:
        _wrap_steps(module.Optimizer, count)


def _wrap_steps(optimizer: Any, count: StepCount) -> None:  # noqa: ANN401
    """torch < 2: wrap step() of every optimizer class in use; it does not call the base class's."""
    construct = optimizer.__init__

    @functools.wraps(construct)
    def construct_and_count(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        construct(self, *args, **kwargs)
        step = type(self).step
        if hasattr(step, COUNTS):
            return

        @functools.wraps(step)
        def step_and_count(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            result = step(self, *args, **kwargs)
            count(self)
            return result

        setattr(step_and_count, COUNTS, True)
        type(self).step = step_and_count

    optimizer.__init__ = construct_and_count


def _is_ours(path: Path) -> bool:
    """Return True if the file is absent or was written by this counter, also in an earlier process, not by the script itself."""
    try:
        return bool(json.loads(path.read_text(encoding="utf-8"))["source"] == SOURCE)
    except FileNotFoundError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _ready(group: Any, optimizer: Any) -> Dict[str, str]:  # noqa: ANN401
    """The line about the group that `orch status` shows, worded as by the shared trainer."""
    if not group.is_available() or not group.is_initialized():
        return {}
    ranks, backend = group.get_world_size(), group.get_backend()
    device = next((parameter.device.type for parameter in _parameters(optimizer)), "none")
    return {"ready": f"{ranks}/{ranks} ranks ready, backend {backend}, device {device}"}


def _parameters(optimizer: Any) -> Iterator[Any]:  # noqa: ANN401
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
