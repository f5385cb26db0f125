"""One rank from start to exit: signals, group, training, and the exit code."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from typing import Mapping

from trainer.config import TrainConfig
from trainer.distributed import initialise
from trainer.errors import TrainerError, exit_on_unexpected_errors, report
from trainer.loop import Trainer
from trainer.place import Place, Progress


def train(config: TrainConfig, env: Mapping[str, str]) -> int:
    """
    Run one rank; ends the process itself once ranks are connected, and does not return then.

    Raises:
        UserError: the launcher's variables are wrong.
    """
    # The default action ends the process even inside a collective, where a Python handler would never run; a launcher
    # may have passed on "ignore".
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable()
    exit_on_unexpected_errors()
    progress = Progress(Place.from_env(env), config.steps)
    progress.write("init", 0)
    try:
        group = initialise(config.device, config.ddp_timeout, env)
    except TrainerError as exc:
        code = report(exc, env)
        sys.stdout.flush()
        os._exit(code)
    try:
        Trainer(config, group, progress).run()
    except TrainerError as exc:
        group.close(report(exc, env))
    group.close(0)
