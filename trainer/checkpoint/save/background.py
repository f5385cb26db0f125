"""
Sharded saves: each rank copies its shard to memory, a writer writes it, and that of rank 0 completes the checkpoint.

The writer is a process, so that training continues, or works at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, Mapping

import torch

from trainer.checkpoint.format import files
from trainer.checkpoint.save import sharded
from trainer.checkpoint.save.shared_memory import SharedMemory, size_of
from trainer.checkpoint.save.writer import answer_to
from trainer.parallel.parts import LocalState
from trainer.runtime.group import Group

CODE = Path(__file__).resolve().parents[3]


class Writer:
    """
    A process that writes what is in `memory`: one request after another, in a thread that waits for its answers.

    To be made by all ranks together. It is started by exec: a fork of a process with a CUDA context or threads of gloo is not safe.
    """

    def __init__(self, group: Group) -> None:
        self._group, self.memory = group, SharedMemory.anonymous(group.accelerator)
        self._token = group.broadcast_bytes(secrets.token_hex(files.TOKEN_BYTES).encode()).decode()
        self._saves = 0
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._process: subprocess.Popen[str] | None = None
        self._allocated: Future[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process, None if it is not started yet."""
        return self._process.pid if self._process is not None else None

    def name(self) -> str:
        """A new name, the same on every rank, for the folder of a save."""
        self._saves += 1
        return f"{self._token}-{self._saves}"

    def prepare(self, state: LocalState) -> None:
        """Start the process, and allocate memory for such a state in the thread, so that the first save takes no longer than others."""
        tensors, _ = sharded.own_tensors(self._group, state)
        self._run()
        self._allocated = self._thread.submit(self.memory.allocate, size_of(tensors))

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """Copy the tensors to the memory; returns the number of bytes. Raises OSError: there is not enough memory."""
        if self._allocated is not None:
            self._allocated.result()
        return self.memory.fill(tensors)

    def request(self, **request: Any) -> Future[Dict[str, Any]]:  # JSON
        """Begin a request of writer.py; the answer has a "problem", if there was one. Call it from the main thread."""
        return self._thread.submit(_answer_of, self._run(), json.dumps(request))

    def copy_problem(self, error: OSError) -> str:
        return f"its shard cannot be copied for another process: {error}"

    def _run(self) -> subprocess.Popen[str]:
        """The process, started if there is none."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            # The kernel ends the process with the thread that has started it.
            descriptor = self.memory.descriptor
            path = os.pathsep.join(filter(None, (str(CODE), os.environ.get("PYTHONPATH", ""))))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainer.checkpoint.save.writer", str(descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
                cwd=str(CODE),
                env={**os.environ, "PYTHONPATH": path},
                universal_newlines=True,
            )
        return self._process

    def close(self) -> None:
        """End the process, also within a request, and free the memory."""
        if self._process is not None:
            self._process.kill()
        self._thread.shutdown()
        self._end()
        self.memory.close()

    def _end(self) -> None:
        """Forget a process that ends."""
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None


def _answer_of(process: subprocess.Popen[str], line: str) -> Dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer:
        return {"problem": f"the process that writes checkpoints has ended, with code {process.wait()}"}
    found: Dict[str, Any] = json.loads(answer)
    return found


class ImmediateWriter:
    """Does in request() what the process of a Writer does. To be made by all ranks together, for one save."""

    def __init__(self, group: Group) -> None:
        self.memory = SharedMemory.anonymous(group.accelerator)
        self._name = group.broadcast_bytes(secrets.token_hex(files.TOKEN_BYTES).encode()).decode()

    def name(self) -> str:
        return self._name

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> int:
        return self.memory.fill(tensors)

    def request(self, **request: Any) -> Future[Dict[str, Any]]:
        answer: Future[Dict[str, Any]] = Future()
        answer.set_result(answer_to(self.memory, request))
        return answer

    def copy_problem(self, error: OSError) -> str:
        return files.reason(error)

    def close(self) -> None:
        self.memory.close()


class ShardedSave:
    """
    One save: each rank writes its shard; once all have, complete() lets rank 0 give the checkpoint its name.

    The memory of the writer has the state until this rank's shard is written.

    is_written_by_all: each rank has written its shard, or reported that it cannot.
    is_committed: this rank completes the checkpoint.
    """

    def __init__(
        self,
        group: Group,
        writer: Writer | ImmediateWriter,
        out: Path,
        *,
        step: int,
        state: LocalState,
        random_state: bytes,
        metadata: Mapping[str, Any],
        kept: Mapping[str, Any],
    ) -> None:
        """
        Copy the state and begin to write it. Every rank must do so, and waits for no other.

        Args:
            group: of all ranks.
            writer: of this rank, with no request under way.
            out: the folder of checkpoints.
            step: names the folder.
            state: of this rank.
            random_state: of this rank, as JSON.
            metadata: JSON values kept in the manifest; rank 0's count.
            kept: the limits of files.retain().
        """
        self.group, self.writer, self.out, self.step, self.kept = group, writer, out, step, kept
        self.metadata = {**metadata, **sharded.state_metadata(state)}
        self.random_state = random_state
        self.is_written_by_all = self.is_committed = False
        # The process of each rank makes it, so that no rank waits for another one here.
        self.temporary = files.temporary_path(out, step, writer.name())
        self._answer: Future[Dict[str, Any]] = Future()
        tensors, self._intervals = sharded.own_tensors(group, state)
        try:
            size = writer.fill(tensors)
            group.accelerator.synchronize()
            folder, rank = str(self.temporary), group.rank.global_rank
            self._answer = writer.request(do="write", folder=folder, rank=rank, size=size)
        except OSError as exc:
            self._answer.set_result({"problem": writer.copy_problem(exc)})

    @property
    def path(self) -> Path:
        return self.out / f"step_{self.step}"

    @property
    def is_busy(self) -> bool:
        return not self._answer.done()

    @property
    def is_done(self) -> bool:
        """This rank has nothing more to do for it, or cannot."""
        return not self.is_busy and (self.is_written_by_all or bool(self.problem()))

    def problem(self) -> str:
        """Wait for this rank's process; returns its problem, or ""."""
        answer = self._answer.result()
        return f"cannot save {self.path}: {answer['problem']}" if "problem" in answer else ""

    def complete(self) -> None:
        """Let rank 0's process complete the checkpoint, if every rank has written its shard; a collective that waits for all shards."""
        record: Dict[str, Any] = {}
        if not self.problem():
            record = {**self._answer.result(), "tensors": self._intervals}
        records, rng = sharded.gather_records(self.group, record, self.random_state)
        self.is_written_by_all = True
        if not records or not all(records):
            return
        self.is_committed = True
        self._answer = self.writer.request(
            do="commit", out=str(self.out), temporary=str(self.temporary), step=self.step, records=records,
            rng=rng.decode(), metadata=self.metadata, kept=self.kept,
        )  # fmt: skip

    def finish_alone(self) -> str:
        """Wait for a checkpoint of which all shards are written; without the other ranks, others are given up. Returns the problem."""
        if self.is_written_by_all:
            return self.problem()
        self.writer.close()
        return f"cannot save {self.path}: other ranks have ended before all shards were written"
