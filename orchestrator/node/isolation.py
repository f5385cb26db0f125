"""
Isolation of a node: the time since the supervisor's last heartbeat, and since a peer was last reachable.

A heartbeat is a file in the node folder that the endpoint touches. A peer is reachable if a TCP connection to its host is
accepted (and then closed) or refused: a refusal proves a route to the host, too.
"""

from __future__ import annotations

import errno
import os
import time

from orchestrator.node.system.fast_stdlib import Socket, socket, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

SUPERVISED = "supervised"  # in the node folder: the addresses of the peers; its mtime is the time of the last heartbeat
# In the node folder of the head: a peer has answered, so the head ends its ranks if it is isolated.
PEER_ANSWERED = "peer-answered"
SILENT_S = 5.0  # the supervisor sends a heartbeat at least every 3 s
PROBE_WAIT_S = 3.0
PROBES = 6  # within the isolation timeout
SUSPENDED_S = 3.0  # an agent polls four times a second: after a longer gap it was suspended
MAX_PROBES = 3  # at the same time
CONNECTED = (0, errno.EISCONN, errno.ECONNRESET, errno.ECONNABORTED)  # the last two: a connection that was reset


class Probe:
    """One non-blocking attempt to connect to a host."""

    def __init__(self, address: str, port: int) -> None:
        self._deadline = time.monotonic() + PROBE_WAIT_S
        self._socket = Socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.settimeout(0)
        self._target = (address, port)

    def result(self) -> Optional[int]:
        """The error number, 0 of a connection, ETIMEDOUT after PROBE_WAIT_S without an answer; None until then."""
        code = self._socket.connect_ex(self._target)  # called repeatedly, it returns the state of the first call
        if code in (errno.EINPROGRESS, errno.EALREADY):
            if time.monotonic() < self._deadline:
                return None
            code = errno.ETIMEDOUT
        self.close()
        return 0 if code in CONNECTED else code

    def answered(self) -> Optional[bool]:
        """Return whether the host has answered: it accepts or refuses the connection. None until that is known."""
        code = self.result()
        return None if code is None else code in (0, errno.ECONNREFUSED)

    def close(self) -> None:
        self._socket.close()


def reachable_hosts(addresses: List[str], port: int) -> List[str]:
    """Return the addresses at which a host answers within PROBE_WAIT_S."""
    probes = {address: Probe(address, port) for address in addresses}
    found: List[str] = []
    while probes:
        for address, probe in list(probes.items()):
            answered = probe.answered()
            if answered is not None:
                del probes[address]
                found += [address] if answered else []
        time.sleep(0.02 if probes else 0.0)
    return found


def connect_error(address: str, port: int) -> str:
    """The reason why this node cannot connect; empty if it can."""
    probe = Probe(address, port)
    code = probe.result()
    while code is None:
        time.sleep(0.02)
        code = probe.result()
    if code == errno.ETIMEDOUT:
        return f"no answer within {PROBE_WAIT_S:g} s"
    return os.strerror(code).lower() if code else ""


def leave_heartbeat(folder: str, peers: List[str]) -> None:
    """Record the supervisor's heartbeat in a node folder, with the addresses of the peers."""
    path = os.path.join(folder, SUPERVISED)
    text = "\n".join(peers)
    try:
        with open(path, encoding="ascii") as file:
            present: Optional[str] = file.read()
    except FileNotFoundError:
        present = None
    if present == text:
        os.utime(path)
        return
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(text)
    os.replace(temporary, path)


class Isolation:
    """Measures how long an agent has had neither a heartbeat of the supervisor nor an answer of a peer."""

    def __init__(self, folder: str, rendezvous: str, *, is_head: bool, timeout_s: float) -> None:
        self._path = os.path.join(folder, SUPERVISED)
        self._head, port, _ = rendezvous.split()
        self._port = int(port)
        self._is_head = is_head
        self._heartbeat_ns: Optional[int] = None  # the time of the file
        self._probes: List[Probe] = []
        self._next_probe_s = 0.0
        self._probe_interval_s = timeout_s / PROBES
        # The ranks must reach the head's rendezvous port; on other nodes a firewall may drop every probe.
        self._has_answered = not is_head
        now = time.monotonic()
        self._supervisor_s = now  # of the last heartbeat
        self._peer_s = now  # of the last answer
        self._poll_s = now

    def unsupervised_s(self) -> float:
        try:
            heartbeat_ns: Optional[int] = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            heartbeat_ns = None
        now = time.monotonic()
        if heartbeat_ns != self._heartbeat_ns:  # the clock of the file system may jump, the monotonic one does not
            self._heartbeat_ns = heartbeat_ns
            self._supervisor_s = now
        if now - self._poll_s > SUSPENDED_S:  # the whole host may have been suspended: the silence proves nothing
            self._supervisor_s = now
            self._peer_s = now
        self._poll_s = now
        return now - self._supervisor_s

    def isolated_s(self) -> float:
        """The time since the last heartbeat or answer of a peer; 0 if no peer has ever answered."""
        silent_s = self.unsupervised_s()
        if silent_s < SILENT_S and self._has_answered:
            self.close()
            self._peer_s = time.monotonic()
            return 0.0
        pending = []
        for probe in self._probes:
            answered = probe.answered()
            if answered is None:
                pending.append(probe)
            elif answered:
                self._peer_s = time.monotonic()
                if not self._has_answered:
                    self._has_answered = True
                    # a full disk: without the file, another attempt does not rely on the isolation
                    with suppress(OSError), open(os.path.join(os.path.dirname(self._path), PEER_ANSWERED), "wb"):
                        pass
        if not pending and time.monotonic() >= self._next_probe_s:
            pending = [Probe(address, self._port) for address in self._peers()[:MAX_PROBES]]
            self._next_probe_s = time.monotonic() + (self._probe_interval_s if pending else 0.0)
        self._probes = pending
        return min(silent_s, time.monotonic() - self._peer_s) if self._has_answered else 0.0

    def close(self) -> None:
        for probe in self._probes:
            probe.close()
        self._probes = []

    def _peers(self) -> List[str]:
        if not self._is_head:
            return [self._head]
        try:
            with open(self._path, encoding="ascii") as file:
                return file.read().split()
        except FileNotFoundError:
            return []
