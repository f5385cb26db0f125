"""The ports of a node for other nodes: one that is reserved for the rendezvous, and one that listens while the nodes are checked."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

from orchestrator.node.protocol.operations import LISTEN, RESERVE, STOP_LISTENING, answers
from orchestrator.node.rendezvous import choose_address, reserve
from orchestrator.node.system.machine import host_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Optional, Tuple

    from orchestrator.node.protocol.connection import Empty, ReserveReply, ReserveRequest

# SO_LINGER that closes a connection by a reset: it leaves nothing behind that would keep the port from others.
RESET = struct.pack("ii", 1, 0)
BACKLOG = 1024


class Listener:
    """
    Accepts connections in a thread, and closes each at once. `record` is as that of a rendezvous.

    Only a connection proves that a firewall lets the other nodes through.
    """

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


class Ports:
    """
    Holds the rendezvous port and the one that listens, at most while this program runs.

    Before the program ends, the head's agent has bound the rendezvous port, too.
    """

    def __init__(self) -> None:
        self._holder: Optional[socket.socket] = None
        self._listener: Optional[Listener] = None

    @answers(RESERVE)
    def reserve(self, request: ReserveRequest, _payload: bytes) -> Tuple[ReserveReply, bytes]:
        """Choose an address of this host and hold a free port; return the rendezvous record."""
        record, self._holder = reserve(request["candidates"], dict(os.environ, **request["interfaces"]))
        return {"rendezvous": record}, b""

    @answers(LISTEN)
    def listen(self, request: ReserveRequest, _payload: bytes) -> Tuple[ReserveReply, bytes]:
        """Listen at the address that a rendezvous would have, on a free port; return the record of both."""
        self.stop_listening({}, b"")
        self._listener = Listener(request["candidates"], dict(os.environ, **request["interfaces"]))
        return {"rendezvous": self._listener.record}, b""

    @answers(STOP_LISTENING)
    def stop_listening(self, _request: Empty, _payload: bytes) -> Tuple[Empty, bytes]:
        if self._listener is not None:
            self._listener.close()
        self._listener = None
        return {}, b""
