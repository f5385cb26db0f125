"""Start agents that outlive the connection, and wait until each has written its agent.json."""

from __future__ import annotations

import os
import time

from orchestrator.node.endpoint.child import Child
from orchestrator.node.endpoint.report import LOG_TAIL_BYTES
from orchestrator.node.protocol.operations import STAND_BY, START, HeadPortTaken, answers
from orchestrator.node.run.events import PORT_TAKEN, REFUSAL, REFUSED
from orchestrator.node.run.run_folder import AGENT_LOG, read_agent
from orchestrator.node.system.fast_stdlib import signal
from orchestrator.node.system.files import absolute_path, check_private_folder, expanded_argument, open_for_write, tail
from orchestrator.node.system.machine import is_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    from orchestrator.node.endpoint.fork import AgentFork
    from orchestrator.node.endpoint.standby import Standby
    from orchestrator.node.protocol.agents import StandbyRequest, StartReply, StartRequest
    from orchestrator.node.protocol.connection import Empty

START_POLL_S = 0.01
MOST_POLL_S = 0.1
GROWTH = 1.25  # of the time between two polls: an agent that waits for a processor must not be slowed down
TERMINATE_S = 1.0


class Starter:
    """Starts agents that outlive this program; reaps those that end before it."""

    def __init__(self, umask: int) -> None:
        self.umask = umask
        self.children: List[Child] = []
        self.standby: Optional[Standby] = None

    def reap(self) -> None:
        self.children = [child for child in self.children if child.poll() is None]

    @answers(START)
    def start(self, request: StartRequest, _payload: bytes) -> Tuple[StartReply, bytes]:
        """Start an agent detached in a node folder and wait until it has written agent.json."""
        folder = absolute_path(request["folder"])
        check_private_folder(folder)
        earlier = read_agent(folder)
        if earlier is not None and is_alive(earlier):
            raise FileExistsError(f"an agent already runs in {folder}, pid {earlier['pid']}")
        child = self._begin(request, folder)
        self.children.append(child)
        deadline, pause_s = time.monotonic() + request["wait_s"], START_POLL_S
        while True:
            code = child.poll()
            agent = read_agent(folder)
            if agent is not None and agent != earlier:  # the agent may be a descendant of `child`
                return {"agent": agent}, b""
            if code is not None or time.monotonic() > deadline:
                raise self._failure(child, request["wait_s"], os.path.join(folder, AGENT_LOG))
            time.sleep(pause_s)
            pause_s = min(MOST_POLL_S, pause_s * GROWTH)

    def _failure(self, child: Child, wait_s: float, log_file: str) -> Exception:
        """The error of an agent that did not start; one that takes too long is killed."""
        code = child.code
        if code is None:
            os.killpg(child.pid, signal.SIGTERM)  # not reaped yet, so the pid is still this child's
            end = time.monotonic() + TERMINATE_S  # in which setup.sh names the line that takes so long
            while child.poll() is None and time.monotonic() < end:
                time.sleep(START_POLL_S)
            if child.code is None:
                os.killpg(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                child.code = -signal.SIGKILL
            log = tail(log_file, LOG_TAIL_BYTES)
            return TimeoutError(f"no agent.json after {wait_s:g} s, the agent was killed\n{log}".rstrip())
        log = tail(log_file, LOG_TAIL_BYTES)
        if code == PORT_TAKEN:
            return HeadPortTaken(log.strip())
        words, _, last = log.rstrip().rpartition("\n")
        if last.startswith("setup: "):  # by setup.sh; the words of the line that failed are before it
            return ChildProcessError(f"{last}\n{words}".rstrip())
        if code == REFUSED and last.startswith(REFUSAL):
            return ChildProcessError(last[len(REFUSAL) :])
        return ChildProcessError(f"the agent {outcome(code)} before it wrote agent.json\n{log}".rstrip())

    def _begin(self, request: StartRequest, folder: str) -> Child:
        """Start the agent, or the script that starts it, in a new session, without a pty: it outlives this program and the connection."""
        from orchestrator.node.endpoint.fork import AgentFork  # most connections do not need it
        from orchestrator.node.system.spawn import spawn

        def prepare() -> None:
            os.setsid()
            os.chdir(folder)
            os.umask(self.umask)  # the agent inherits the user's umask; orch's files stay private

        log = open_for_write(os.path.join(folder, AGENT_LOG), os.O_APPEND)
        try:
            fork = AgentFork(request["agent"], folder) if request["agent"] is not None else None
            if fork is not None and fork.is_possible():
                return self._start_standby(fork, folder, log) or Child(fork.start(log, self.umask))
            return Child(spawn([expanded_argument(arg) for arg in request["argv"]], os.environb, (log, log), prepare))
        finally:
            os.close(log)

    @answers(STAND_BY)
    def stand_by(self, request: StandbyRequest, _payload: bytes) -> Tuple[Empty, bytes]:
        """Keep a standby for the attempt after the one in this folder, in place of any other; without `agent`, none follows on this node."""
        ended, self.standby = self.standby, None
        if ended is not None:
            ended.end()
        if request["agent"] is None:
            from orchestrator.node.run.memory_folder import memory_folder, remove_memory  # for a failed run

            attempt, node = os.path.split(absolute_path(request["folder"]))
            remove_memory(memory_folder(os.path.basename(os.path.dirname(attempt)), node))
            return {}, b""
        from orchestrator.node.endpoint.fork import AgentFork  # as in _begin
        from orchestrator.node.endpoint.standby import Standby

        folder = absolute_path(request["folder"])
        check_private_folder(folder)
        fork = AgentFork(request["agent"], folder)
        if fork.is_possible():
            self.standby = Standby(fork, self.umask)
            self.children.append(self.standby.guard)
        return {}, b""

    def _start_standby(self, fork: AgentFork, folder: str, log: int) -> Optional[Child]:
        """Start an agent in this folder by the standby; None, with the reason in the log, if that is not possible."""
        standby, self.standby = self.standby, None
        if standby is None:
            return None
        reason = standby.start(fork.values, folder)
        if not reason:
            standby.close()
            return standby.guard
        standby.end()
        os.write(log, f"orch agent: the ranks are not forked but started by exec: {reason}\n".encode())
        return None


def outcome(code: int) -> str:
    """The end of a process, for a message; a negative code is a signal, as in Popen.returncode."""
    if code >= 0:
        return f"exited with code {code}"
    from signal import Signals  # slow to import

    return f"was killed by {Signals(-code).name}"
