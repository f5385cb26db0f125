"""Exit codes, the errors that end a training with one message and no traceback, and torchrun's error file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import time
from typing import Literal, Mapping, Sequence, Type, TypeVar

REQUEUE = 99  # exit code that requests another attempt: everything is saved, and steps are left
NO_RETRY = 93  # exit code of a failure that a retry with the same settings would repeat
SMALLER = "take a smaller micro_batch with more accumulation, activation_checkpointing=true, or strategy=fsdp2 or zero3"
# gloo's messages, for the first collective and for later ones, and NCCL's with TORCH_NCCL_BLOCKING_WAIT.
TIMED_OUT = ("Timed out waiting", "Application timeout caused pair closure", "collective operation timeout")
STORAGE_ERRNOS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EFBIG))
# Out-of-memory messages without a class of their own: torch < 1.13, cuBLAS, the GCU runtime.
NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: can't allocate|out of memory|topsMalloc.*failed|CU(BLAS|DNN)_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
NO_NETWORK = re.compile(r"gloo/transport|\b[NE]CCL (error|communicator)|\b[ne]ccl[A-Z]\w+|\bWork[NE]CCL\b")

Wrong = Literal["loss", "gradient", "norm"]
"""The numbers of a step that can be wrong."""
Error = TypeVar("Error", bound="TrainerError")


class TrainerError(Exception):
    """
    The training cannot continue; the message names the cause and the next step.

    `kind` classifies the failure: config, storage, memory, network, numbers, hang or code. `is_agreed`: every rank raises
    this error at the same point, so rank 0 reports it for all, and none waits in a collective.
    """

    exit_code = 1
    kind = "code"
    is_agreed = False

    @classmethod
    def agreed(cls: Type[Error], message: str) -> Error:
        """Return the error, marked as raised by every rank."""
        error = cls(message)
        error.is_agreed = True
        return error


class UserError(TrainerError):
    """A mistake in the request: configuration, data, device, checkpoint."""

    exit_code = 2
    kind = "config"


class StorageError(TrainerError):
    """A disk is full, cannot be written, or returns other data than were written."""

    kind = "storage"


class StorageUserError(UserError):
    """A disk too small for the requested checkpoints, detected before training."""

    kind = "storage"


class NetworkError(TrainerError):
    """Ranks cannot reach each other."""

    kind = "network"


class NumbersError(TrainerError):
    """A loss or gradient norm that is not finite, found in the values of all ranks; no checkpoint has that step."""

    kind = "numbers"
    is_agreed = True

    def __init__(self, message: str, step: int = 0, *, ranks: Sequence[int] = (), of: Wrong = "loss") -> None:
        """
        `step` made no update; steps after it may have been made.

        Args:
            message: names rank and step.
            step: counted from 1 on.
            ranks: those whose value is wrong; empty if the failure is not that of one step.
            of: "loss"; "gradient" if all ranks have a norm that is not finite; "norm" if ranks have different norms of one gradient.
        """
        super().__init__(message)
        self.step, self.ranks, self.of = step, tuple(ranks), of


class DeviceError(TrainerError):
    """The devices of these ranks compute wrongly; raised on them, while the other ranks wait for their end."""

    kind = "node"

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


def kind_of(error: BaseException) -> str:
    """The kind of an unexpected exception. torch's classes are compared by name: old versions lack them."""
    name, text = type(error).__name__, str(error)
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or NO_MEMORY.search(text):
        return "memory"
    if any(part in text for part in TIMED_OUT):
        return "hang"
    if name.startswith("Dist") or isinstance(error, ConnectionError) or NO_NETWORK.search(text):
        return "network"
    return "storage" if isinstance(error, OSError) and error.errno in STORAGE_ERRNOS else "code"


def write_error_file(env: Mapping[str, str], message: str, *, kind: str, callstack: str = "") -> None:
    """Write `message` to the launcher's error file, in the format of torch.distributed.elastic's `record`."""
    path = env.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": callstack or message, "timestamp": str(int(time.time())), "kind": kind}
    text = json.dumps({"message": {"message": message, "extraInfo": extra}})
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:  # a full disk is often the very error to report
        sys.stderr.write(f"WARNING: rank {env.get('RANK', '0')}: cannot write {path}: {exc.strerror}\n")


def report(error: TrainerError, env: Mapping[str, str]) -> int:
    """
    Write the error file and print the error; returns the exit code.

    An agreed error is printed by rank 0 only, any other by each rank that raises it: before the ranks are connected, no
    rank knows whether others failed too.
    """
    message, rank = str(error), env.get("RANK", "0")
    write_error_file(env, message, kind=error.kind)
    if rank == "0" or not error.is_agreed:
        with contextlib.suppress(OSError):  # the disk of the log may be full: the error file has the message
            sys.stderr.write(as_printed(message, rank))
            sys.stderr.flush()
    return error.exit_code


def as_printed(message: str, rank: str) -> str:
    """Return the whole message for rank 0, and only its first line for other ranks."""
    first = message.partition("\n")[0]
    return f"error: {message}\n" if rank == "0" else f"rank {rank}: error: {first}\n"
