"""
Run a vendor's tool with a deadline and a limit on its output.

A tool that waits for a wedged driver cannot be killed before the driver answers. So nothing here waits for its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Sequence, Tuple

OUTPUT_BYTES = 1 << 20  # efsmi -q prints 2 KB per card
POLL_S = 0.005
KILLED_S = 0.2  # a killed process has ended by then, unless it is in the kernel
FOLDERS = ("/usr/local/efsmi", "/usr/local/nvidia/bin")  # where drivers and containers put the tools, beyond PATH
SHOWN = 300  # characters of an error
NOT_FOUND = "not found"


class Tool:
    """A started tool, in its own session. `output` and `error` are final when `has_ended`; the error is empty if it succeeded."""

    def __init__(self, argv: Sequence[str], wait_s: float) -> None:
        self.name = os.path.basename(argv[0])
        self.error = ""
        self.has_ended = False
        self.started_s = time.monotonic()
        self._wait_s = wait_s
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._parts: List[bytes] = []
        self._size = 0
        self._pipe, out = os.pipe()
        os.set_blocking(self._pipe, False)
        path = os.pathsep.join((os.environ.get("PATH", os.defpath), *FOLDERS))
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PATH": path, "LC_ALL": "C"},
            )
        except OSError as error:
            self._end(f"{self.name}: {NOT_FOUND if isinstance(error, FileNotFoundError) else error.strerror}")
        finally:
            os.close(out)

    @property
    def is_installed(self) -> bool:
        return not self.error.endswith(NOT_FOUND)

    @property
    def pid(self) -> Optional[int]:
        return self._process.pid if self._process is not None else None

    @property
    def output(self) -> str:
        return b"".join(self._parts).decode("utf-8", "replace")

    def poll(self) -> None:
        """Read what the tool has printed; kill it at its deadline, or if it prints too much."""
        if self.has_ended or self._process is None:
            return
        code = self._process.poll()  # before the last read
        self._read()
        if self._size > OUTPUT_BYTES:
            self.kill(f"{self.name} printed more than {OUTPUT_BYTES} bytes")
        elif code:
            cause = f"was ended by signal {-code}" if code < 0 else f"exit code {code}"
            self._end(": ".join(filter(None, (f"{self.name}: {cause}", self.output.strip()[:SHOWN]))))
        elif code == 0:
            self._end("")
        elif time.monotonic() - self.started_s > self._wait_s:
            self.kill(f"{self.name} gave no answer in {self._wait_s:g} s")

    def kill(self, error: str) -> None:
        """Kill the tool and its children."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._end(error)

    def reap(self, wait_s: float) -> bool:
        """Wait briefly for the end of a killed tool; False if the driver does not let it end."""
        if self._process is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        return self._process.returncode is not None

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._size <= OUTPUT_BYTES:
                part = os.read(self._pipe, 1 << 16)
                if not part:
                    return
                self._parts.append(part)
                self._size += len(part)

    def _end(self, error: str) -> None:
        self.error = error
        self.has_ended = True
        os.close(self._pipe)


def run_tool(argv: Sequence[str], wait_s: float) -> Tuple[str, str]:
    """Run a tool for at most wait_s; return its output and its error, which is empty if it succeeded."""
    tool = Tool(argv, wait_s)
    while not tool.has_ended:
        time.sleep(POLL_S)
        tool.poll()
    if tool.error:
        tool.reap(KILLED_S)
    return tool.output, tool.error
