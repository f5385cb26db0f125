"""Exit codes; errors that end a training with one message and one of these, never a traceback; and torchrun's error file."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING, Mapping

if TYPE_CHECKING:
    from types import TracebackType


REQUEUE = 99  # the exit code that asks to be started again: all is saved, and there is more to do
NO_RETRY = 93  # the exit code that says that another attempt with these settings would fail, too
SMALLER = "take a smaller micro_batch with more accumulation, activation_checkpointing=true, or strategy=fsdp2 or zero3"
# Of gloo, to the collective that comes first and to others; of NCCL, with TORCH_NCCL_BLOCKING_WAIT.
TIMED_OUT = ("Timed out waiting", "Application timeout caused pair closure", "collective operation timeout")
STORAGE_ERRNOS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EFBIG))


class TrainerError(Exception):
    """
    The training cannot go on; the message says what happened and what to do next.

    `kind` is for who looks after many runs: config, storage, memory, network, numbers, hang or code.
    """

    exit_code = 1
    kind = "code"


class UserError(TrainerError):
    """What was asked for is wrong: configuration, data, device, checkpoint."""

    exit_code = 2
    kind = "config"


class StorageError(TrainerError):
    """A disk is full, cannot be written, or gives back something else."""

    kind = "storage"


class StorageUserError(UserError):
    """A disk that cannot hold what was asked for, found out before training."""

    kind = "storage"


class NetworkError(TrainerError):
    """Ranks do not reach each other."""

    kind = "network"


class NumbersError(TrainerError):
    """A loss or a gradient that is no number; the weights were not touched."""

    kind = "numbers"


def kind_of(error: BaseException) -> str:
    """The kind of an exception that nobody foresaw. torch's own classes by name: its old versions lack them."""
    name, text = type(error).__name__, str(error)
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or "DefaultCPUAllocator: can't allocate" in text:
        return "memory"
    if any(part in text for part in TIMED_OUT):
        return "hang"
    if name.startswith("Dist") or isinstance(error, ConnectionError) or "gloo/transport" in text:
        return "network"
    return "storage" if isinstance(error, OSError) and error.errno in STORAGE_ERRNOS else "code"


def write_error_file(env: Mapping[str, str], message: str, *, kind: str, callstack: str = "") -> None:
    """Leave `message` where the launcher reads it, in the format of torch.distributed.elastic's `record`."""
    path = env.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": callstack or message, "timestamp": str(int(time.time())), "kind": kind}
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
    write_error_file(env, message, kind=error.kind)
    return error.exit_code


def exit_on_unexpected_errors() -> None:
    """
    From here on an exception nobody foresaw prints its traceback, fills the error file and ends the process at once.

    Without os._exit the interpreter would tear down a live process group, which can abort or hang. What does not fit
    into memory will not fit the next time: that ends with NO_RETRY, and says what to change.
    """
    # Bound now: init_process_group wraps the hook and holds back what it writes to sys.stderr until it returns.
    stderr = sys.stderr

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        interrupted = issubclass(kind, KeyboardInterrupt)
        callstack = "".join(traceback.format_exception(kind, error, trace))
        stderr.write("interrupted\n" if interrupted else callstack)
        message, what = f"{kind.__name__}: {error}", kind_of(error)
        if what == "memory":
            message = f"out of memory: {error}; {SMALLER}"
            stderr.write(f"rank {os.environ.get('RANK', '0')}: error: {message}\n")
        write_error_file(os.environ, message, kind=what, callstack=callstack)
        sys.stdout.flush()
        stderr.flush()
        os._exit(130 if interrupted else NO_RETRY if what == "memory" else 1)

    sys.excepthook = hook
