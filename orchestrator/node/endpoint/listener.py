"""A port that listens while the nodes are checked: only a connection proves that a firewall lets the other nodes through."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from orchestrator.node.rendezvous import choose_address
from orchestrator.node.system.machine import host_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# SO_LINGER that closes a connection by a reset: it leaves nothing behind that would keep the port from others.
RESET = struct.pack("ii", 1, 0)
BACKLOG = 1024


class Listener:
    """Accepts connections in a thread, and closes each at once. `record` is as that of a rendezvous."""

    def __init__(self, candidates: Sequence[str], environ: Mapping[str, str]) -> None:
        address = choose_address(candidates, environ)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family, backlog=BACKLOG)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # connections inherit it
        self._is_open = True
        self.record = f"{address} {self._socket.getsockname()[1]} {host_id()}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while self._is_open:
            with contextlib.suppress(OSError):  # the peer has ended the connection already, or `close` ends the wait
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Stop listening; the port is free when this returns."""
        self._is_open = False
        self._socket.shutdown(socket.SHUT_RDWR)  # a close alone would not end the wait for a connection
        self._thread.join()
        self._socket.close()
