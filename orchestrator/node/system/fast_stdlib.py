"""
Parts of the standard library without its slow imports, for the programs that start on every node.

json, signal, socket and contextlib import regular expressions, enumerations and collections, which take longer than the start of
Python. The C modules below them import nothing.
"""

from __future__ import annotations

__all__ = ["Socket", "dumps", "loads", "signal", "socket", "suppress"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    import contextlib
    import json
    import signal
    import socket

    Socket = socket.socket
    dumps, loads, suppress = json.dumps, json.loads, contextlib.suppress

if not TYPE_CHECKING:
    import _signal as signal
    import _socket as socket

    try:
        from _json import encode_basestring_ascii, make_encoder, make_scanner
    except ImportError:  # no CPython
        from json import dumps, loads
    else:

        class Syntax:
            """The settings of json.JSONDecoder."""

            strict = True
            object_hook = object_pairs_hook = None
            parse_float, parse_int = float, int
            parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__
            memo = {}  # noqa: RUF012  unused

        def refuse(value: object) -> None:
            """Raise the error for a value that JSON does not have."""
            raise TypeError(f"{type(value).__name__} is not a type of JSON")

        scan = make_scanner(Syntax)
        encode = make_encoder(None, refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)  # noqa: FBT003

        def loads(text: str | bytes) -> object:
            """As json.loads; ValueError if the text is not JSON, or not in UTF-8."""
            text = (text if isinstance(text, str) else text.decode()).strip(" \t\n\r")
            try:
                value, end = scan(text, 0)
            except (StopIteration, SystemError):  # the C code raises the latter if json is not imported
                end = -1
            if end != len(text):
                from json import loads as loads_or_error  # slow to import

                return loads_or_error(text)
            return value

        def dumps(value: object) -> str:
            return "".join(encode(value, 0))

    class Socket(socket.socket):
        """A socket that a `with` statement closes."""

        def __enter__(self) -> Socket:  # noqa: PYI034  typing_extensions is not on nodes
            return self

        def __exit__(self, *_error: object) -> None:
            self.close()

    class suppress:  # noqa: N801  as in contextlib
        """Ignore exceptions of these classes in a `with` statement."""

        def __init__(self, *classes: type[BaseException]) -> None:
            self._classes = classes

        def __enter__(self) -> None:
            return

        def __exit__(self, kind: type[BaseException] | None, *_error: object) -> bool:
            return kind is not None and issubclass(kind, self._classes)
