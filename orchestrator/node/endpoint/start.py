"""Start agents that outlive the connection, and wait until each has written its agent.json."""

from __future__ import annotations

import os
import signal
import time

from orchestrator.node.endpoint.report import LOG_TAIL_BYTES
from orchestrator.node.events import PORT_TAKEN
from orchestrator.node.files import absolute_path, check_private_folder, expanded_argument, tail
from orchestrator.node.machine import is_alive
from orchestrator.node.protocol import HeadPortTaken
from orchestrator.node.run_folder import read_agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import List, Tuple

    from orchestrator.node import messages

START_POLL_S = 0.01
TERMINATE_S = 1.0


class Starter:
    """Starts agents that outlive this program; reaps those that end before it."""

    def __init__(self, umask: int) -> None:
        self.umask = umask
        self.children: List[subprocess.Popen[bytes]] = []

    def reap(self) -> None:
        self.children = [child for child in self.children if child.poll() is None]

    def start(self, request: messages.StartRequest, _payload: bytes) -> Tuple[messages.StartReply, bytes]:
        """Start argv detached in a node folder and wait until the agent has written agent.json."""
        folder = absolute_path(request["folder"])
        check_private_folder(folder)
        earlier = read_agent(folder)
        if earlier is not None and is_alive(earlier):
            raise FileExistsError(f"an agent already runs in {folder}, pid {earlier['pid']}")
        child = self._spawn([expanded_argument(arg) for arg in request["argv"]], folder)
        deadline = time.monotonic() + request["wait_s"]
        while True:
            code = child.poll()
            agent = read_agent(folder)
            if agent is not None and agent != earlier:  # the agent may be a descendant of `child`
                return {"agent": agent}, b""
            if code is not None or time.monotonic() > deadline:
                raise self._failure(child, request["wait_s"], os.path.join(folder, "agent.log"))
            time.sleep(START_POLL_S)

    def _failure(self, child: subprocess.Popen[bytes], wait_s: float, log_file: str) -> Exception:
        """The error of an agent that did not start; one that takes too long is killed."""
        code = child.returncode
        if code is None:
            os.killpg(child.pid, signal.SIGTERM)  # not reaped yet, so the pid is still this child's
            end = time.monotonic() + TERMINATE_S  # in which setup.sh names the line that takes so long
            while child.poll() is None and time.monotonic() < end:
                time.sleep(START_POLL_S)
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            log = tail(log_file, LOG_TAIL_BYTES)
            return TimeoutError(f"no agent.json after {wait_s:g} s, the agent was killed\n{log}".rstrip())
        log = tail(log_file, LOG_TAIL_BYTES)
        if code == PORT_TAKEN:
            return HeadPortTaken(log.strip())
        words, _, last = log.rstrip().rpartition("\n")
        if last.startswith("setup: "):  # by setup.sh; the words of the line that failed are before it
            return ChildProcessError(f"{last}\n{words}".rstrip())
        return ChildProcessError(f"the agent {outcome(code)} before it wrote agent.json\n{log}".rstrip())

    def _spawn(self, argv: List[str], folder: str) -> subprocess.Popen[bytes]:
        import subprocess  # noqa: PLC0415  takes 10 ms, and a connection that only reads does not need it

        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        log = os.open(os.path.join(folder, "agent.log"), flags, 0o600)
        private = os.umask(self.umask)  # the agent inherits the user's umask; orch's files stay private
        try:
            child = subprocess.Popen(  # in a new session, without a pty: it outlives this program and the connection
                argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        finally:
            os.umask(private)
            os.close(log)
        self.children.append(child)
        return child


def outcome(code: int) -> str:
    """The end of a process, for a message; a negative code is a signal, as in Popen.returncode."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
