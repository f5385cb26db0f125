"""Where ranks that orch has started become ranks of a warm trainer: what a node runs is tests/grounds/warm_rank.py."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.grounds.warm_trainer import WarmProcess, WarmTrainer

NOT_OURS = ("ORCH_RUN_DIR", "TORCHELASTIC_ERROR_FILE")
WARM_RANK = Path(__file__).with_name("warm_rank.py")


class WarmGate:
    """A socket at which they ask, with the environment and the words that orch gave them."""

    def __init__(self, path: Path, trainer_for: Callable[[Sequence[str]], WarmTrainer]) -> None:
        self.path = path
        self.ranks: dict[str, WarmProcess] = {}
        """RANK -> the process that was started last for it."""
        self._trainer_for = trainer_for
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o666)  # nodes have an account of their own
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        """Whoever asked and rank end together, whichever ends first."""
        with connection, connection.makefile("rb") as asked:
            request: dict[str, Any] = json.loads(asked.readline())
            words = request["words"]
            # Not what leads into the run's folder, which is the nodes' account's own.
            env = {name: value for name, value in request["env"].items() if name not in NOT_OURS}
            output = [Path(path) for path in request["output"]]
            process = self._trainer_for(words).start(words, env=env, cwd=Path(request["cwd"]), output=output)
            self.ranks[env["RANK"]] = process
            ended = threading.Thread(target=_tell, args=(process, connection), daemon=True)
            ended.start()
            asked.read()
            process.kill()
            ended.join()


def _tell(process: WarmProcess, connection: socket.socket) -> None:
    code = process.wait()
    with contextlib.suppress(OSError):
        connection.sendall(str(code).encode())
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def open_gate(path: Path, trainer_for: Callable[[Sequence[str]], WarmTrainer]) -> Iterator[WarmGate]:
    gate = WarmGate(path, trainer_for)
    try:
        yield gate
    finally:
        gate.close()
