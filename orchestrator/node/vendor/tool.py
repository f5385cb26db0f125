"""
Run a vendor's tool with a deadline and a limit on its output.

A tool that waits for a wedged driver cannot be killed before the driver answers. So nothing here waits for its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Dict, List, Mapping, Optional, Sequence

OUTPUT_BYTES = 4 << 20  # efsmi -q prints 2 KB per card
POLL_S = 0.005
KILLED_S = 0.2  # a killed process has ended by then, unless it is in the kernel
FOLDERS = ("/usr/local/efsmi", "/usr/local/nvidia/bin")  # where drivers and containers put the tools, beyond PATH
NOT_FOUND = "not found"


class Tool:
    """
    A started tool. When `has_ended`, its output and `error` are final; the error is empty if it succeeded.

    Args:
        environ: with LC_ALL=C added; None for this process's.
        has_session: start it in a new session, so that its children are killed with it; otherwise the caller must end them.
    """

    def __init__(
        self,
        argv: Sequence[str],
        wait_s: float,
        environ: Optional[Mapping[str, str]] = None,
        *,
        has_session: bool = True,
    ) -> None:
        import subprocess  # slow to import, and most probes and connections start no tool

        self.name = os.path.basename(argv[0])
        self.error = ""
        self.has_ended = False
        self._started_s = time.monotonic()
        self._wait_s = wait_s
        self._has_session = has_session
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._printed: Dict[int, List[bytes]] = {}  # by pipe: standard output, then standard error
        self._size = 0
        variables = os.environ if environ is None else environ
        path = os.pathsep.join((variables.get("PATH", os.defpath), *FOLDERS))
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        for pipe in (out, err):
            os.set_blocking(pipe, False)
            self._printed[pipe] = []
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out_end,
                stderr=err_end,
                start_new_session=has_session,
                env={**variables, "PATH": path, "LC_ALL": "C"},
            )
        except (OSError, ValueError) as error:
            self._end(
                NOT_FOUND if isinstance(error, FileNotFoundError) else getattr(error, "strerror", "") or str(error)
            )
        finally:
            os.close(out_end)
            os.close(err_end)

    @property
    def is_installed(self) -> bool:
        return self.error != NOT_FOUND

    @property
    def pid(self) -> Optional[int]:
        return self._process.pid if self._process is not None else None

    @property
    def output(self) -> str:
        return self._text(0)

    @property
    def errors(self) -> str:
        return self._text(1)

    def _text(self, index: int) -> str:
        return b"".join(list(self._printed.values())[index]).decode("utf-8", "replace")

    def poll(self) -> None:
        """Read what the tool has printed; kill it at its deadline, or if it prints too much."""
        if self.has_ended or self._process is None:
            return
        code = self._process.poll()  # before the last read
        self._read()
        if self._size > OUTPUT_BYTES:
            self.kill(f"printed more than {OUTPUT_BYTES >> 20} MiB")
        elif code:
            words = (self.errors.strip() or self.output.strip()).splitlines()
            cause = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
            self._end(f"{cause}: {words[-1] if words else 'no message':.300}")
        elif code == 0:
            self._end("")
        elif time.monotonic() - self._started_s > self._wait_s:
            self.kill(f"no answer in {self._wait_s:g} s")

    def kill(self, error: str) -> None:
        """Kill the tool, and its children if it has a session."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self._has_session:
                    os.killpg(self._process.pid, signal.SIGKILL)
                else:
                    self._process.kill()
        self._end(error)

    def reap(self, wait_s: float) -> bool:
        """Wait briefly for the end of a killed tool; False if the driver does not let it end."""
        import subprocess

        if self._process is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        return self._process.returncode is not None

    def _read(self) -> None:
        for pipe, parts in self._printed.items():
            with contextlib.suppress(BlockingIOError):
                while self._size <= OUTPUT_BYTES:
                    part = os.read(pipe, 1 << 16)
                    if not part:
                        break
                    parts.append(part)
                    self._size += len(part)

    def _end(self, error: str) -> None:
        self.error = error
        self.has_ended = True
        for pipe in self._printed:
            os.close(pipe)


def run_tool(
    argv: Sequence[str], wait_s: float, environ: Optional[Mapping[str, str]] = None, *, has_session: bool = True
) -> Tool:
    tool = Tool(argv, wait_s, environ, has_session=has_session)
    while not tool.has_ended:
        time.sleep(POLL_S)
        tool.poll()
    if tool.error:
        tool.reap(KILLED_S)
    return tool
