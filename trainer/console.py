"""Log lines on standard output, and terminals. No torch here."""

from __future__ import annotations

import os
import sys
from typing import TextIO

ERASE_LINE = "\x1b[K"  # from the cursor to the end of the line


def is_terminal(stream: TextIO) -> bool:
    """A terminal that understands ERASE_LINE."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def log_line(text: str) -> None:
    """Print one line and flush: a delayed log cannot show where a rank hangs. On a terminal, erase the progress bar."""
    sys.stdout.write(f"{ERASE_LINE if is_terminal(sys.stdout) else ''}{text}\n")
    sys.stdout.flush()
