"""The size of the replies with log content, by the speed of the link. Pure."""

from __future__ import annotations

REPLY_S = 0.25
FIRST_BYTES, LEAST_BYTES, MOST_BYTES = 1 << 18, 1 << 13, 1 << 22


class ReplySize:
    """
    The number of bytes that a link carries in REPLY_S, by the replies that arrived.

    A node writes its replies one after the other: a long one on a slow link would delay the reply to a heartbeat.
    """

    def __init__(self) -> None:
        self.bytes = FIRST_BYTES

    def add(self, size: int, elapsed_s: float) -> None:
        """Take into account a reply of `size` bytes that took `elapsed_s` from its first to its last byte."""
        if 2 * size >= self.bytes or elapsed_s > REPLY_S:  # a short reply shows no more than that the link is slow
            fitting = int(size * REPLY_S / elapsed_s) if elapsed_s > 0 else MOST_BYTES
            self.bytes = max(LEAST_BYTES, min(fitting, 2 * self.bytes, MOST_BYTES))
