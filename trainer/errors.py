"""Exit codes; errors that end a training with one message and one of these, never a traceback; and torchrun's error file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import time
from typing import Mapping, Type, TypeVar

REQUEUE = 99  # the exit code that asks to be started again: all is saved, and there is more to do
NO_RETRY = 93  # the exit code that says that another attempt with these settings would fail, too
SMALLER = "take a smaller micro_batch with more accumulation, activation_checkpointing=true, or strategy=fsdp2 or zero3"
# Of gloo, to the collective that comes first and to others; of NCCL, with TORCH_NCCL_BLOCKING_WAIT.
TIMED_OUT = ("Timed out waiting", "Application timeout caused pair closure", "collective operation timeout")
STORAGE_ERRNOS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EFBIG))
# What is said where no class tells: torch < 1.13 and cuBLAS of CUDA, the vendor's runtime of GCUs.
NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: can't allocate|out of memory|topsMalloc.*failed|CU(BLAS|DNN)_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
NO_NETWORK = re.compile(r"gloo/transport|\b[NE]CCL (error|communicator)|\b[ne]ccl[A-Z]\w+|\bWork[NE]CCL\b")

Error = TypeVar("Error", bound="TrainerError")


class TrainerError(Exception):
    """
    The training cannot go on; the message says what happened and what to do next.

    `kind` is for who looks after many runs: config, storage, memory, network, numbers, hang or code. `is_agreed`: every
    rank raises this same error at this same point, so that rank 0 can tell it for all, and none waits in a collective.
    """

    exit_code = 1
    kind = "code"
    is_agreed = False

    @classmethod
    def agreed(cls: Type[Error], message: str) -> Error:
        """For who knows that all ranks raise it."""
        error = cls(message)
        error.is_agreed = True
        return error


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
    """A loss or a gradient that is no number; the weights were not touched. It is found in what all ranks have exchanged."""

    kind = "numbers"
    is_agreed = True


def kind_of(error: BaseException) -> str:
    """The kind of an exception that nobody foresaw. torch's own classes by name: its old versions lack them."""
    name, text = type(error).__name__, str(error)
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or NO_MEMORY.search(text):
        return "memory"
    if any(part in text for part in TIMED_OUT):
        return "hang"
    if name.startswith("Dist") or isinstance(error, ConnectionError) or NO_NETWORK.search(text):
        return "network"
    return "storage" if isinstance(error, OSError) and error.errno in STORAGE_ERRNOS else "code"


def write_error_file(env: Mapping[str, str], message: str, *, kind: str, callstack: str = "") -> None:
    """Leave `message` where the launcher reads it, in the format of torch.distributed.elastic's `record`."""
    path = env.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": callstack or message, "timestamp": str(int(time.time())), "kind": kind}
    text = json.dumps({"message": {"message": message, "extraInfo": extra}})
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:  # a full disk is often what there is to tell
        sys.stderr.write(f"WARNING: rank {env.get('RANK', '0')}: cannot write {path}: {exc.strerror}\n")


def report(error: TrainerError, env: Mapping[str, str]) -> int:
    """
    Tell the user what went wrong, once if all ranks know it; returns the exit code.

    Each rank leaves it in its error file. Rank 0 alone prints what all agree on, else each prints what it has met: before
    the ranks are connected nobody knows whether one of them failed or all did.
    """
    message, rank = str(error), env.get("RANK", "0")
    write_error_file(env, message, kind=error.kind)
    if rank == "0" or not error.is_agreed:
        with contextlib.suppress(OSError):  # the disk of the log may be full: what counts is in the error file
            sys.stderr.write(as_printed(message, rank))
            sys.stderr.flush()
    return error.exit_code


def as_printed(message: str, rank: str) -> str:
    """Whole by rank 0, its first line by the others."""
    first = message.partition("\n")[0]
    return f"error: {message}\n" if rank == "0" else f"rank {rank}: error: {first}\n"
