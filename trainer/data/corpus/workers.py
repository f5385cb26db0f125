"""Processes that make the parts of a folder of token files, each one part at a time. No torch here."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
from multiprocessing import connection
from typing import Any, Callable, List, Sequence

from trainer.data.corpus.folder import TokenFolder
from trainer.data.corpus.pieces import Piece
from trainer.data.corpus.shard import Encoder, write_shard
from trainer.errors import UserError
from trainer.io import replace_text
from trainer.values import Foreign

ORPHANED = 3


class Workers:
    """Processes of one tokenization; they end with this process, also if it is killed."""

    def __init__(self, folder: TokenFolder, parts: Sequence[Sequence[Piece]], encoder: Encoder, field: str) -> None:
        self.folder, self.parts, self.encoder, self.field = folder, parts, encoder, field

    def run(self, missing: Sequence[int], processes: int, on_batch: Callable[[int, int], None]) -> None:
        """
        Make these parts.

        Args:
            missing: numbers of parts.
            processes: at most as many run.
            on_batch: called with the bytes of text and the tokens that a process has made.

        Raises:
            UserError: a document is invalid, the disk is full, or a process was killed.
        """
        fork = multiprocessing.get_context("fork")  # the tokenizer is not read again
        following = fork.Value("q", 0)
        readers: List[Any] = []
        running: List[Any] = []
        try:
            for _ in range(min(processes, len(missing))):
                reader, writer = fork.Pipe(duplex=False)
                arguments = (missing, following, writer, os.getpid())
                process = fork.Process(target=self._work, args=arguments, daemon=True)
                process.start()
                running.append(process)
                writer.close()
                readers.append(reader)
            self._follow(readers, on_batch)
            for process in running:
                process.join()
                if process.exitcode:
                    raise UserError(
                        f"a process ended with {process.exitcode}, perhaps for lack of memory: repeat the command with fewer --processes; "
                        f"parts that are done stay in {self.folder.partial}"
                    )
        finally:
            for process in running:
                process.terminate()
                process.join()

    @staticmethod
    def _follow(readers: List[Any], on_batch: Callable[[int, int], None]) -> None:
        """Receive the messages of all processes until each has ended."""
        while readers:
            ready: List[Any] = connection.wait(readers)
            for reader in ready:
                try:
                    message = reader.recv()
                except EOFError:
                    readers.remove(reader)
                    continue
                if isinstance(message, str):
                    raise UserError(message)
                on_batch(*message)

    def _work(self, missing: Sequence[int], following: Foreign, writer: Foreign, parent: int) -> None:
        """The life of a process: take the next part until none is left."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread for each process

        def report(*counts: int) -> None:
            if os.getppid() != parent:
                os._exit(ORPHANED)
            writer.send(counts)

        try:
            while True:
                with following.get_lock():
                    number, following.value = following.value, following.value + 1
                if number >= len(missing):
                    return
                part = missing[number]
                temporary = self.folder.temporary(part)
                try:
                    result = write_shard(temporary, self.parts[part], self.encoder, field=self.field, on_batch=report)
                    temporary.replace(self.folder.shard(part))
                finally:
                    with contextlib.suppress(FileNotFoundError):
                        temporary.unlink()
                replace_text(self.folder.result(part), json.dumps(result))
        except (UserError, OSError) as exc:
            if os.getppid() != parent:
                os._exit(ORPHANED)
            writer.send(
                str(exc) if isinstance(exc, UserError) else f"{exc.filename or self.folder.partial}: {exc.strerror}"
            )
