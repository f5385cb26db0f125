"""Run a command for the controller, such as one of Slurm's: in the environment of a login, bounded in time and output."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import selectors
import signal
import subprocess
import time

from orchestrator.node.protocol.operations import COMMAND, COMMAND_ONCE, answers
from orchestrator.node.system.files import absolute_path, check_private_folder, expanded_argument, read_json, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Tuple

    from orchestrator.node.protocol.connection import CommandOnceRequest, CommandReply, CommandRequest

OUTPUT_BYTES = 4 << 20
BLOCK_BYTES = 1 << 16
PROFILE_S = 20.0
RESULT_POLL_S = 0.05
POLL_S = 0.5  # a descendant may keep the output of a child that has ended open
NOT_FOUND, NO_ANSWER, WITHDRAWN = 127, 124, 125
# Shells that accept -l, -c and PRINT_ENVIRONMENT; users of other shells have a profile for bash, too.
SHELLS = ("bash", "zsh", "ksh", "fish", "dash", "sh")
ENVIRONMENT_MARKER = "orch-environment-5b1d"  # the output before it comes from a profile
PRINT_ENVIRONMENT = f"echo {ENVIRONMENT_MARKER}; exec cat /proc/self/environ"


class Commands:
    """Runs commands with the umask of the user, which sbatch passes on to the job."""

    def __init__(self, umask: int) -> None:
        self._umask = umask

    @answers(COMMAND)
    def command(self, request: CommandRequest, stdin: bytes) -> Tuple[CommandReply, bytes]:
        """Run argv with this standard input; return its exit code (127: there is no such program, 124: it took too long and was killed), stdout and stderr."""
        argv, folder = [expanded_argument(arg) for arg in request["argv"]], absolute_path(request["folder"])
        removed = request["removed"]
        whole = login_environment() if request["login"] else os.environ
        environment = {name: value for name, value in whole.items() if not (removed and re.match(removed, name))}
        private = os.umask(self._umask)
        try:
            code, out, err = run(argv, environment, folder, request["timeout_s"], stdin=stdin)
        finally:
            os.umask(private)
        return {"code": code, "out": out.decode("utf-8", "replace"), "err": err.decode("utf-8", "replace")}, b""

    @answers(COMMAND_ONCE)
    def command_once(self, request: CommandOnceRequest, _payload: bytes) -> Tuple[CommandReply, bytes]:
        """
        Run argv once over any number of connections.

        The first one creates `result_file` and writes the result to it; the others wait for that result, and return code 124 if
        there is none within `timeout_s`. With `begin` false, a command that has not begun is withdrawn: it never begins.
        """
        path = absolute_path(request["result_file"])
        withdrawn: CommandReply = {"code": WITHDRAWN, "out": "", "err": "it was withdrawn before it began"}
        if not request["begin"] and not os.path.lexists(os.path.dirname(path)):
            return withdrawn, b""  # the folder is made before the command begins
        check_private_folder(os.path.dirname(path))
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        except FileExistsError:
            return wait_for_result(path, request["timeout_s"]), b""
        result = self.command(request, b"")[0] if request["begin"] else withdrawn
        write_json(path, result)
        return result, b""


def wait_for_result(path: str, wait_s: float) -> CommandReply:
    """The result of a command that another connection began."""
    deadline = time.monotonic() + wait_s
    while True:
        result = read_json(path)
        if result is not None:
            return {"code": result["code"], "out": result["out"], "err": result["err"]}
        if time.monotonic() > deadline:
            return {"code": NO_ANSWER, "out": "", "err": "it began, but there is no result"}
        time.sleep(RESULT_POLL_S)


@functools.lru_cache(maxsize=None)
def login_environment() -> Dict[str, str]:
    """
    The environment of a login shell: the site's profile sets the path of Slurm's programs.

    If the profile ends the shell, the environment of this program.
    """
    _, out, _ = run([login_shell(), "-l", "-c", PRINT_ENVIRONMENT], dict(os.environ), absolute_path("~"), PROFILE_S)
    _, marker, text = os.fsdecode(out).rpartition(f"{ENVIRONMENT_MARKER}\n")
    pairs = (entry.partition("=") for entry in text.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs} if marker else dict(os.environ)


def login_shell() -> str:
    """The user's login shell if it is one of SHELLS, else bash or sh."""
    import pwd  # only Unix has it

    try:
        user_shell = pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:
        user_shell = ""
    known = [user_shell] if os.path.basename(user_shell) in SHELLS else []
    return next(shell for shell in (*known, "/bin/bash", "/bin/sh") if os.access(shell, os.X_OK) or shell == "/bin/sh")


def run(
    argv: List[str], environment: Dict[str, str], folder: str, timeout_s: float, *, stdin: bytes = b""
) -> Tuple[int, bytes, bytes]:
    """Run a command; return its exit code and the first OUTPUT_BYTES of stdout and of stderr."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError) as error:
        if not os.path.isdir(folder):
            raise
        return NOT_FOUND, b"", f"{argv[0]}: {error.strerror}".encode()
    with child:
        out, err = outputs(child, time.monotonic() + timeout_s, stdin)
        if child.poll() is not None:
            return child.returncode, out, err
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # not reaped yet, so the pid is still this child's
        return NO_ANSWER, out, err + f"{argv[0]} gave no answer in {timeout_s:g} s".encode()


def outputs(child: subprocess.Popen[bytes], deadline: float, stdin: bytes) -> Tuple[bytes, bytes]:
    """Write stdin; collect stdout and stderr until both end, the child ends or the deadline has passed."""
    assert child.stdout is not None
    assert child.stderr is not None
    kept = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    unwritten = memoryview(stdin)
    with selectors.DefaultSelector() as selector:
        for descriptor in kept:
            selector.register(descriptor, selectors.EVENT_READ)
        if child.stdin is not None:
            os.set_blocking(child.stdin.fileno(), False)
            selector.register(child.stdin, selectors.EVENT_WRITE)
        while selector.get_map() and time.monotonic() < deadline:
            ready = selector.select(min(POLL_S, max(0.0, deadline - time.monotonic())))
            for key, _ in ready:
                if key.fileobj is child.stdin:
                    try:
                        unwritten = unwritten[os.write(child.stdin.fileno(), unwritten) :]
                    except BrokenPipeError:  # the command has closed its standard input
                        unwritten = memoryview(b"")
                    if not unwritten:
                        selector.unregister(child.stdin)
                        child.stdin.close()
                    continue
                data = os.read(key.fd, BLOCK_BYTES)
                if not data:
                    selector.unregister(key.fd)
                kept[key.fd] += data[: OUTPUT_BYTES - len(kept[key.fd])]
            if not ready and child.poll() is not None:
                break
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(max(0.0, deadline - time.monotonic()))
    out, err = map(bytes, kept.values())
    return out, err
