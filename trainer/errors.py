"""Exit codes; errors that end a training with one message and one of these, never a traceback; and torchrun's error file."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING, Mapping

if TYPE_CHECKING:
    from types import TracebackType


REQUEUE = 99  # the exit code that asks to be started again: all is saved, and there is more to do


class TrainerError(Exception):
    """The training cannot go on; the message says what happened and what to do next."""

    exit_code = 1


class UserError(TrainerError):
    """What was asked for is wrong: configuration, data, device, checkpoint."""

    exit_code = 2


def write_error_file(env: Mapping[str, str], message: str, callstack: str = "") -> None:
    """Leave `message` where the launcher reads it, in the format of torch.distributed.elastic's `record`."""
    path = env.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": callstack or message, "timestamp": str(int(time.time()))}
    text = json.dumps({"message": {"message": message, "extraInfo": extra}})
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def report(error: TrainerError, env: Mapping[str, str]) -> int:
    """
    Tell the user once what went wrong; returns the exit code.

    Rank 0 prints the whole message and the others its first line: before the ranks are connected nobody knows whether
    one of them failed or all did.
    """
    rank = env.get("RANK", "0")
    message = str(error)
    if rank == "0":
        sys.stderr.write(f"error: {message}\n")
    else:
        sys.stderr.write(f"rank {rank}: error: {message.splitlines()[0]}\n")
    sys.stderr.flush()
    write_error_file(env, message)
    return error.exit_code


def exit_on_unexpected_errors() -> None:
    """
    From here on an exception nobody foresaw prints its traceback, fills the error file and ends the process at once.

    Without os._exit the interpreter would tear down a live process group, which can abort or hang.
    """
    # Bound now: init_process_group wraps the hook and holds back what it writes to sys.stderr until it returns.
    stderr = sys.stderr

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        interrupted = issubclass(kind, KeyboardInterrupt)
        callstack = "".join(traceback.format_exception(kind, error, trace))
        stderr.write("interrupted\n" if interrupted else callstack)
        write_error_file(os.environ, f"{kind.__name__}: {error}", callstack)
        sys.stdout.flush()
        stderr.flush()
        os._exit(130 if interrupted else 1)

    sys.excepthook = hook
