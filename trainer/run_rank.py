"""One rank from start to exit: signals, group, training, exit code."""

from __future__ import annotations

import faulthandler
import functools
from typing import MutableMapping, NoReturn, Sequence

import torch

from trainer.config.config import TrainConfig
from trainer.config.defaults import expand_segments, with_device
from trainer.config.load import with_ranks
from trainer.console import log_line
from trainer.errors import REQUEUE, TrainerError, report
from trainer.runtime.channel import open_channel
from trainer.runtime.exit import exit_now, exit_on_unexpected_errors, wait_at_most
from trainer.runtime.group import Group
from trainer.runtime.init import initialise
from trainer.runtime.preemption import PreemptionSignal
from trainer.runtime.progress import Progress
from trainer.runtime.rank import Rank
from trainer.runtime.rendezvous import Failure, Rendezvous
from trainer.runtime.seeds import make_deterministic, report_nondeterminism, set_tf32
from trainer.runtime.watchdog import StackDump, Watchdog, record_collectives
from trainer.train import Trainer

# Limit for reporters, while the other ranks are blocked: files are flushed by then, an upload may be cut short.
CLOSE_S = 5.0


def run_rank(config: TrainConfig, env: MutableMapping[str, str], preemption: PreemptionSignal) -> NoReturn:
    """
    Train as one rank, and end the process.
    Raises UserError: wrong variables of the launcher or for deterministic=true; or `batch` does not divide.
    """
    rank = Rank.from_env(env)
    config = with_ranks(config, rank.world_size)
    make_deterministic(config, env)
    faulthandler.enable()
    exit_on_unexpected_errors()
    record_collectives(torch.__version__, env)
    expand_segments(torch.__version__, env)
    watchdog = Watchdog(StackDump(rank), ddp_timeout_s=config.ddp_timeout, hang_timeout_s=config.hang_timeout)
    progress = Progress(rank, config.steps, on_phase=watchdog.begin_phase, in_background=True)
    progress.write("init", 0)
    open_channel(rank, lambda: (progress.phase, progress.step))
    rendezvous = group = trainer = None
    try:
        if rank.launched:
            rendezvous = Rendezvous.open(rank, env, config.ddp_timeout)
            exit_on_unexpected_errors(rendezvous)
        start_s = config.start_timeout
        group = initialise(config.device, config.ddp_timeout, env, start_timeout_s=start_s, rendezvous=rendezvous)
        config, defaults = with_device(config, group.accelerator.name, common_precisions(group))
        if defaults and rank.is_main:
            log_line(defaults)
        set_tf32(allowed=config.tf32)
        watchdog.set_timeout = group.set_timeout
        progress.write("init", 0, **({"ready": group.ready} if rank.is_main else {}))
        trainer = Trainer(config, group, progress, preemption)
        with report_nondeterminism(config):
            code = 0 if trainer.run() else REQUEUE
    except TrainerError as exc:
        progress.add()  # the step that failed
        code = report(exc, env)
        if not exc.is_agreed and rank.world_size > 1:
            if rendezvous:
                rendezvous.report_failure(Failure(str(exc), exc.kind, code))
            _exit_without_group(code, trainer, config.ddp_timeout)
    _exit_with_group(code, trainer, group, rendezvous)


def common_precisions(group: Group) -> Sequence[str]:
    """Return the precisions that the devices of all ranks support: cards of a run may differ, and its defaults may not."""
    mine = group.accelerator.precisions()
    everyone = [text.decode().split() for text in group.gather_bytes(" ".join(mine).encode())]
    return [precision for precision in mine if all(precision in of_rank for of_rank in everyone)]


def _exit_without_group(code: int, trainer: Trainer | None, timeout_s: float) -> NoReturn:
    """
    Exit without leaving the group: the other ranks are in a collective, and destroying the group could block for ever.

    A checkpoint that rank 0 is writing may take as long as the others would wait in that collective.
    """
    if trainer:
        wait_at_most(timeout_s, functools.partial(_finish_save, trainer, alone=True))
        wait_at_most(CLOSE_S, functools.partial(trainer.metrics.close, code))
    exit_now(code)


def _exit_with_group(
    code: int, trainer: Trainer | None, group: Group | None, rendezvous: Rendezvous | None
) -> NoReturn:
    """All ranks take this path."""
    if trainer:
        trainer.batches.close()
        _finish_save(trainer, alone=False)
        trainer.metrics.close(code)  # after the error is reported: it may take a while
    if group:
        group.close(code)
    if rendezvous:
        rendezvous.leave(after_rank_0=True)
    exit_now(code)


def _finish_save(trainer: Trainer, *, alone: bool) -> None:
    problem = trainer.saver.finish(alone=alone)
    if problem:
        log_line(f"WARNING: {problem}")
