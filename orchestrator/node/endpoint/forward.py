"""Send files that this node has to another node, over a login from here to there; the controller polls how far it has come."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time

from orchestrator.node.endpoint.frames import SIZE_BYTES
from orchestrator.node.protocol.operations import FORWARD, FORWARDED, answers
from orchestrator.node.sending import Peer, Transfer, TransferError, unpacked
from orchestrator.node.system.fast_stdlib import dumps, loads
from orchestrator.node.system.files import absolute_path, error_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

    from orchestrator.node.protocol.connection import Empty
    from orchestrator.node.protocol.operations import Steps
    from orchestrator.node.protocol.transfer import ForwardedReply, ForwardedRequest, ForwardRequest

JUNK_LINES = 1000  # that start-up files of a login shell print
POLL_S = 0.1
END_S = 5.0


class Refused(Exception):
    """No endpoint could be started on the other node."""


class Forwarding:
    """The transfer that the controller of this connection has started."""

    def __init__(self) -> None:
        self._thread: Optional[threading.Thread] = None
        self._share = 0.0
        self._error = ""
        self._is_refused = False

    @answers(FORWARD)
    def forward(self, request: ForwardRequest, payload: bytes) -> Tuple[Empty, bytes]:
        """Begin to send; the thread ends with this program, and with it the login to the other node."""
        self._share, self._error, self._is_refused = 0.0, "", False
        self._thread = threading.Thread(target=self._run, args=(request, payload), name="forward", daemon=True)
        self._thread.start()
        return {}, b""

    @answers(FORWARDED)
    def forwarded(self, request: ForwardedRequest, _payload: bytes) -> Steps[ForwardedReply]:
        """How far it has come, after at most wait_s."""
        deadline = time.monotonic() + request["wait_s"]
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < deadline:
            yield POLL_S
        reply: ForwardedReply = {
            "share": self._share,
            "is_done": self._thread is None or not self._thread.is_alive(),
            "is_refused": self._is_refused,
            "error": self._error,
        }
        return reply, b""

    def _run(self, request: ForwardRequest, payload: bytes) -> None:
        source = absolute_path(request["source"])
        entries = unpacked(payload[: request["entries_bytes"]])
        try:
            with RemoteEndpoint(request, payload[request["entries_bytes"] :]) as peer:
                sources = [os.path.join(source, entry["path"]) for entry in entries]
                Transfer(peer, entries, sources, self._advanced).run(request["target"])
        except Refused as error:
            self._error, self._is_refused = str(error), True
        except Exception as error:  # noqa: BLE001  the controller reports it
            hint = f" ({error.hint})" if isinstance(error, TransferError) and error.hint else ""
            self._error = (error_text(error) or type(error).__name__) + hint

    def _advanced(self, share: float) -> None:
        self._share = share


class RemoteEndpoint(Peer):
    """An endpoint on another node, started by a login from this one."""

    def __init__(self, request: ForwardRequest, program: bytes) -> None:
        argv, marker = request["argv"], request["marker"].encode()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed on leaving
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True
            )
        except OSError as error:
            raise Refused(f"{argv[0]}: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._number = 0
        try:
            self._in.write(program)
            self._in.flush()
        except BrokenPipeError:
            pass  # its words are read below
        if not any(marker in line for line, _ in zip(iter(self._out.readline, b""), range(JUNK_LINES))):
            raise Refused(self._last_words())

    def __enter__(self) -> RemoteEndpoint:  # noqa: PYI034  no Self in Python 3.8
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._in.close()
            self._process.wait(END_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._stderr.close()

    def begin(self, op: Any, request: Any, payload: bytes = b"") -> int:  # noqa: ANN401
        self._number += 1
        header = dict(request, op=op, number=self._number, bytes=len(payload))
        text = dumps(header).encode()
        try:
            self._in.write(len(text).to_bytes(SIZE_BYTES, "big") + text)
            self._in.write(payload)
            self._in.flush()
        except BrokenPipeError:
            raise ConnectionError(self._last_words()) from None
        return self._number

    def end(self, ticket: Any) -> Any:  # noqa: ANN401
        reply: Dict[str, Any] = {}
        while reply.get("number") != ticket:
            reply = loads(self._read(int.from_bytes(self._read(SIZE_BYTES), "big")))
            self._read(reply["bytes"])
            if not reply["ok"]:
                raise OSError(reply["message"])
        return reply

    def _read(self, size: int) -> bytes:
        data = self._out.read(size)
        if len(data) < size:
            raise ConnectionError(self._last_words())
        return data

    def _last_words(self) -> str:
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit status {code}"
