"""Sources of facts: files below a root, tools, and the kernel. What cannot be read is recorded in `missing`, by the fact or the path."""

from __future__ import annotations

import errno
import os
import re
import time

from orchestrator.node.vendor.tool import FOLDERS, NOT_FOUND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Dict, List, Optional, Tuple

    from orchestrator.node.facts import Tool

FILE_BYTES = 1 << 20
NUMBER = re.compile(r"-?[0-9]{1,20}\Z")  # of 64 bits
TOOL_S = 10.0  # a driver without persistence mode initialises eight cards for each call
# An attribute that this device, kernel or state does not have: sysfs refuses the speed of a port that is down, or an empty GID slot.
WITHOUT_VALUE = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODATA, errno.ENODEV, errno.ENXIO, errno.EOPNOTSUPP)
)


class Source:
    """Reads below `root`; with another root than /, tools are those in its usr/bin."""

    def __init__(self, root: str = "/", environ: Optional[Mapping[str, str]] = None) -> None:
        self.root = os.path.realpath(root)
        self.environ = os.environ if environ is None else environ
        self.missing: Dict[str, str] = {}
        self.tools: List[Tool] = []
        self.last_words = ""
        """The output of the last tool that failed."""

    def path(self, path: str) -> str:
        """The path below the root of an absolute path."""
        return path if self.root == "/" else self.root + path

    def text(self, path: str) -> Optional[str]:
        """The stripped text of a file, None if there is none; other errors are recorded under the path."""
        data = self.data(path, FILE_BYTES)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def data(self, path: str, size: int) -> Optional[bytes]:
        """The first bytes of a file; None as in `text`. Never waits for a writer, as of a pipe."""
        try:
            descriptor = os.open(self.path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                data = bytearray()
                while len(data) < size:
                    block = os.read(descriptor, min(size - len(data), 1 << 16))
                    if not block:
                        break
                    data += block
                return bytes(data)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in WITHOUT_VALUE:
                self.missing[path] = error.strerror or str(error)
            return None

    def number(self, path: str) -> Optional[int]:
        """The integer in a file; None if there is none."""
        text = self.text(path)
        if text is None or NUMBER.match(text):
            return None if text is None else int(text)
        self.missing[path] = f"not a number: {text!r:.80}"
        return None

    def names(self, path: str) -> List[str]:
        """The sorted names in a folder; empty if there is none."""
        try:
            return sorted(os.listdir(self.path(path)), key=natural)
        except OSError as error:
            if error.errno not in WITHOUT_VALUE:
                self.missing[path] = error.strerror or str(error)
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self.path(path))

    def resolve(self, path: str) -> Optional[str]:
        """The absolute path that links lead to; None if nothing is there."""
        real = os.path.realpath(self.path(path))
        if not os.path.exists(real):
            return None
        return real if self.root == "/" else real[len(self.root) :]

    def output(self, argv: Sequence[str], timeout_s: float = TOOL_S) -> Optional[str]:
        """The standard output of a vendor's tool; None if it failed. Time and failure are recorded in `tools`."""
        begun = time.monotonic()
        text, error = self.run(argv, timeout_s)
        name = " ".join(word.partition("=")[0] for word in argv[:2])
        self.tools.append({"name": name, "seconds": round(time.monotonic() - begun, 3), "error": error})
        return text

    def run(self, argv: Sequence[str], timeout_s: float) -> Tuple[Optional[str], Optional[str]]:
        """The standard output of a program, or the reason why there is none. It is killed after timeout_s."""
        from orchestrator.node.vendor.tool import run_tool  # only steps with tools need it

        program = self.find(argv[0])
        if program is None:
            return None, NOT_FOUND
        # in the session of the step: its leftovers end with the step
        tool = run_tool([program, *argv[1:]], timeout_s, self.environ, has_session=False)
        if tool.error:
            self.last_words = tool.output + tool.errors
            return None, tool.error
        return tool.output, None

    def find(self, program: str) -> Optional[str]:
        """The path of a program, None if it is not installed."""
        if os.path.isabs(program):
            return program
        path = self.environ.get("PATH", os.defpath) if self.root == "/" else self.path("/usr/bin")
        for folder in [*filter(None, path.split(os.pathsep)), *map(self.path, FOLDERS)]:
            file = os.path.join(folder, program)
            if os.path.isfile(file) and os.access(file, os.X_OK):
                return file
        return None


def natural(name: str) -> Tuple[str, int, str]:
    """A key that sorts mlx5_10 behind mlx5_9, and 10 behind 9."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits or -1), name
