"""The process of a ProxyCommand of ssh_config, which connects to a host."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading

END_S = 2.0
LAST_ERRORS_S = 0.5  # a process outside its group may still have its standard error open
BLOCK_BYTES = 1 << 12


class ProxyCommand:
    """
    A ProxyCommand, started by a shell as in ssh: the user wrote the command, and the names in it are checked.

    Its error output is copied to that of this process. It does not inherit the latter: it lives as long as the run, and
    would keep a pipe to which the user has redirected the errors of the launch open.
    """

    def __init__(self, command: str) -> None:
        self.connection, far = socket.socketpair()
        with far:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=far.fileno(),
                stdout=far.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self._copying = threading.Thread(target=self._copy_errors, name="errors of ProxyCommand", daemon=True)
        try:
            self._copying.start()
        except BaseException:  # the user's limit of threads is reached
            self.connection.close()
            self.end()
            raise

    def end(self) -> None:
        """End the process and its group."""
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._copying.is_alive():
            self._copying.join(LAST_ERRORS_S)

    def _copy_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as errors, contextlib.suppress(OSError):  # the terminal may be gone
            while data := os.read(errors.fileno(), BLOCK_BYTES):
                os.write(2, data)
