"""
Run commands in a pseudo-terminal and draw its screen as an SVG: `make picture`.

    python scripts/record_terminal.py FILE.svg COMMAND [COMMAND …]

The commands run one after the other in an empty folder, which is also their home. The picture shows it as /home/you.
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
# rich's own format loads a font from the network, which a picture in a README must not do
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code", FONTS)


def record(command: str, folder: Path) -> str:
    """Run a command and return its terminal output; exit if it fails."""
    terminal, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in UNSET}
    env.update(HOME=str(folder), TERM="xterm-256color", COLUMNS=str(COLUMNS))
    with subprocess.Popen(
        shlex.split(command), stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env
    ) as process:
        os.close(slave)
        written = b"".join(iter(lambda: _read(terminal), b""))
    os.close(terminal)
    if process.returncode != 0:
        sys.exit(f"{command} failed:\n{written.decode(errors='replace')}")
    shown = written.decode().replace("\r\n", "\n").replace(str(folder), SHOWN_HOME)
    return re.sub(r"[^\n]*\r\x1b\[K", "", shown)  # lines about the progress, which the terminal erases


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux: the slave end is closed
        return b""


def draw(shown: str, title: str) -> str:
    """Draw terminal output with its colours as an SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(shown.rstrip("\n")), "", sep="\n", highlight=False)  # the format cuts the last line
    return console.export_svg(title=title, code_format=FORMAT, unique_id="orch")


def main() -> None:
    """Record the commands and write the SVG."""
    file, commands = Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="orch-picture-") as name:
        folder = Path(name).resolve()
        shown = "".join(f"\x1b[1m$ {command}\x1b[0m\n{record(command, folder)}" for command in commands)
    file.write_text(draw(shown, "orch"), encoding="utf-8")


if __name__ == "__main__":
    main()
