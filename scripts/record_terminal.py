"""
Run commands in a terminal of their own and draw what it shows as an SVG: `make picture`.

    python scripts/record_terminal.py FILE.svg COMMAND [COMMAND …]

The commands really run, one after the other, in an empty folder that is also their home. The picture shows that folder as
/home/you.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text

COLUMNS, LINES = 112, 40
SHOWN_HOME = "/home/you"
UNSET = ("ORCH_HOME", "ORCH_INVENTORY", "NO_COLOR")
FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
# rich's own format loads a font from the network, which a picture in a README must not
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code", FONTS)


def record(command: str, folder: Path) -> str:
    """Everything that the command writes to its terminal."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in UNSET}
    env.update(HOME=str(folder), TERM="xterm-256color", COLUMNS=str(COLUMNS))
    with subprocess.Popen(shlex.split(command), stdin=end, stdout=end, stderr=end, cwd=folder, env=env) as process:
        os.close(end)
        written = b"".join(iter(lambda: _read(terminal), b""))
    os.close(terminal)
    if process.returncode != 0:
        sys.exit(f"{command} failed:\n{written.decode(errors='replace')}")
    return written.decode().replace("\r\n", "\n").replace(str(folder), SHOWN_HOME)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux: nobody has the other end open any more
        return b""


def draw(shown: str, title: str) -> str:
    """The terminal's text with its colours, as an SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(shown.rstrip("\n")), highlight=False)
    return console.export_svg(title=title, code_format=FORMAT, unique_id="orch")


def main() -> None:
    """Record, draw, write."""
    file, commands = Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="orch-picture-") as name:
        folder = Path(name).resolve()
        shown = "".join(f"\x1b[1m$ {command}\x1b[0m\n{record(command, folder)}" for command in commands)
    file.write_text(draw(shown, "orch"), encoding="utf-8")


if __name__ == "__main__":
    main()
