"""The standby of a node, on the endpoint's side: forked while an attempt runs, ordered to start the next one, or ended."""

from __future__ import annotations

import os
import time

from orchestrator.node.endpoint.child import Child
from orchestrator.node.endpoint.fork import agent_options, exports
from orchestrator.node.run.ownership import add_relatives, key_of, signal_exactly, user_processes
from orchestrator.node.run.run_folder import AGENT_LOG, STANDBY_RECORD
from orchestrator.node.system.fast_stdlib import dumps, loads, signal, suppress
from orchestrator.node.system.files import open_for_write, read_json
from orchestrator.node.system.machine import is_alive
from orchestrator.node.system.processes import stat_of
from orchestrator.node.system.spawn import redirect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence, Tuple

    from orchestrator.node.agent.guard import AgentOptions
    from orchestrator.node.endpoint.fork import AgentFork
    from orchestrator.node.protocol.agents import AgentStart

ORDER_S = 5.0  # a standby that does not take its order by then is not used
KILL_WAIT_S = 5.0
POLL_S = 0.005
STATUS_BYTES = 1 << 12


class Standby:
    """The processes of a standby; see node/agent/standby.py."""

    def __init__(self, fork: AgentFork, umask: int) -> None:
        """Start it; `fork` is of the agent of the attempt that runs."""
        self.folder = fork.folder
        order, self._order = os.pipe()
        self._status, status = os.pipe()
        self._open = [self._order, self._status]
        endpoint_pid = os.getpid()

        def run() -> int:
            from orchestrator.node.agent import standby  # it is in the bundle

            settings = standby.Standby(agent_options(fork.values), fork.exports, umask, take_order)
            settings.endpoint_pid, settings.order, settings.status = endpoint_pid, order, status
            return standby.stand_by(settings)

        log = open_log(fork.folder)
        try:
            self.guard = Child(fork.fork(log, run, keep=(order, status)))
        finally:
            for descriptor in (log, order, status):
                os.close(descriptor)

    def start(self, values: AgentStart, folder: str) -> str:
        """Order the start of the next attempt; return why that is not possible, or empty if it starts."""
        state = self._read_status(0.0)
        if state != b"ready":
            return state.decode(errors="replace") or "their modules were not imported yet"
        with suppress(BrokenPipeError), open(self._order, "wb", closefd=False) as file:
            file.write(dumps({"agent": values, "folder": folder}).encode())
        self._open.remove(self._order)
        os.close(self._order)
        state = self._read_status(ORDER_S)
        return "" if state == b"started" else "the process to be forked did not start them"

    def close(self) -> None:
        """Close the pipes; without an order, its processes end."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open = []

    def end(self) -> None:
        """End its processes, also if it has taken an order."""
        if self.guard.poll() is None:
            end_family(self.guard.pid)
        remove_record(self.folder)
        self.close()

    def _read_status(self, wait_s: float) -> bytes:
        """The report of the agent; empty if there is none within that time."""
        os.set_blocking(self._status, False)
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                return os.read(self._status, STATUS_BYTES)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    return b""
                time.sleep(POLL_S)


def take_order(text: bytes, keep: Sequence[int]) -> Tuple[AgentOptions, str]:
    """Enter the node folder of an order, with its environment and log; see TakeOrder."""
    order = loads(text)
    assert isinstance(order, dict), "by Standby.start"
    folder = order["folder"]
    log = open_log(folder)
    redirect(log, log, keep=keep)
    os.chdir(folder)
    os.environb.update(exports(order["agent"], folder))
    return agent_options(order["agent"]), folder


def open_log(folder: str) -> int:
    return open_for_write(os.path.join(folder, AGENT_LOG), os.O_APPEND)


def end_standby(folder: str, *, keeps_own: bool) -> None:
    """End the standby that is recorded in a node folder. It may be another endpoint's, whose connection is lost; `keeps_own` ends only such a one."""
    record = read_json(os.path.join(folder, STANDBY_RECORD))
    stat = None if record is None else stat_of(record["pid"])
    if record is None or (keeps_own and stat is not None and stat[1] == os.getpid()):
        return
    if is_alive(record):
        end_family(record["pid"])
        remove_record(folder)


def end_family(pid: int) -> None:
    """Kill a process and its descendants, and wait until they are gone."""
    processes = user_processes()
    keys = [
        key_of(number, processes[number]) for number in add_relatives({pid}, processes, None) if number in processes
    ]
    for key in keys:
        signal_exactly(key, signal.SIGKILL)
    deadline_s = time.monotonic() + KILL_WAIT_S
    while time.monotonic() < deadline_s and any(is_alive({"pid": key[0], "start_time": key[1]}) for key in keys):
        time.sleep(POLL_S)


def remove_record(folder: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, STANDBY_RECORD))
