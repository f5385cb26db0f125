"""
Isolation of a node: the time since the last heartbeat of its supervisor, and since a peer was last reachable.

A heartbeat is a file in the node folder that the endpoint touches. A peer is reachable if a TCP connection to its host, closed
at once, is accepted or refused: a refusal proves a way to the host, too.
"""

from __future__ import annotations

import errno
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

SUPERVISED = "supervised"  # in the node folder: the addresses of the peers; its time is that of the last heartbeat
SILENT_S = 5.0  # the supervisor's heartbeats come at least every 3 s
PROBE_WAIT_S = 3.0
PROBES = 6  # within the isolation timeout
PAUSED_S = 3.0  # an agent polls four times a second: after a longer gap it had been suspended
MOST_PROBES = 3


class Probe:
    """One attempt to reach a host, which never blocks."""

    def __init__(self, address: str, port: int) -> None:
        import socket  # noqa: PLC0415  slow to import, and most connections probe nothing

        self._deadline = time.monotonic() + PROBE_WAIT_S
        self._socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.settimeout(0)
        self._target = (address, port)

    def answered(self) -> Optional[bool]:
        """True if the host has answered, False if it did not in time; None while that is open."""
        code = self._socket.connect_ex(self._target)  # called repeatedly, it returns the state of the first attempt
        if code in (errno.EINPROGRESS, errno.EALREADY):
            if time.monotonic() < self._deadline:
                return None
            code = errno.ETIMEDOUT
        self.close()
        return code in (0, errno.EISCONN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED)

    def close(self) -> None:
        self._socket.close()


def reachable_hosts(addresses: List[str], port: int) -> List[str]:
    """Those of the addresses at which a host answers within PROBE_WAIT_S."""
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


def leave_heartbeat(folder: str, peers: List[str]) -> None:
    """Leave the supervisor's heartbeat in a node folder, with the addresses of the peers."""
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
    """How long an agent has been without a supervisor and without its peers."""

    def __init__(self, folder: str, rendezvous: str, *, is_head: bool, timeout_s: float) -> None:
        self._path = os.path.join(folder, SUPERVISED)
        self._head, port, _ = rendezvous.split()
        self._port = int(port)
        self._is_head = is_head
        self._heartbeat_ns: Optional[int] = None  # the time of the file
        self._probes: List[Probe] = []
        self._next_probe_s = 0.0
        self._pause_s = timeout_s / PROBES
        self._has_answered = not is_head  # the ranks will meet at the rendezvous; a peer may be behind a firewall
        now = time.monotonic()
        self._supervisor_s = now  # of the last heartbeat
        self._peer_s = now  # of the last answer
        self._poll_s = now

    def unsupervised_s(self) -> float:
        """The time since the last heartbeat."""
        try:
            heartbeat_ns: Optional[int] = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            heartbeat_ns = None
        now = time.monotonic()
        if heartbeat_ns != self._heartbeat_ns:  # the clock of the file may jump, this one does not
            self._heartbeat_ns = heartbeat_ns
            self._supervisor_s = now
        if now - self._poll_s > PAUSED_S:  # the whole host may have been suspended: the silence proves nothing
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
        self._probe_peers()
        return min(silent_s, time.monotonic() - self._peer_s) if self._has_answered else 0.0

    def close(self) -> None:
        """Give up all probes."""
        for probe in self._probes:
            probe.close()
        self._probes = []

    def _probe_peers(self) -> None:
        waiting = []
        for probe in self._probes:
            answered = probe.answered()
            if answered is None:
                waiting.append(probe)
            elif answered:
                self._has_answered = True
                self._peer_s = time.monotonic()
        if not waiting and time.monotonic() >= self._next_probe_s:
            waiting = [Probe(address, self._port) for address in self._peers()[:MOST_PROBES]]
            self._next_probe_s = time.monotonic() + (self._pause_s if waiting else 0.0)
        self._probes = waiting

    def _peers(self) -> List[str]:
        if not self._is_head:
            return [self._head]
        try:
            with open(self._path, encoding="ascii") as file:
                return file.read().split()
        except FileNotFoundError:
            return []
