"""One rank from start to exit: signals, group, training, and the exit code."""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import MutableMapping

import torch

from trainer.config import TrainConfig
from trainer.distributed import initialise
from trainer.errors import REQUEUE, TrainerError, exit_on_unexpected_errors, report
from trainer.hang import Patience, Stacks, record_collectives
from trainer.loop import Trainer
from trainer.notice import Notice
from trainer.place import Place, Progress, say
from trainer.seeds import make_deterministic, what_is_not_deterministic_is_told


def train(config: TrainConfig, env: MutableMapping[str, str], notice: Notice) -> int:
    """
    Run one rank; ends the process itself once ranks are connected, and does not return then.

    Raises:
        UserError: the launcher's variables are wrong, or those that deterministic=true needs.
    """
    make_deterministic(config, env)
    faulthandler.enable()
    exit_on_unexpected_errors()
    record_collectives(torch.__version__, env)
    place = Place.from_env(env)
    patience = Patience(Stacks(place), ddp_timeout_s=config.ddp_timeout, hang_timeout_s=config.hang_timeout)
    progress = Progress(place, config.steps, heard=patience.hear)
    progress.write("init", 0)
    try:
        group = initialise(config.device, config.ddp_timeout, env)
    except TrainerError as exc:
        code = report(exc, env)
        sys.stdout.flush()
        os._exit(code)
    patience.set_timeout = group.set_timeout
    trainer = None
    try:
        trainer = Trainer(config, group, progress, notice)
        with what_is_not_deterministic_is_told(config):
            code = 0 if trainer.run() else REQUEUE
    except TrainerError as exc:
        code = report(exc, env)
    if trainer:
        trainer.batches.close()
        left = trainer.saver.finish()
        if left:
            say(f"WARNING: {left}")
        trainer.measures.close(code)  # after the report: it may take a while
    group.close(code)
