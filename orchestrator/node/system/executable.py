"""Why a program cannot be started, and the line that works. Imported only if one cannot."""

from __future__ import annotations

import errno
import os
import re
import shlex

from orchestrator.node.system.spawn import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Sequence

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OPERATOR = re.compile(r"&&|\|\||[|;<>`]|\$\(")
_OF_SHELLS = ("source", ".", "module", "ml", "export", "ulimit")  # not found on a PATH
_SHEBANG_BYTES = 256  # the kernel reads no more


def shell_syntax(args: Sequence[str]) -> Optional[str]:
    """The line that works if the command uses the syntax of a shell, which orch does not start by itself; None if it does not."""
    first, line = args[0], " ".join(args)
    if len(args) == 1 and (_OPERATOR.search(first) or re.search(r"\s", first.strip())):
        return f"{first!r} is a line for a shell: -- bash -c {shlex.quote(first)}"
    if _ASSIGNMENT.match(first):
        name = first.partition("=")[0]
        return f"{first!r} is an assignment, which only a shell knows: -- env {line}, or `env: {{{name}: …}}` in the inventory"
    if first in _OF_SHELLS:
        return f"{first} is a command of shells, and no program: `setup: [{line!r}]` in the inventory runs it before the ranks"
    return None


def why_not_found(args: Sequence[str], path: str, file: str) -> str:
    """Why the first word names no program on this node; `file` is its path if it has a slash. Equal on equal nodes."""
    name = args[0]
    if "/" in name and os.path.isfile(file):
        return _why_not_executable(args, file)
    if "/" in name and os.path.isdir(file):
        return f"{name} is a folder"
    line = shell_syntax(args)
    if line is not None:
        return line
    if "/" in name:
        return f"{name}: no such executable"
    text = f"{name}: no such executable on the PATH"
    if name == "python" and find_program("python3", path) is not None:
        return f"{text} of the node, which has python3: -- {shlex.join(['python3', *args[1:]])}"
    return text


def _why_not_executable(args: Sequence[str], file: str) -> str:
    name, mode = args[0], os.stat(file).st_mode & 0o777
    by_bash = f"-- bash {shlex.join(args)}"
    if mode & 0o111 and os.statvfs(file).f_flag & os.ST_NOEXEC:
        return f"{name} is on a file system from which nothing is executed (noexec): {by_bash}"
    return f"{name} is not executable: chmod +x {shlex.quote(name)}, or for a script of bash: {by_bash}"


def why_not_started(error: OSError, args: Sequence[str], cwd: str) -> str:
    """Why the kernel did not start a program that is executable."""
    name = args[0]
    try:
        with open(os.path.join(cwd, name), "rb") as file:
            first = file.read(_SHEBANG_BYTES).split(b"\n")[0]
    except OSError:
        return str(error)
    interpreter = os.fsdecode(first[2:].strip().split(b" ")[0]) if first.startswith(b"#!") else ""
    if first.startswith(b"#!") and first.endswith(b"\r"):
        return f"{name} ends its lines as Windows does (\\r\\n): sed -i 's/\\r$//' {shlex.quote(name)}"
    if interpreter and not os.path.exists(interpreter):
        return f"the first line of {name} names {interpreter}, which does not exist there"
    if error.errno == errno.ENOEXEC and not first.startswith((b"#!", b"\x7fELF")):
        return f"{name} has no first line such as #!/bin/bash, so nothing names its interpreter: add one, or -- bash {shlex.join(args)}"
    return str(error)
