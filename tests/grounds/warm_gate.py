"""A socket through which ranks that orch starts run in a warm trainer: a node runs tests/grounds/warm_rank.py."""

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

RUN_FOLDER_VARIABLES = ("ORCH_RUN_DIR", "TORCHELASTIC_ERROR_FILE")
WARM_RANK = Path(__file__).with_name("warm_rank.py")


class WarmGate:
    """A socket to which ranks send the environment and the arguments that orch gave them."""

    def __init__(self, path: Path, trainer_for: Callable[[Sequence[str]], WarmTrainer]) -> None:
        self.path = path
        self.ranks: dict[str, WarmProcess] = {}
        """RANK -> its latest process."""
        self._trainer_for = trainer_for
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o666)  # nodes run as another account
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
        """Run a rank for one request; if the rank or its client ends, so does the other."""
        with connection, connection.makefile("rb") as requests:
            request: dict[str, Any] = json.loads(requests.readline())
            words = request["words"]
            # without paths below the run's folder, which only the nodes' account can read
            env = {name: value for name, value in request["env"].items() if name not in RUN_FOLDER_VARIABLES}
            output = [Path(path) for path in request["output"]]
            process = self._trainer_for(words).start(words, env=env, cwd=Path(request["cwd"]), output=output)
            self.ranks[env["RANK"]] = process
            reporter = threading.Thread(target=_report_exit, args=(process, connection), daemon=True)
            reporter.start()
            requests.read()
            process.kill()
            reporter.join()


def _report_exit(process: WarmProcess, connection: socket.socket) -> None:
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
