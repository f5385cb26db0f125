"""
Whether a node is cut off: the supervisor is heard through a file that its endpoint touches, the peers by knocking at their hosts.

A knock is a TCP connection that is closed at once. A refusal is an answer too: it proves that there is a way to the host.
"""

from __future__ import annotations

import errno
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

SUPERVISED = "supervised"  # in the node folder: the addresses of the peers, touched at every beat of the supervisor
SILENT_S = 5.0  # the supervisor's beats come at least every 3 s
KNOCK_WAIT_S = 3.0
KNOCKS = 6  # within the isolation timeout
PAUSED_S = 3.0  # an agent looks four times a second: between looks so far apart it did not run
MOST_KNOCKS = 3


class Knock:
    """One attempt to reach a host, which never blocks."""

    def __init__(self, address: str, port: int) -> None:
        import socket  # noqa: PLC0415  milliseconds that a connection without a knock need not wait for

        self._deadline = time.monotonic() + KNOCK_WAIT_S
        self._socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.settimeout(0)
        self._target = (address, port)

    def answered(self) -> Optional[bool]:
        """Whether the host has answered; None while nobody can tell."""
        code = self._socket.connect_ex(self._target)  # asked again, it says how the first attempt goes
        if code in (errno.EINPROGRESS, errno.EALREADY):
            if time.monotonic() < self._deadline:
                return None
            code = errno.ETIMEDOUT
        self.close()
        return code in (0, errno.EISCONN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED)

    def close(self) -> None:
        """Give up."""
        self._socket.close()


def hosts_that_answer(addresses: List[str], port: int) -> List[str]:
    """Those of the addresses at which a host answers within KNOCK_WAIT_S."""
    knocks = {address: Knock(address, port) for address in addresses}
    found: List[str] = []
    while knocks:
        for address, knock in list(knocks.items()):
            answered = knock.answered()
            if answered is not None:
                del knocks[address]
                found += [address] if answered else []
        time.sleep(0.02 if knocks else 0.0)
    return found


def beat(folder: str, peers: List[str]) -> None:
    """Leave word in a node folder that the supervisor was here, and where the peers are."""
    path = os.path.join(folder, SUPERVISED)
    text = "\n".join(peers)
    try:
        with open(path, encoding="ascii") as file:
            known: Optional[str] = file.read()
    except FileNotFoundError:
        known = None
    if known == text:
        os.utime(path)
        return
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(text)
    os.replace(temporary, path)


class Contact:
    """What an agent knows of the world outside: when it last heard the supervisor, and when last a peer."""

    def __init__(self, folder: str, rendezvous: str, *, is_head: bool, isolation_s: float) -> None:
        self._path = os.path.join(folder, SUPERVISED)
        self._head, port, _ = rendezvous.split()
        self._port = int(port)
        self._is_head = is_head
        self._stamp: Optional[int] = None
        self._knocks: List[Knock] = []
        self._next_knock_s = 0.0
        self._pause_s = isolation_s / KNOCKS
        self._has_answered = not is_head  # the ranks will meet at the rendezvous; a peer may hide behind a firewall
        self._supervisor_s = self._peer_s = self._look_s = time.monotonic()

    def unsupervised_s(self) -> float:
        """For how long no supervisor was heard."""
        try:
            stamp: Optional[int] = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            stamp = None
        now = time.monotonic()
        if stamp != self._stamp:  # the clock of the file may jump, this one does not
            self._stamp, self._supervisor_s = stamp, now
        if now - self._look_s > PAUSED_S:  # the whole host may have slept: what was not heard then proves nothing
            self._supervisor_s = self._peer_s = now
        self._look_s = now
        return now - self._supervisor_s

    def isolated_s(self) -> float:
        """For how long neither the supervisor nor a peer was heard; 0 where no peer has ever answered."""
        silent_s = self.unsupervised_s()
        if silent_s < SILENT_S and self._has_answered:
            self.close()
            self._peer_s = time.monotonic()
            return 0.0
        self._knock()
        return min(silent_s, time.monotonic() - self._peer_s) if self._has_answered else 0.0

    def close(self) -> None:
        """Give up all knocks."""
        for knock in self._knocks:
            knock.close()
        self._knocks = []

    def _knock(self) -> None:
        waiting = []
        for knock in self._knocks:
            answered = knock.answered()
            if answered is None:
                waiting.append(knock)
            elif answered:
                self._has_answered, self._peer_s = True, time.monotonic()
        if not waiting and time.monotonic() >= self._next_knock_s:
            waiting = [Knock(address, self._port) for address in self._peers()[:MOST_KNOCKS]]
            self._next_knock_s = time.monotonic() + (self._pause_s if waiting else 0.0)
        self._knocks = waiting

    def _peers(self) -> List[str]:
        if not self._is_head:
            return [self._head]
        try:
            with open(self._path, encoding="ascii") as file:
                return file.read().split()
        except FileNotFoundError:
            return []
