"""The kind of failure of each error, and the file that records it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from orchestrator.run import RankExit
from trainer.errors import (
    NetworkError,
    NumbersError,
    StorageError,
    StorageUserError,
    TrainerError,
    UserError,
    kind_of,
    report,
)
from trainer.metrics.jsonl import MetricsFile


class OutOfMemoryError(RuntimeError):
    """The name of torch's error since torch 1.13."""


class DistBackendError(RuntimeError):
    """The name of torch's error since torch 2.1."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "memory"),
        (OutOfMemoryError("CUDA out of memory"), "memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity"), "memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "memory"),
        (RuntimeError("topsMalloc(&memory, bytes) failed"), "memory"),
        (RuntimeError("HBM: Out of Memory"), "memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "code"),
        (DistBackendError("NCCL error"), "network"),
        (RuntimeError("NCCL communicator was aborted on rank 1."), "network"),
        (
            RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:1333, unhandled system error, NCCL version 21.0.3"),
            "network",
        ),
        (RuntimeError("ECCL error in: ProcessGroupECCL.cpp:514, unhandled system error"), "network"),
        (RuntimeError("ecclCommInitRank: ecclSystemError"), "network"),
        (RuntimeError("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"), "hang"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer"), "network"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "network"),
        (OSError(errno.ENOSPC, "No space left on device"), "storage"),
        (OSError(errno.EROFS, "Read-only file system"), "storage"),
        (FileNotFoundError(errno.ENOENT, "no such file"), "code"),
        (ZeroDivisionError(), "code"),
    ],
)
def test_kind_of_an_unexpected_error(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TrainerError, "code"),
        (UserError, "config"),
        (StorageError, "storage"),
        (StorageUserError, "storage"),
        (NetworkError, "network"),
        (NumbersError, "numbers"),
    ],
)
def test_error_file_has_the_kind(tmp_path: Path, error: type[TrainerError], kind: str) -> None:
    report(error("what happened"), {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json"), "RANK": "1"})
    assert json.loads((tmp_path / "error.json").read_text())["message"]["extraInfo"]["kind"] == kind


def test_first_failure_is_shown_with_its_kind() -> None:
    text = str(RankExit("n0", 0, 1, None, "cannot save step_4: No space left on device", kind="storage"))
    assert text == "rank 0 on n0 exited 1 (storage): cannot save step_4: No space left on device"


def test_metrics_on_a_full_disk_are_a_storage_error(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl", last_step=0)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, metrics._file)  # the disk is full from now on
    with pytest.raises(StorageError, match=r"^cannot write .*/metrics\.jsonl: No space left on device; "):
        metrics.write({"step": 1})
    metrics.close()
    os.close(full)
