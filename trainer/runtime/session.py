"""One rank from start to exit: signals, group, training, and the exit code."""

from __future__ import annotations

import faulthandler
import functools
from typing import MutableMapping, NoReturn

import torch

from trainer.config.config import TrainConfig, with_ranks
from trainer.errors import REQUEUE, TrainerError, report
from trainer.runtime.exit import end, exit_on_unexpected_errors, within
from trainer.runtime.group import Group, initialise
from trainer.runtime.preemption import Notice
from trainer.runtime.rank import Place, Progress, say
from trainer.runtime.rendezvous import Failure, RollCall
from trainer.runtime.seeds import make_deterministic, what_is_not_deterministic_is_told
from trainer.runtime.watchdog import Patience, Stacks, record_collectives
from trainer.train import Trainer

CLOSE_S = 5.0  # for reporters, while the other ranks wait in vain: files are flushed by then, an upload may not be done


def train(config: TrainConfig, env: MutableMapping[str, str], notice: Notice) -> NoReturn:
    """
    Run one rank, and end its process.

    Raises:
        UserError: the launcher's variables are wrong, or those that deterministic=true needs; or `batch` does not divide.
    """
    place = Place.from_env(env)
    config = with_ranks(config, place.world_size)
    make_deterministic(config, env)
    faulthandler.enable()
    exit_on_unexpected_errors()
    record_collectives(torch.__version__, env)
    patience = Patience(Stacks(place), ddp_timeout_s=config.ddp_timeout, hang_timeout_s=config.hang_timeout)
    progress = Progress(place, config.steps, heard=patience.hear)
    progress.write("init", 0)
    roll = group = trainer = None
    try:
        if place.launched:
            roll = RollCall.open(place, env, config.ddp_timeout)
            exit_on_unexpected_errors(roll)
        group = initialise(config.device, config.ddp_timeout, env, roll=roll)
        patience.set_timeout = group.set_timeout
        trainer = Trainer(config, group, progress, notice)
        with what_is_not_deterministic_is_told(config):
            code = 0 if trainer.run() else REQUEUE
    except TrainerError as exc:
        code = report(exc, env)
        if not exc.is_agreed and place.world_size > 1:
            if roll:
                roll.tell(Failure(str(exc), exc.kind, code))
            _end_alone(code, trainer, config.ddp_timeout)
    _end_together(code, trainer, group, roll)


def _end_alone(code: int, trainer: Trainer | None, timeout_s: float) -> NoReturn:
    """
    Without a word to the group: the other ranks are in a collective, where leaving it could wait for them for ever.

    What rank 0 is writing may be finished, as long as the others would wait in that collective.
    """
    if trainer:
        within(timeout_s, functools.partial(_finish_save, trainer))
        within(CLOSE_S, functools.partial(trainer.measures.close, code))
    end(code)


def _end_together(code: int, trainer: Trainer | None, group: Group | None, roll: RollCall | None) -> NoReturn:
    """All ranks are here, or on their way."""
    if trainer:
        trainer.batches.close()
        _finish_save(trainer)
        trainer.measures.close(code)  # after the report: it may take a while
    if group:
        group.close(code)
    if roll:
        roll.leave(together=True)
    end(code)


def _finish_save(trainer: Trainer) -> None:
    left = trainer.saver.finish()
    if left:
        say(f"WARNING: {left}")
